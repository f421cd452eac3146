"""Pictures of any size to the pixels that the extractor sees, as Pillow makes them, to the bit.

Pillow's bilinear resizing is two matrix products, first across, then down. Its weights are a triangle as wide as the factor
that the picture shrinks by, rounded to 22 bits; after each product it rounds to whole numbers. All of this is exact in float64,
and the weights follow from the picture's size, so they are computed in the graph.
"""

from __future__ import annotations

import numpy as np

from amgc.model.export.graph import Graph
from amgc.model.pictures import Frame

BITS = 22  # Pillow's PRECISION_BITS
GREY, GREY_BITS = (19595, 38470, 7471), 16  # its weights of red, green and blue, in 65536ths


def framed(graph: Graph, images: str, frame: Frame) -> str:
    """uint8 (n, height, width, 3) to whole numbers in float64, (n, channels, side, side): `Frame.pixels` as a graph."""
    shape = graph.add("Shape", images)
    height, width = (graph.add("Gather", shape, np.int64(axis)) for axis in (1, 2))
    shorter = graph.add("Min", height, width)
    down, across = (_weights(graph, length, shorter, frame) for length in (height, width))
    pixels = graph.cast(graph.add("Transpose", images, perm=[0, 3, 1, 2]), np.float64)
    pixels = _rounded(graph, graph.add("MatMul", pixels, graph.add("Transpose", across, perm=[1, 0])), BITS)
    pixels = _rounded(graph, graph.add("MatMul", down, pixels), BITS)
    if frame.channels == 1:
        weighted = graph.add("Mul", pixels, np.array(GREY, np.float64).reshape(3, 1, 1))
        pixels = _rounded(graph, graph.add("ReduceSum", weighted, np.array([1])), GREY_BITS)
    return pixels


def _weights(graph: Graph, length: str, shorter: str, frame: Frame) -> str:
    """Along one axis: the weights (side, length) of the pixels in those that the centre is cut out of, times 2^BITS."""
    new_length = graph.add("Div", graph.add("Mul", length, np.int64(frame.scale)), shorter)
    edge = graph.add("Mul", graph.cast(graph.add("Sub", new_length, np.int64(frame.scale)), np.float64), 0.5)
    first = graph.add("Add", graph.add("Round", edge), float(round((frame.scale - frame.side) / 2.0)))
    pixels = graph.cast(graph.add("Range", np.int64(0), length, np.int64(1)), np.float64)
    factor = graph.add("Div", graph.cast(length, np.float64), graph.cast(new_length, np.float64))
    place = graph.add("Add", first, np.arange(frame.side)[:, None] + 0.5)
    centre = graph.add("Mul", place, factor)
    distance = graph.add("Abs", graph.add("Add", graph.add("Sub", pixels, centre), 0.5))
    reach = graph.add("Div", 1.0, graph.add("Max", factor, 1.0))
    weight = graph.add("Max", graph.add("Sub", 1.0, graph.add("Mul", distance, reach)), 0.0)
    share = graph.add("Div", weight, graph.add("ReduceSum", weight, np.array([1])))
    return graph.add("Floor", graph.add("Add", graph.add("Mul", share, 2.0**BITS), 0.5))


def _rounded(graph: Graph, sums: str, bits: int) -> str:
    """Sums of pixels with weights that are 2^bits together, as whole pixels."""
    return graph.add("Floor", graph.add("Add", graph.add("Mul", sums, 2.0**-bits), 0.5))
