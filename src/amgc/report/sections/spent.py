"""Time, peak memory and stored bytes of each method."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from amgc.report.sections import Comparison, render, section
from amgc.text import DASH, byte_size, duration


@section("spent", "Time and memory", order=90)
def spent(comparison: Comparison) -> Markup | None:
    if not comparison.begun:
        return None
    phases = list(dict.fromkeys(name for method in comparison.begun for name in method.seconds))
    rows: list[dict[str, Any]] = []
    for method in comparison.begun:
        seconds = method.seconds
        total, per_class = method.kept_bytes
        rows.append({
            "method": method,
            "seconds": [seconds.get(name, 0.0) for name in phases],
            "total": sum(seconds.values()),
            "times": [duration(seconds[name]) if name in seconds else DASH for name in phases],
            "peak": DASH if method.peak_bytes is None else byte_size(method.peak_bytes),
            "kept": total,
            "per_class": per_class,
        })  # fmt: skip
    return render(
        TEMPLATE,
        comparison=comparison,
        phases=phases,
        rows=rows,
        time_scale=100 / max(max(row["total"] for row in rows), 1e-9),
        kept_scale=100 / max(max(row["per_class"] for row in rows), 1),
        unfinished=any(not method.finished for method in comparison.begun),
        duration=duration,
        byte_size=byte_size,
    )


TEMPLATE = """
<p>Time of a whole run{% if comparison.several_seeds %}, mean over the seeds{% endif %}; peak memory of the process, including
PyTorch and images; and what the method stores of the classes after training.</p>
<ul class="legend">{% for phase in phases %}
  <li><span class="track key"><span class="t{{ loop.index0 % 4 }}"></span></span> {{ phase }}</li>{% endfor %}</ul>
<div class="scroll" tabindex="0" role="region" aria-label="Time and memory of {{ comparison.data }}">
<table class="main">
  <caption class="aside">Time and memory</caption>
  <thead><tr><th scope="col">method</th><th scope="col" class="barred">time</th>
    {% for phase in phases %}<th scope="col">{{ phase }}</th>{% endfor %}
    <th scope="col">peak memory</th>
    <th scope="col" class="barred">stored per class</th><th scope="col">stored in total</th></tr>
  </thead>
  <tbody>
  {% for row in rows %}
  <tr>
    <th scope="row">{{ parts.method(row.method) }}</th>
    <td class="barred"><span class="amount">{{ duration(row.total) }}</span><span class="track" aria-hidden="true">
      {%- for seconds in row.seconds -%}
      <span class="t{{ loop.index0 % 4 }}" style="width:{{ "%.2f"|format(seconds * time_scale) }}%"></span>
      {%- endfor %}</span></td>
    {% for time in row.times %}<td>{{ time }}</td>{% endfor %}
    <td>{{ row.peak }}</td>
    <td class="barred"><span class="amount">{{ byte_size(row.per_class) }}</span><span class="track" aria-hidden="true">
      <span style="width:{{ "%.2f"|format(row.per_class * kept_scale) }}%"></span></span></td>
    <td>{{ byte_size(row.kept) }}</td>
  </tr>
  {% endfor %}
  </tbody>
</table>
</div>
{% if unfinished %}<p class="soft">For unfinished runs, time and memory so far.</p>{% endif %}
"""
