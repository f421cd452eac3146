"""The report as one HTML page, for `amgc report`. Nothing here imports torch."""

from amgc.report.page.write import render, write_report

__all__ = ["render", "write_report"]
