"""Read figures from benchmarks/results/*.txt. Numbers stay as they were printed; a missing figure is an error."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


class Kept:
    """The output of one benchmark: paragraphs, separated by empty lines, of rows `NAME  figures …` or `NAME: figures …`.

    The first paragraph, with command, commit and machine, is not searched. commit : that of the run; "" if it is not stated.
    """

    def __init__(self, text: str, name: str = "the text") -> None:
        self.text = text.partition("\n\n")[2].lstrip("\n") if text.startswith("command:") else text
        self.name = name
        found = re.search(r"^commit: +(\S+)", text, flags=re.M)
        self.commit = found[1] if found else ""

    def row(self, name: str, part: str = "") -> str:
        """Return the text after `name` in the only row of that name, in the paragraph that has `part` in one of its lines."""
        pattern = re.compile(rf"^\s*{re.escape(name)}(?::|\s\s|$)(.*)$", flags=re.M)
        found = pattern.findall(self.part(part))
        if len(found) != 1:
            where = f" in the paragraph with {part!r}" if part else ""
            raise LookupError(f"{self.name} has {len(found)} rows {name!r}{where}, not one.")
        return str(found[0]).strip()

    def numbers(self, name: str, part: str = "") -> list[str]:
        """Return the numbers of a row, in order.

        >>> Kept("  ours, full   88.5 ms (87.4 to 93.9)    1.000 x\\n  steps: 8,000 at 1e-06").numbers("ours, full")
        ['88.5', '87.4', '93.9', '1.000']
        """
        return NUMBER.findall(self.row(name, part))

    def fields(self, name: str, part: str = "") -> list[str]:
        """Return the fields of a row. They are at least two spaces apart: `23.5 ± 1.0` is one field."""
        return re.split(r"\s{2,}", self.row(name, part))

    def labelled(self, name: str, part: str = "") -> dict[str, str]:
        """Return the fields of a row whose figures have names.

        >>> Kept("digits   auto (default): 96.4  0.9, 0.01: 95.7").labelled("digits")
        {'auto (default)': '96.4', '0.9, 0.01': '95.7'}
        """
        return dict(str(field).rsplit(": ", 1) for field in self.fields(name, part))  # type: ignore[misc]

    def table(self, part: str) -> list[dict[str, str]]:
        """Return the rows below a line of headings; fields are at least two spaces apart.

        >>> Kept("front\\n  filters   T  peak GB\\n       50  10      0.8\\n      100  10      0.9\\n  a remark").table("front")
        [{'filters': '50', 'T': '10', 'peak GB': '0.8'}, {'filters': '100', 'T': '10', 'peak GB': '0.9'}]
        """
        _, heading, *lines = [re.split(r"\s{2,}", line.strip()) for line in self.part(part).splitlines()]
        return [dict(zip(heading, line, strict=True)) for line in lines if len(line) == len(heading)]

    def find(self, pattern: str) -> str:
        """Return what the group of the pattern matches. The pattern must occur exactly once."""
        found = re.findall(pattern, self.text)
        if len(found) != 1:
            raise LookupError(f"{self.name} has {len(found)} places like {pattern!r}, not one.")
        return str(found[0])

    def part(self, heading: str) -> str:
        """Return the only paragraph with `heading` in one of its lines; all paragraphs if `heading` is empty."""
        if not heading:
            return self.text
        found = [text for text in re.split(r"\n\s*\n", self.text) if heading in text]
        if len(found) != 1:
            raise LookupError(f"{self.name} has {len(found)} paragraphs with {heading!r}, not one.")
        return found[0]


@cache
def kept(name: str) -> Kept:
    """Read the file results/NAME.txt."""
    return Kept((RESULTS / f"{name}.txt").read_text(encoding="utf-8"), f"benchmarks/results/{name}.txt")
