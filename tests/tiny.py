"""Runs of a tenth of a second: a generated data set, a network with eight features, an epoch or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amgc.data import Dataset, Images
from amgc.engine import checkpoint
from amgc.engine.config import Config, Machine
from amgc.methods import registry
from amgc.methods.contract import Phase
from amgc.methods.registry import find
from amgc.runs.folder import CHECKPOINT

DIM, TESTS = 8, 3
SOME_METHODS = ["amgc", "finetune", "ranpac"]  # class statistics, a network alone, matrices: for what the engine does for all
# Always tested, and with all kernels. The others share their code or their kinds of state: `make test-all` tests them too.
FAMILIES = ("acil", "adagauss", "amgc", "amgc-exact", "ewc", "fecam", "finetune", "lda", "ldc", "pass", "ranpac", "sbgc")
PHASES = ("first", "later", "second")


def variant(monkeypatch: pytest.MonkeyPatch, method: str, **members: Any) -> None:
    """Replace a registered method, for one test, by a subclass with these members.

    Members of the protocols in `amgc.methods.optional` cannot be patched into a class: Python caches what satisfies a protocol.
    """
    entry = find(method)
    kind = type("Variant", (entry.kind,), members)
    monkeypatch.setitem(registry.METHODS.entries, method, replace(entry, make=kind))


def images(
    counts: Sequence[int] = (9,) * 6, seed: int = 0, prefix: str = "class", shape: tuple[int, ...] = (1, 8, 8)
) -> Dataset:
    """Return `counts[k]` training images of class k, a pattern with noise. The images of a class depend on that class only."""
    train, test = [], []
    for label, count in enumerate(counts):
        rng = np.random.default_rng([seed, label])
        pattern = rng.uniform(40, 215, shape)
        noisy = np.clip(rng.normal(pattern, 25, (count + TESTS, *shape)), 0, 255)
        noisy = noisy.astype(np.uint8) if len(shape) == 3 else (noisy / 100).astype(np.float32)
        train.append(noisy[:count])
        test.append(noisy[count:])
    names = tuple(f"{prefix} {label}" for label in range(len(counts)))
    labels = np.repeat(np.arange(len(counts)), counts), np.repeat(np.arange(len(counts)), TESTS)
    scale: dict[str, Any] = {"mean": (0.5,) * shape[0], "std": (0.25,) * shape[0]} if len(shape) == 3 else {}
    return Dataset(
        Images.of(np.concatenate(train), labels[0]), Images.of(np.concatenate(test), labels[1]), names, "tiny", **scale
    )


def vectors(counts: Sequence[int] = (9,) * 6, seed: int = 0, dim: int = 5) -> Dataset:
    """Return a data set of feature vectors."""
    return images(counts, seed, shape=(dim,))


def config(method: str = "amgc", *, machine: dict[str, Any] | None = None, **changes: Any) -> Config:
    """Return the config of a short run of a registered method in which everything trained changes visibly.

    `first`, `later` and `hyper` are changes to the phases and to the hyper-parameters; the rest are fields of the config.
    """
    entry = find(method)
    first, later, hyper = (changes.pop(name, {}) for name in ("first", "later", "hyper"))
    phases = {f.name: _short(getattr(entry.hyper, f.name)) for f in fields(entry.hyper) if f.name in PHASES}
    short = replace(entry.hyper, **phases)
    short = replace(short, first=replace(short.first, **first), later=replace(short.later, **later))
    split = {} if {"tasks", "sizes", "first_classes", "increment"} & set(changes) else {"tasks": 3}
    machine = {"device": "cpu", "checkpoint_minutes": 1000.0} | (machine or {})
    options = changes.pop("features_options", {"dim": DIM})
    return Config(
        method, replace(short, **hyper), features_options=options, machine=Machine(**machine), **(split | {"seed": 1} | changes)
    )


def _short(phase: Phase) -> Phase:
    """Shorten a phase to two epochs of three steps, unless the method trains less."""
    return replace(
        phase,
        epochs=min(phase.epochs, 2),
        batch_size=7,
        extractor_lr=phase.extractor_lr and max(phase.extractor_lr, 1e-3),
    )


def saved(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the checkpoint of a run, without times."""
    header, tensors = checkpoint.read(folder / CHECKPOINT)
    header.pop("seconds")
    header["lines"] = untimed(header["lines"])
    return header, tensors


def untimed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in ("seconds", "peak_bytes")} for line in lines]


def assert_same_bits(one: Path, other: Path) -> None:
    """Assert that two runs have bit-identical networks, heads, states, metrics and observations for the report."""
    (header, tensors), (others_header, others) = saved(one), saved(other)
    assert header == others_header
    assert_equal(tensors, others)
    assert observed(one) == observed(other)


def observed(folder: Path) -> dict[str, bytes]:
    """Return what `engine.observed` wrote, by file name."""
    return {path.name: path.read_bytes() for path in (folder / "observed").iterdir()}


def assert_equal(tensors: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    assert tensors.keys() == others.keys()
    different = [name for name, tensor in tensors.items() if not identical(tensor, others[name])]
    assert not different, f"{different} differ"


def identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether values are bit-identical, including the sign of zero."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.detach().contiguous().numpy().tobytes() == other.detach().contiguous().numpy().tobytes()
