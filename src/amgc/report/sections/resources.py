"""Time, peak memory and stored bytes of each method."""

from __future__ import annotations

from markupsafe import Markup

from amgc.report.html import bar, method_cell
from amgc.report.sections import Comparison, Table, html_table, render, section
from amgc.text import DASH, byte_size, duration


@section("resources", "Time and memory", order=90)
def resources(comparison: Comparison) -> Markup | None:
    if not comparison.begun:
        return None
    phases = list(dict.fromkeys(name for method in comparison.begun for name in method.seconds))
    longest = max(sum(method.seconds.values()) for method in comparison.begun)
    largest = max(method.kept_bytes[1] for method in comparison.begun)
    rows = []
    for method in comparison.begun:
        seconds, (total, per_class) = method.seconds, method.kept_bytes
        widths = [100 * seconds.get(name, 0.0) / max(longest, 1e-9) for name in phases]
        rows.append([
            method_cell(method),
            bar(duration(sum(seconds.values())), widths),
            *[duration(seconds[name]) if name in seconds else DASH for name in phases],
            DASH if method.peak_bytes is None else byte_size(method.peak_bytes),
            bar(byte_size(per_class), [100 * per_class / max(largest, 1)]),
            byte_size(total),
        ])  # fmt: skip
    header = ["method", "time", *phases, "peak memory", "stored per class", "stored in total"]
    return render(
        TEMPLATE,
        table=html_table(Table(header, rows, "Time and memory"), main=True, classes={1: "barred", len(header) - 2: "barred"}),
        phases=phases,
        several_seeds=comparison.several_seeds,
        unfinished=any(not method.finished for method in comparison.begun),
    )


TEMPLATE = """
<p>Time of a whole run{% if several_seeds %}, mean over the seeds{% endif %}; peak memory of the process, including PyTorch and
images; and what the method stores of the classes after training.</p>
<ul class="legend">{% for phase in phases %}
  <li><span class="track key"><span class="t{{ loop.index0 % 4 }}"></span></span> {{ phase }}</li>{% endfor %}</ul>
{{ table }}
{% if unfinished %}<p class="soft">For unfinished runs, time and memory so far.</p>{% endif %}
"""
