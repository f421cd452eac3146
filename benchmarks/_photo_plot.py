"""The plot of benchmarks/photos.py's accuracies on the results page, as SVG."""

from __future__ import annotations

from _kept import Kept

from amgc.report.style import COLOURS

HEADS = "heads, {}, 664 features"
# Lines: label, the paragraph of the kept file (with the name of the set), its row, and the look.
LINES = (
    ("ours", HEADS, "ours", f'stroke="{COLOURS[0]}" stroke-width="3"'),
    ("logistic regression", HEADS, "logistic regression", f'stroke="{COLOURS[1]}" stroke-width="2"'),
    ("shrunk LDA", HEADS, "shrunk LDA", f'stroke="{COLOURS[2]}" stroke-width="2"'),
    ("nearest mean (cosine)", HEADS, "cosine to the class means", f'stroke="{COLOURS[3]}" stroke-width="2"'),
    ("ours on patches", "features, {}", "patches", 'stroke="#777" stroke-width="2" stroke-dasharray="6 4"'),
)
WIDTH, PANEL, TOP, HEIGHT, LEFT, STEP = 760, 300, 56, 240, 44, 44  # pixels


def photos_plot(kept: Kept) -> str:
    """Return accuracy over photos a class, one panel for each set."""
    parts = []
    for place, (label, _, _, look) in enumerate(LINES):
        x = LEFT + (0, 75, 235, 350, 530)[place]
        parts.append(f'<line x1="{x}" x2="{x + 24}" y1="16" y2="16" {look}/>')
        parts.append(f'<text x="{x + 30}" y="20" font-size="13" fill="#222">{label}</text>')
    for panel, name in enumerate(("flowers", "leaves")):
        left = LEFT + panel * (PANEL + 76)
        rows = {label: (kept.table(part.format(name)), row, look) for label, part, row, look in LINES}
        counts = [count for count in rows["ours"][0][0] if count != "photos a class"]
        lowest = min(value for table, row, _ in rows.values() for _, value in _values(table, row, counts))
        low = 10 * int(lowest // 10)
        parts.append(f'<text x="{left}" y="{TOP - 14}" font-size="14" font-weight="bold" fill="#222">{name}</text>')
        for level in range(low, 101, 10):
            y = _height(level, low)
            parts.append(f'<line x1="{left}" x2="{left + PANEL}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" font-size="12" text-anchor="end" fill="#555">{level}</text>')
        for place, count in enumerate(counts):
            x, y = left + 18 + place * STEP, TOP + HEIGHT + 18
            parts.append(f'<text x="{x}" y="{y}" font-size="12" text-anchor="middle" fill="#555">{count}</text>')
        for table, row, look in reversed(rows.values()):  # ours last, on top
            points = [f"{left + 18 + place * STEP},{_height(value, low):.1f}" for place, value in _values(table, row, counts)]
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" {look}/>')
    height = TOP + HEIGHT + 46
    note = "photos a class; accuracy on test photos in percent, mean of five draws; features of lite0 except where named"
    parts.append(f'<text x="{WIDTH / 2:.0f}" y="{height - 8}" font-size="12" text-anchor="middle" fill="#555">{note}</text>')
    box = f'viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" role="img"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    title = "<title>Accuracy on flowers and leaves with 1 to all photos a class</title>"
    return "\n".join([head, title, f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])


def _values(table: list[dict[str, str]], name: str, counts: list[str]) -> list[tuple[int, float]]:
    """Return the places of the numbers of photos at which a row has a value, with the values."""
    row = next(each for each in table if each["photos a class"] == name)
    return [(place, float(row[count].split()[0])) for place, count in enumerate(counts) if row[count] != "-"]


def _height(value: float, low: int) -> float:
    return TOP + HEIGHT * (100 - value) / (100 - low)
