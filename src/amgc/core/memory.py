"""Check that large matrices fit into memory before they are allocated."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import torch

from amgc.text import byte_size

NOTICED = 256 << 20  # bytes; smaller amounts are not checked
CONTROL_GROUP = Path("/sys/fs/cgroup")


def available(device: torch.device | str = "cpu") -> int | None:
    """Return the free memory of a device in bytes; None if it is unknown."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # a container may have a lower limit; "max" means no limit
        limit, used = (int((CONTROL_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = [
            line.split()[1] for line in (CONTROL_GROUP / "memory.stat").read_text().splitlines() if "inactive_file" in line
        ]
        found.append(limit - used + sum(map(int, cached[:1])))
    return min(found, default=None)


def matrices(dim: int, dtype: torch.dtype, count: float, rows: int) -> int:
    """Return the bytes of `count` matrices d × d and `rows` rows of d numbers."""
    return math.ceil(dtype.itemsize * dim * (count * dim + rows))


def check(dim: int, dtype: torch.dtype, count: float, rows: int, device: torch.device | str, purpose: str, advice: str) -> None:
    """Raise a MemoryError with advice if `count` matrices and `rows` rows do not fit into memory."""
    needed = matrices(dim, dtype, count, rows)
    free = available(device) if needed > NOTICED else None
    if free is None or needed <= free:
        return
    # count x² + rows x = free / itemsize
    fitting = (math.sqrt(rows**2 + 4 * count * max(free, 0) / dtype.itemsize) - rows) / (2 * count)
    raise MemoryError(
        f"{purpose} in {dim:,} dimensions needs {byte_size(needed)} ({count:g} matrices of "
        f"{byte_size(matrices(dim, dtype, 1, 0))}, and buffers), but {byte_size(free)} are free: "
        f"{int(fitting) // 100 * 100:,} dimensions would fit. {advice}"
    )
