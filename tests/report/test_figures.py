"""Marks in figures agree with the axes, and ellipses with the covariances."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
import pytest
from report.markup import Node, parse

from amgc.report.charts import Heat, Line, heat_map, line_chart
from amgc.report.groups import Spread
from amgc.report.html import render
from amgc.report.sections.plane import draw_planes, ellipse
from amgc.report.style import marker
from amgc.runs.observed import Gaussian, Plane

LINES = [
    Line("steady", 0, [2, 4, 10], [Spread(0.9, None, 1), Spread(0.8, None, 1), Spread(0.75, None, 1)]),
    Line("falling", 1, [2, 4, 10], [Spread(0.9, 0.01, 3), Spread(0.5, 0.05, 3), Spread(0.2, 0.1, 3)]),
]


def scale(values: dict[float, float]) -> np.poly1d:
    """Return the map from pixels to values, by the first and the last tick."""
    (low, start), *_, (high, end) = sorted(values.items())
    return np.poly1d(np.polyfit([start, end], [low, high], 1))


@pytest.mark.parametrize("kind", ["wide", "narrow", "small"])
def test_a_point_lies_where_its_axes_say(kind: Literal["wide", "narrow", "small"]) -> None:
    chart = parse(line_chart("a", "title", "text.", LINES, [2, 4, 10], kind))
    ticks = chart.all("text", class_="tick")
    levels = {float(tick.text): float(tick.attributes["y"]) - 4 for tick in ticks if "end" in tick.attributes["class"]}
    counts = {float(tick.text): float(tick.attributes["x"]) for tick in ticks if "middle" in tick.attributes["class"]}
    to_percent, to_count = scale(levels), scale(counts)
    for line, series in zip(LINES, chart.all("g", class_="series"), strict=True):
        path = series.one("path", class_="line").attributes["d"]
        points = [tuple(map(float, point.split())) for point in path[1:].split("L")]
        assert [to_count(x) for x, _ in points] == pytest.approx(line.seen, abs=0.05)
        assert [to_percent(y) for _, y in points] == pytest.approx([100 * value.mean for value in line.values], abs=0.15)
    (band,) = chart.all("path", class_="band")  # of the line that has deviations
    edges = [to_percent(float(point.split()[1])) for point in band.attributes["d"][1:-1].split("L")]
    assert edges == pytest.approx([91, 55, 30, 10, 45, 89], abs=0.15)


def test_a_heat_map_has_a_value_where_its_row_and_column_meet() -> None:
    heat = Heat(["a", "b"], {(0, 0): 1.0, (1, 0): 0.25}, {(0, 0): "100", (1, 0): "25"}, "row", "column", [])
    first, second = parse(heat_map("h", "title", "text.", heat)).all("rect", class_="cell")
    assert float(second.attributes["y"]) > float(first.attributes["y"])
    assert second.attributes["x"] == first.attributes["x"] == "0"
    assert (first.attributes["fill-opacity"], second.attributes["fill-opacity"]) == ("1.00", "0.28")


def test_many_cells_are_drawn_as_few_paths_that_cover_each_once() -> None:
    values = np.random.RandomState(0).randint(0, 4, (40, 40)) / 3
    cells = {(i, j): float(values[i, j]) for i in range(40) for j in range(40)}
    heat = Heat([str(i) for i in range(40)], cells, {}, "row", "column", [])
    drawn = parse(heat_map("h", "title", "text.", heat))
    found = np.zeros((40, 40))
    for path in drawn.all("path", class_="cell"):
        strength = float(path.attributes["fill-opacity"])
        for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", path.attributes["d"]):
            found[int(y), int(x) : int(x) + int(length)] += strength
    wanted = np.select([values == 0, values < 0.5, values < 1], [0, 0.04 + 0.96 * 0.3, 0.04 + 0.96 * 0.7], 1.0)
    np.testing.assert_allclose(found, wanted, atol=0.006)
    assert heat.cell == 12


def test_an_ellipse_has_the_axes_of_the_covariance() -> None:
    for seed in range(20):
        root = np.random.RandomState(seed).randn(2, 2)
        covariance = root @ root.T
        first, second, turn = ellipse(tuple(map(tuple, covariance)))  # type: ignore[arg-type]
        rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        np.testing.assert_allclose(rotation @ np.diag([first**2, second**2]) @ rotation.T, covariance, atol=1e-9)
        assert first >= second


def test_panels_share_their_axes_and_show_what_is_remembered() -> None:
    enlarged = Gaussian((0.0, 0.0), ((1.0, 0.0), (0.0, 4.0)), ((2.0, 0.0), (0.0, 8.0)))
    planes = [
        (0, Plane((0, 1), (((0.0, 0.0), (1.0, 1.0)), ((5.0, 0.0),)), (enlarged, None))),
        (1, Plane((0, 1), (((10.0, 0.0),), ((5.0, 0.0),)), (enlarged, None))),
    ]
    titles, figures = zip(*draw_planes("p", ("cat", "dog"), planes), strict=True)
    assert titles == ("after task 1", "after task 2")
    drawings = [parse(figure) for figure in figures]
    one, two = drawings
    assert one.one("svg").attributes["viewbox"] == two.one("svg").attributes["viewbox"]
    same = [drawing.all("path", class_="p1")[0].attributes["d"] for drawing in drawings]
    assert same[0] == same[1]  # the same point at the same place
    wide = {kind: [float(e.attributes["rx"]) for e in one.all("ellipse", class_=kind)] for kind in ("kept", "enlarged")}
    assert wide["kept"][1] == pytest.approx(2 * wide["kept"][0], abs=0.1)
    assert wide["enlarged"][0] == pytest.approx(np.sqrt(2) * wide["kept"][0], abs=0.1)
    pixels = float(re.findall(r"M([\d.]+) ", one.all("path", class_="p0")[0].attributes["d"])[1]) - float(
        re.findall(r"M([\d.]+) ", one.all("path", class_="p0")[0].attributes["d"])[0]
    )
    assert wide["kept"][0] == pytest.approx(2 * pixels, abs=0.2)  # the longer axis: two units, a point is one to the right


def test_a_single_far_point_does_not_squeeze_the_others() -> None:
    crowd = tuple((float(x) / 100, 0.0) for x in range(1000))
    (_, svg), = draw_planes("p", ("cat", "dog"), [(0, Plane((0, 1), (crowd, ((1e6, 0.0),)), (None, None)))])  # fmt: skip
    places = [float(x) for x in re.findall(r"M(-?[\d.]+) ", parse(svg).all("path", class_="p0")[0].attributes["d"])]
    assert max(places) - min(places) > 200
    assert float(parse(svg).one("svg").attributes["height"]) == 150  # not flatter than 0.6, though all lie on a line


def test_every_method_of_the_first_fifty_six_looks_different() -> None:
    looks = {render("{{ charts.swatch(place) }}", place=place) for place in range(56)}
    assert len(looks) == 56
    shapes: set[str] = {marker(place, 0, 0, 4.5) for place in range(8)}
    assert len(shapes) == 8


def test_names_are_text_and_nothing_else() -> None:
    name = "</title><script>alert(1)</script>"
    chart: Node = parse(line_chart("a", name, "text.", [Line(name, 0, [1, 2], [Spread(0.5, None, 1)] * 2)], [1, 2], "wide"))
    assert chart.all("script") == [] and name in chart.all("title")[0].text
