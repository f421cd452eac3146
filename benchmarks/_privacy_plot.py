"""The plot of benchmarks/privacy.py's accuracies on the results page, as SVG."""

from __future__ import annotations

from collections.abc import Callable

from _kept import Kept

from amgc.report.style import COLOURS

PANELS = {"CIFAR-100, ResNet-18": "accuracy", "flowers, lite0": "flowers", "leaves, lite0": "leaves"}  # and the files' names
PLACES = ("ε = 0.5", "ε = 1", "ε = 2", "ε = 8", "no noise")
LEFT, PANEL, GAP, TOP, HEIGHT = 40, 210, 56, 50, 220  # pixels


def privacy_plot(kept: Callable[[str], Kept]) -> str:
    """Return accuracy over ε, one panel for each set and one line for each number of samples a class."""
    parts = []
    for panel, (name, file) in enumerate(PANELS.items()):
        left, step = LEFT + panel * (PANEL + GAP), PANEL / len(PLACES)
        rows = {row.pop("samples a class"): row for row in kept(f"privacy_{file}").table(f"accuracy, {name}")}
        parts.append(f'<text x="{left}" y="18" font-size="14" font-weight="bold" fill="#222">{name}</text>')
        for level in range(0, 101, 20):
            y = _height(level)
            parts.append(f'<line x1="{left}" x2="{left + PANEL}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" font-size="12" text-anchor="end" fill="#555">{level}</text>')
        for place, way in enumerate(PLACES):
            x, shown = left + (place + 0.5) * step, way.removeprefix("ε = ").replace("no noise", "∞")
            parts.append(
                f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" font-size="12" text-anchor="middle" fill="#555">{shown}</text>'
            )
        for number, count in enumerate(rows[PLACES[0]]):
            values = [float(rows[way][count].split()[0]) for way in PLACES]
            points = " ".join(f"{left + (place + 0.5) * step:.1f},{_height(value):.1f}" for place, value in enumerate(values))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[number]}" stroke-width="2"/>')
            x = left + number * 52
            parts.append(f'<line x1="{x}" x2="{x + 16}" y1="34" y2="34" stroke="{COLOURS[number]}" stroke-width="2"/>')
            parts.append(f'<text x="{x + 20}" y="38" font-size="12" fill="#222">{count}</text>')
    width, height = LEFT + len(PANELS) * (PANEL + GAP), TOP + HEIGHT + 46
    note = "ε of the privacy budget (∞: no noise); test accuracy in percent; lines: samples a class"
    parts.append(f'<text x="{width / 2:.0f}" y="{height - 8}" font-size="12" text-anchor="middle" fill="#555">{note}</text>')
    box = f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" role="img"'
    title = "<title>Accuracy against the privacy budget, by number of samples a class</title>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join([head, title, f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])


def _height(value: float) -> float:
    return TOP + HEIGHT * (100 - value) / 100
