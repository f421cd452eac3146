from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from model.drawing import draw
from threads import one_thread as one_thread

from amgc.model import Model


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Model]:
    """Return a function that creates a small model of some classes of drawings."""

    def made(*kinds: str, name: str = "model", count: int = 30, **how: object) -> Model:
        model = Model.create(tmp_path / name, **{"filters": 6, **how})
        if kinds:
            model.learn_all({kind: draw(kind, count) for kind in kinds})
        return model

    return made


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
