"""Operations on large symmetric matrices. Only the upper triangle is computed, stored and factorised, block by block.

This halves the arithmetic of full products and needs no second matrix in memory. Entries below the diagonal are zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 512  # rows per block: fast matrix products, and little extra work at the diagonal


def add_gram(upper: Tensor, rows: Tensor) -> None:
    """Add rowsᵀ rows to `upper`, for rows (n, d)."""
    for block in _blocks(len(upper)):
        upper[block, block.start :].addmm_(rows[:, block].T, rows[:, block.start :])
        upper[block, block].triu_()


def mirrored(upper: Tensor, scale: float = 1.0) -> Tensor:
    """Return the full matrix times `scale`, a new tensor (d, d) that is exactly symmetric."""
    whole = upper * scale
    for block in _blocks(len(whole)):
        whole[block.stop :, block] = whole[block, block.stop :].T
        corner = whole[block, block]
        corner += corner.triu(1).T
    return whole


def product(upper: Tensor, columns: Tensor) -> Tensor:
    """Return the full matrix times columns (d, m), in the columns' dtype. Entries below the diagonal are not read."""
    result = torch.zeros_like(columns)
    for block in _blocks(len(upper)):
        corner, strip = upper[block, block].to(columns.dtype), upper[block, block.stop :].to(columns.dtype)
        result[block] += (corner.triu() + corner.triu(1).T) @ columns[block] + strip @ columns[block.stop :]
        result[block.stop :].addmm_(strip.T, columns[block])
    return result


def scaled_into(out: Tensor, upper: Tensor, scale: Tensor) -> Tensor:
    """Write diag(scale) · upper · diag(scale) to `out`, in the dtype of `out`."""
    scale = scale.to(out.dtype)
    for block in _blocks(len(upper)):
        strip = out[block, block.start :]
        strip.copy_(upper[block, block.start :]).mul_(scale[block.start :]).mul_(scale[block, None])
        out[block, : block.start] = 0
    return out


def factorise(upper: Tensor) -> bool:
    """Replace a matrix UᵀU by its Cholesky factor U in place. Return False, and leave `upper` invalid, if there is none."""
    lower = upper.mT  # column-major order, as LAPACK needs it, so nothing is copied
    failed = torch.zeros((), dtype=torch.int32, device=upper.device)
    torch.linalg.cholesky_ex(lower, out=(lower, failed))
    return not bool(failed) and bool(torch.isfinite(upper.diagonal()).all())


def forward(factor: Tensor, columns: Tensor) -> Tensor:
    """Return U⁻ᵀ x for each column x of columns (d, m)."""
    white: Tensor = torch.linalg.solve_triangular(factor.mT, columns.to(factor.dtype), upper=False)
    return white


def backward(factor: Tensor, columns: Tensor) -> Tensor:
    """Return U⁻¹ x for each column x of columns (d, m)."""
    solved: Tensor = torch.linalg.solve_triangular(factor, columns.to(factor.dtype), upper=True)
    return solved


def packed(upper: Tensor) -> Tensor:
    """Return the triangle row by row, as d (d + 1) / 2 numbers."""
    result = upper.new_empty(len(upper) * (len(upper) + 1) // 2)
    for row, place in zip(upper, _places(len(upper)), strict=True):
        result[place] = row[-(place.stop - place.start) :]
    return result


def unpack_into(upper: Tensor, numbers: Tensor) -> None:
    """Write numbers from `packed` back to the triangle."""
    if numbers.shape != (len(upper) * (len(upper) + 1) // 2,):
        raise ValueError(f"a triangle of {len(upper)} rows does not have {tuple(numbers.shape)} numbers")
    for row, place in zip(upper, _places(len(upper)), strict=True):
        row[-(place.stop - place.start) :] = numbers[place]


def _blocks(dim: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, dim)) for start in range(0, dim, BLOCK))


def _places(dim: int) -> Iterator[slice]:
    """Yield the slice of each row of the triangle in the packed numbers."""
    start = 0
    for length in range(dim, 0, -1):
        yield slice(start, start + length)
        start += length
