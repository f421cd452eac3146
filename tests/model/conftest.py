from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from model.drawing import draw

from amgc.model import Model


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Model]:
    """A small model in a folder of the test's own that knows some kinds of drawing."""

    def made(*kinds: str, name: str = "model", count: int = 30, **how: object) -> Model:
        model = Model.create(tmp_path / name, **{"filters": 6, **how})
        if kinds:
            model.learn_all({kind: draw(kind, count) for kind in kinds})
        return model

    return made


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
