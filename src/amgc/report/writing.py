"""Files of reports appear whole or not at all."""

from amgc.files import atomic as whole_file

__all__ = ["whole_file"]
