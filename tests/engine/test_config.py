"""Configs are saved as JSON and loaded, and errors name unknown or invalid settings."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import tiny

from amgc.engine.config import Config, Machine
from amgc.methods.contract import Phase
from amgc.methods.registry import find, methods
from amgc.options import merged

CHANGED = {
    "data": "cifar100",
    "data_options": {"folder": "/data", "memory": 5},
    "features": "resnet18",
    "features_options": {"width": 0.5},
    "sizes": (2, 3),
    "classes": ("b", "a", "c", "d", "é"),
    "natural_order": True,
    "seed": 7,
    "machine": {"devices": 2, "start": "there", "precision": "bf16-mixed"},
}


@pytest.mark.parametrize("changes", [{}, CHANGED], ids=["defaults", "changed"])
@pytest.mark.parametrize("name", methods())
def test_a_config_comes_back_from_json_as_it_was(name: str, changes: dict[str, Any]) -> None:
    config = tiny.config(name, **changes)
    back = Config.from_json(json.loads(json.dumps(config.to_json())))
    assert back == config and type(back.hyper) is type(config.hyper)
    assert isinstance(back.hyper.first.milestones, tuple)


def test_a_setting_of_a_newer_version_is_named() -> None:
    values = tiny.config().to_json() | {"novelty": 1, "another": 2}
    with pytest.raises(ValueError, match="there is no setting 'novelty'"):
        Config.from_json(values)


def test_a_method_that_does_not_exist_is_named_with_a_near_one() -> None:
    with pytest.raises(ValueError, match=r"no method 'amcg'; did you mean 'amgc'"):
        Config.from_json(tiny.config().to_json() | {"method": "amcg"})


def test_chosen_fields_replace_the_defaults_and_nested_ones_too() -> None:
    hyper = find("amgc").hyper
    changed = merged(hyper, {"margin": 1, "first": {"epochs": 3, "milestones": [0, 0.5]}})
    assert changed == replace(hyper, margin=1.0, first=replace(hyper.first, epochs=3, milestones=(0.0, 0.5)))
    assert type(changed.margin) is float
    assert merged(hyper, {}) == hyper


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"margn": 1}, "there is no setting 'margn'; did you mean 'margin'?"),
        ({"first": {"epoch": 1}}, "there is no setting 'first.epoch'; did you mean 'epochs'?"),
        ({"xyz": 1}, "there is no setting 'xyz'; there are first, later, margin"),
        ({"margin": "0.4"}, "margin must be float, not '0.4'"),
        ({"margin": True}, "margin must be float, not True"),
        ({"first": {"epochs": 2.5}}, "first.epochs must be int, not 2.5"),
        ({"first": {"epochs": True}}, "first.epochs must be int, not True"),
        ({"balance": "both"}, "balance must be one of two_means, per_class; not 'both'"),
        ({"first": {"milestones": 0.5}}, "first.milestones must be a list, not 0.5"),
        ({"first": {"milestones": ["a"]}}, "first.milestones[0] must be float, not 'a'"),
        ({"first": 3}, "first must be a mapping, not 3"),
        ({"margin": -1.0}, "margin must be finite and not negative, not -1.0"),
        ({"first": {"batch_size": 0}}, "batch_size must be from 1 to 1,000,000, not 0"),
    ],
)
def test_what_does_not_fit_is_named(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        merged(find("amgc").hyper, chosen)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("method", "chosen", "message"),
    [
        ("fecam", {"correlation": 1}, "correlation must be bool, not 1"),
        ("dbgc", {"softmax": "both"}, "softmax must be one of global, local; not 'both'"),
        ("dbgc", {"decay": 1.0}, "decay must be at least 0 and below 1, not 1.0"),
        ("dbgc", {"soft_margin": -1.0}, "soft_margin must be finite and not negative"),
        ("dbgc", {"margin": -1.0}, "margin must be finite and not negative"),
        ("amgc-exact", {"margin": -1.0}, "margin must be finite and not negative"),
        ("amgc-exact", {"ridge": -1.0}, "ridge must be finite and not negative, not -1.0"),
        ("amgc-exact", {"later": {"epochs": 3, "extractor_lr": 0.1}}, "the network is frozen after task 1"),
        ("amgc-closed", {"ridge": -1.0}, "ridge must be finite and not negative, not -1.0"),
        ("amgc-closed", {"margin": 0.1}, "there is no setting 'margin'"),
        ("amgc", {"softmax": "local"}, "there is no setting 'softmax'"),
    ],
)
def test_what_does_not_fit_other_methods_is_named(method: str, chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        merged(find(method).hyper, chosen)
    assert message in str(caught.value)


def test_a_setting_that_may_be_none_takes_none_and_its_type() -> None:
    assert merged(Machine(), {"start": None}).start is None and merged(Machine(), {"start": "there"}).start == "there"
    with pytest.raises(ValueError, match="start must be str or None, not 3"):
        merged(Machine(), {"start": 3})


@pytest.mark.parametrize(
    "wrong", [{"devices": 0}, {"threads": -1}, {"checkpoint_minutes": -1.0}, {"checkpoint_minutes": float("nan")}]
)
def test_a_machine_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        merged(Machine(), wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": -1}, {"head_lr": float("nan")}, {"extractor_lr": float("inf")}, {"momentum": -0.1}, {"milestones": (2.0,)}],
)
def test_a_phase_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Phase(**wrong)


def test_reading_a_config_does_not_import_torch() -> None:
    code = "import sys; from amgc.engine.config import Config; from amgc.methods.registry import methods; methods(); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
