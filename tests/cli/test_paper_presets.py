"""The presets `paper-*`: every method on every data set, with its published settings."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amgc.cli import presets
from amgc.cli.flags import parse
from amgc.cli.run import paper
from amgc.engine.config import Config
from amgc.engine.training import rate
from amgc.methods.registry import find, methods
from amgc.report.paper import departures, figures, sizes_of
from amgc.runs import Metrics, RunRecord

IMAGES = {"cifar100": 50_000, "tiny-imagenet": 100_000, "imagenet-subset": 129_000}  # the last one about
PAPERS = [f"paper-{data}-t{tasks}" for data in IMAGES for tasks in (10, 20)]
COMPARED = ("ewc", "il2a", "pass", "ssre", "fetril", "fecam", "amgc")  # the rows of Table 1
ABLATED = ("sblc", "sbndbolc", "sbgc", "dblc", "dbgc", "dbgc-sm")  # the other rows of Tables 2 and 3

# What these presets say about single methods, in full: everything else is the method's own default.
SAID = {
    "cifar100": {"ewc"},
    "tiny-imagenet": {"ewc", "il2a", "sdc", "adc", "ldc", "dpcr", "amgc-drift", "amgc-drift-ve"},
    "imagenet-subset": {"ewc", "acil", "ds-al", "pass", "dpcr", "efc", "efc++"},
}


def data_of(name: str) -> str:
    return name.removeprefix("paper-").rpartition("-t")[0]


def hyper(name: str, method: str) -> Any:
    return presets.named(name).hyper_of(find(method))


def test_there_is_a_preset_for_each_column_of_table_1() -> None:
    assert sorted(PAPERS) == [name for name in presets.names() if name.startswith("paper-")]


@pytest.mark.parametrize("method", sorted(methods()))
@pytest.mark.parametrize("name", PAPERS)
def test_every_method_has_its_own_published_settings(name: str, method: str) -> None:
    """As a config that can be run, saved and loaded."""
    found = presets.named(name)
    assert found.hyper == {} and found.data == data_of(name)
    assert (hyper(name, method) == find(method).hyper) == (method not in SAID[data_of(name)])
    config = Config(method, hyper(name, method), data=found.data, features=found.features, tasks=found.tasks)
    assert Config.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("name", "chosen"),
    [*zip(PAPERS, [["pass"], ["ewc"], ["il2a"], ["fecam"], ["ds-al"], ["dbgc"]], strict=True), (PAPERS[0], ["lwf", "fetril"])],
)
def test_the_command_line_takes_any_method_and_finds_the_papers_figures(name: str, chosen: list[str]) -> None:
    parsed = parse([name, "--method", *chosen])
    assert list(parsed.configs) == chosen
    for method, config in parsed.configs.items():
        assert (config.data, config.features, f"t{config.tasks}") == (data_of(name), "resnet18", name.rpartition("-")[2])
        assert (config.method, config.seed, config.hyper) == (method, 1993, hyper(name, method))
    figures = presets.named(name).paper
    assert paper(parsed) == {method: figures[method] for method in chosen if method in figures}
    assert (paper(parsed) == {}) == (chosen == ["ds-al"])


@pytest.mark.parametrize("name", PAPERS)
def test_table_1_stands_beside_its_methods_and_tables_2_and_3_where_they_were_measured(name: str) -> None:
    ablated = ABLATED if name.endswith("t20") and "tiny" not in name else ()
    figures = presets.named(name).paper
    assert tuple(figures) == (*COMPARED, *ablated)
    assert all(set(pair) == {"LA", "AIA"} and 0 < pair["LA"] <= pair["AIA"] < 60 for pair in figures.values())


@pytest.mark.parametrize("name", [name for name in presets.names() if presets.named(name).paper])
def test_every_preset_has_the_numbers_that_the_tables_show(name: str) -> None:
    """Both the paper's presets, and presets that repeat their numbers."""
    preset = presets.named(name)
    assert preset.tasks is not None
    for method, pair in preset.paper.items():
        named = method.removesuffix("-closed")  # compared with the paper's AMGC
        shown = [figures(table, named, preset.data, preset.tasks) for table in (1, 2, 3)]
        assert next(cell for cell in shown if cell) == pair


@pytest.mark.parametrize("name", PAPERS)
def test_a_run_of_the_papers_preset_departs_from_nothing(name: str, tmp_path: Path) -> None:
    for method, config in parse([name, "--method", *methods()]).configs.items():
        plain = json.loads(json.dumps(config.to_json()))
        sizes = sizes_of(config.data, config.tasks or 0)
        run = RunRecord(plain, (), sizes, "", {}, None, "", (), path=tmp_path, metrics=Metrics([1], [], []), lines=())
        assert departures(run) == []
        plain["features_options"]["width"] = 0.5
        plain["hyper"]["first"]["epochs"] = 7
        assert [text.split()[:2] for text in departures(run)] == [["width", "0.5"], ["first.epochs", "7"]], method


@pytest.mark.parametrize("name", PAPERS)
def test_the_cost_counts_what_amgc_trains_on(name: str) -> None:
    found, hyper = presets.named(name), find("amgc").hyper
    assert found.tasks is not None
    images = IMAGES[found.data] // found.tasks
    passes = hyper.first.epochs * images + (found.tasks - 1) * hyper.later.epochs * images
    stated = re.match(r"amgc: (?:about )?([\d.]+) million image passes \((.*?)\)", found.cost)
    assert stated and float(stated[1]) == pytest.approx(passes / 1e6, abs=0.5)
    assert stated[2] == f"400 × {images:,} + {found.tasks - 1} × 200 × {images:,}"


@pytest.mark.parametrize("name", PAPERS)
def test_the_paper_s_ewc_is_that_of_pycil(name: str) -> None:
    assert hyper(name, "ewc") == replace(find("ewc").hyper, fisher="batch")


def test_il2a_on_tiny_imagenet_is_that_of_its_own_script() -> None:
    own, default = hyper("paper-tiny-imagenet-t10", "il2a"), find("il2a").hyper
    larger = replace(default.first, batch_size=100)
    assert own == replace(default, band=0.2, first=larger, later=larger)


def test_analytic_methods_on_imagenet_are_wider() -> None:
    assert hyper("paper-imagenet-subset-t20", "acil") == replace(find("acil").hyper, expansion=16384)
    assert hyper("paper-imagenet-subset-t20", "ds-al") == replace(find("ds-al").hyper, expansion=16384, ratio=1.5)


@pytest.mark.parametrize("method", ["sdc", "adc", "ldc", "dpcr", "amgc-drift", "amgc-drift-ve"])
def test_drift_compensation_is_trained_as_its_official_lwf_says_for_each_data_set(method: str) -> None:
    """Tiny-ImageNet: lower learning rates. DPCR also has other ridges, and half the distillation on ImageNet-Subset."""
    default = find(method).hyper
    slow = replace(default, later=replace(default.later, extractor_lr=1e-3, head_lr=1e-3))
    tiny = replace(slow, ridge=2000.0) if method == "dpcr" else slow
    subset = replace(default, ridge=2000.0, distillation=5.0) if method == "dpcr" else default
    for tasks in (10, 20):
        assert hyper(f"paper-tiny-imagenet-t{tasks}", method) == tiny
        assert hyper(f"paper-imagenet-subset-t{tasks}", method) == subset


@pytest.mark.parametrize("method", ["efc", "efc++"])
def test_efc_on_imagenet_has_the_settings_of_its_optimizer_manager(method: str) -> None:
    own, default = hyper("paper-imagenet-subset-t10", method), find(method).hyper
    falls = [epoch for epoch in range(1, own.first.epochs) if rate(own.first, epoch) < rate(own.first, epoch - 1)]
    assert (own.first.optimizer, own.first.extractor_lr, own.first.weight_decay, falls) == ("sgd", 0.1, 5e-4, [80, 120, 150])
    assert own == replace(
        default, rotations=False, first=own.first, later=replace(default.later, extractor_lr=1e-5, head_lr=1e-4)
    )


def test_pass_on_imagenet_has_the_schedules_of_its_own_script() -> None:
    own = hyper("paper-imagenet-subset-t10", "pass")
    falls = {
        phase: [epoch for epoch in range(1, phase.epochs) if rate(phase, epoch) < rate(phase, epoch - 1)]
        for phase in (own.first, own.later)
    }
    assert list(falls.values()) == [[80, 120, 150], [45, 90]]
    first, later = own.first, own.later
    assert (first.optimizer, first.epochs, first.extractor_lr, first.weight_decay, first.batch_size) == (
        "sgd",
        160,
        0.1,
        5e-4,
        64,
    )
    assert (later.optimizer, later.epochs, later.extractor_lr, later.weight_decay, later.batch_size) == (
        "adam",
        100,
        1e-3,
        2e-4,
        64,
    )
    assert own.temperature == 1.0
