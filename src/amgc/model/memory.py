"""How much memory the workers and the driver of a sharded lesson need, before it begins."""

from __future__ import annotations

import torch

from amgc.core.scatter import ROWS
from amgc.core.spread import Spread
from amgc.features.extractor import Extractor
from amgc.model.changes import Lesson
from amgc.model.extractors import PIXELS
from amgc.model.parts import CHUNK
from amgc.model.state import State

PROCESS = 350 << 20  # bytes of a process with torch imported, measured on Linux
IMAGE = 1 << 20  # bytes of an encoded image, generously
ACTIVATIONS = 40  # times the pixels of a batch, in float32: what a network holds at a time


def statistics(state: State, classes: int, dtype: torch.dtype) -> int:
    """Return the bytes of the statistics of so many classes; of a shared covariance one matrix, whatever their number."""
    own = Lesson.begin(state).classifier
    assert state.extractor is not None
    dim = state.extractor.dim
    shapes = Spread(own.covariance, dim, min(own.rank, dim), dtype).shapes().values()
    each = 8 * dim + dtype.itemsize * sum(torch.Size(shape).numel() for shape in shapes)
    matrix = dtype.itemsize * dim * (dim + ROWS) if own.covariance == "shared" else 0
    return classes * each + matrix


def of_worker(state: State, classes: int = CHUNK) -> int:
    """Return the bytes of a worker for shards with so many classes: process, extractor, a chunk of images, and twice the
    statistics of a shard, which are packed to be sent.
    """
    own: int = PROCESS + 2 * statistics(state, classes, torch.float32)
    if not isinstance(state.extractor, Extractor):
        return own
    weights = sum(int(tensor.nbytes) for tensor in state.extractor.state_dict().values())
    return own + weights + CHUNK * IMAGE + 4 * ACTIVATIONS * PIXELS


def of_driver(state: State, classes: int = 1000) -> int:
    """Return the bytes of the driver for so many classes: the sum in float64, one part, and the model's statistics."""
    return PROCESS + statistics(state, classes, torch.float64) + 3 * statistics(state, classes, torch.float32)
