"""Drawn colour images of simple classes, each with a direction and a hue, and comparisons of models."""

from __future__ import annotations

from typing import Any

import numpy as np

from amgc.model import Model

KINDS = ("cat", "dog", "owl", "fox", "bee")


def draw(kind: str, count: int = 30, seed: int = 0, side: int = 16) -> np.ndarray:
    """Return `count` images of stripes in noise, (count, side, side, 3) uint8."""
    place = sum(kind.encode()) % 31
    rng = np.random.default_rng([seed, place])
    y, x = np.mgrid[:side, :side] / side
    angle, hue = place * 0.7, np.random.default_rng(place).uniform(-12, 12, 3)
    phase = rng.uniform(0, 2 * np.pi, (count, 1, 1))
    waves = np.sin(2 * np.pi * 2.5 * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    level = 128 + 24 * waves[..., None] + hue + rng.normal(0, 45, (count, side, side, 3))
    return np.clip(level, 0, 255).astype(np.uint8)


def answers(model: Model, *kinds: str, count: int = 8) -> list[tuple[Any, ...]]:
    """Return the answers, fits and probabilities of a model for new drawings, for bitwise comparison."""
    shown = np.concatenate([draw(kind, count, seed=99) for kind in kinds or KINDS])
    found = model.predict(shown, top=100)
    return [(one.label, one.fit, dict(sorted(zip(one.labels, one.probabilities, strict=True)))) for one in found]


def alike(one: Model, two: Model, tolerance: float = 1e-5) -> bool:
    """Return whether answers, fits and probabilities agree up to rounding."""
    for (label, fit, shares), (same_label, same_fit, same_shares) in zip(answers(one), answers(two), strict=True):
        if label != same_label or abs(fit - same_fit) > tolerance or shares.keys() != same_shares.keys():
            return False
        if max(abs(shares[name] - same_shares[name]) for name in shares) > tolerance:
            return False
    return True
