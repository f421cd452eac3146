"""The plot of the bench's page: LA and AIA of every method, as SVG."""

from __future__ import annotations

import statistics
from collections.abc import Collection

from _bench_runs import OWN, Run

from amgc.report.style import COLOURS

WIDTH, LEFT, PANEL, GAP, TOP, STEP = 760, 112, 290, 50, 62, 20  # pixels


def bench_plot(runs: Collection[Run], counts: tuple[int, ...]) -> str:
    """Return a panel for each number of tasks: a row per method in the order of LA, a dot for LA and a ring for AIA.

    Methods come in the order of the first panel that has them. A line is twice the standard deviation of LA over seeds long.
    """
    means = {tasks: _means(runs, tasks) for tasks in counts}
    names = list(dict.fromkeys(name for found in means.values() for name in sorted(found, key=lambda name: -found[name][0])))
    most = max((pair[1] for found in means.values() for pair in found.values()), default=10.0)
    scale = PANEL / (10 * (most // 10 + 1))
    bottom = TOP + STEP * len(names)
    parts = [
        f'<circle cx="{LEFT + 6}" cy="16" r="5" fill="#444"/>',
        f'<text x="{LEFT + 16}" y="20" font-size="13" fill="#222">LA</text>',
        f'<circle cx="{LEFT + 56}" cy="16" r="4" fill="#fff" stroke="#444" stroke-width="2"/>',
        f'<text x="{LEFT + 66}" y="20" font-size="13" fill="#222">AIA, %; line: LA ± standard deviation over class orders; '
        f'<tspan fill="{COLOURS[0]}">blue: ours</tspan></text>',
    ]
    for place, name in enumerate(names):
        y, colour = TOP + STEP * place + 14, COLOURS[0] if name in OWN else "#222"
        parts.append(f'<text x="{LEFT - 8}" y="{y}" font-size="13" text-anchor="end" fill="{colour}">{name}</text>')
    for panel, tasks in enumerate(counts):
        left = LEFT + panel * (PANEL + GAP)
        parts.append(f'<text x="{left}" y="{TOP - 14}" font-size="14" font-weight="bold" fill="#222">T = {tasks}</text>')
        for level in range(0, int(PANEL / scale) + 1, 10):
            x = left + level * scale
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="#ddd"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" font-size="12" text-anchor="middle" fill="#555">{level}</text>')
        for place, name in enumerate(names):
            if name not in means[tasks]:
                continue
            (la, aia, deviation), y = means[tasks][name], TOP + STEP * place + 10
            x, end, colour = left + la * scale, left + aia * scale, COLOURS[0] if name in OWN else "#444"
            if deviation:
                ends = f'x1="{x - deviation * scale:.1f}" x2="{x + deviation * scale:.1f}"'
                parts.append(f'<line {ends} y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<circle cx="{end:.1f}" cy="{y}" r="4" fill="#fff" stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}"/>')
    height = bottom + 28
    box = f'viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" role="img"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    title = "<title>LA and AIA of every method of the bench</title>"
    return "\n".join([head, title, f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])


def _means(runs: Collection[Run], tasks: int) -> dict[str, tuple[float, float, float]]:
    """Return the mean LA, the mean AIA and the standard deviation of LA of each method; 0 with one run."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.tasks == tasks:
            found.setdefault(run.method, []).append(run)
    means = {}
    for name, own in found.items():
        las = [float(run.la) for run in own]
        deviation = statistics.stdev(las) if len(las) > 1 else 0.0
        means[name] = statistics.mean(las), statistics.mean(float(run.aia) for run in own), deviation
    return means
