"""Time L_DB and its gradient, compared with the form of ISDA, IL2A and PyCIL and with its matrix products alone.

    python benchmarks/db_loss.py            # half a minute, 1 GB of memory
    python benchmarks/db_loss.py --quick    # small sizes, seconds

Everything is measured in one process, in turns. Compare the ratios, not the times.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

import torch
from _report import kept, side_by_side
from torch import Tensor

from amgc.core.covariance import Covariances, LowRank, as_covariances
from amgc.core.kernel import evaluate

CHILD = """
import sys
sys.path.insert(0, sys.argv[4])
from db_loss import problem, ours
parts = problem(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], few=True)
run = ours(*parts)
from pathlib import Path
Path("/proc/self/clear_refs").write_text("5")  # forget the peak that making the inputs left (Linux)
field = lambda name: next(int(l.split()[1]) for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(name))
before = field("VmRSS")
run()
print(field("VmHWM") - before)
"""


def problem(count: int, dim: int, form: str = "full", few: bool = False) -> tuple[Tensor, Tensor, Tensor, Covariances]:
    """Return random statistics of `count` classes and a head: weight, bias, mean, covariances."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(count, dim, generator=generator)
    weight = 0.05 * torch.randn(count, dim, generator=generator)
    if form == "full":
        full = torch.empty(count, dim, dim)
        for k in range(count):
            rows = torch.randn(16 if few else dim, dim, generator=generator)
            torch.mm(rows.T, rows, out=full[k]).div_(len(rows))
        return weight, torch.zeros(count), mean, Covariances(full=full)
    diagonal = torch.rand(count, dim, generator=generator) + 1
    if form == "diagonal":
        return weight, torch.zeros(count), mean, Covariances(diagonal=diagonal)
    factor = torch.randn(count, dim, 32, generator=generator) / dim**0.5
    return weight, torch.zeros(count), mean, as_covariances(LowRank(factor, diagonal))


def ours(weight: Tensor, bias: Tensor, mean: Tensor, covariances: Covariances):
    targets, share = torch.arange(len(mean)), torch.full((len(mean),), 1 / len(mean))
    return lambda: evaluate(weight, bias, mean, covariances, targets, share)


def reference(weight: Tensor, bias: Tensor, mean: Tensor, covariances: Covariances):
    """Compute the C x C product of every class, of which only the diagonal is used, with autograd."""

    def run() -> tuple[Tensor, Tensor]:
        w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
        v = w.expand(len(mean), *w.shape) - w.unsqueeze(1)
        sigma = torch.bmm(torch.bmm(v, covariances.full), v.permute(0, 2, 1))
        sigma = sigma.mul(torch.eye(len(w)).expand_as(sigma)).sum(2)
        logits = mean @ w.T + b + 0.5 * sigma
        loss = torch.nn.functional.cross_entropy(logits, torch.arange(len(mean)))
        loss.backward()
        return loss.detach(), w.grad

    return run


def same(*case) -> None:
    """Check that both forms give the same loss and gradient."""
    mine, (loss, gradient) = ours(*case)(), reference(*case)()
    torch.testing.assert_close(mine.loss.float(), loss, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.weight, gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))


def bare(weight: Tensor, bias: Tensor, mean: Tensor, covariances: Covariances):
    """Compute W Σ_k for every class, as every exact method must."""
    out = torch.empty_like(weight)

    def run() -> None:
        for matrix in covariances.full:
            torch.mm(weight, matrix, out=out)

    return run


def bare_thin(weight: Tensor, bias: Tensor, mean: Tensor, covariances: Covariances):
    """Compute the two products with all factors, forward and backward, as every exact method must."""
    out, gradient = torch.empty(len(covariances.thin), len(weight)), torch.zeros_like(weight)

    def run() -> None:
        torch.mm(covariances.thin, weight.T, out=out)
        gradient.addmm_(out.T, covariances.thin)

    return run


def extra_memory(count: int, dim: int, form: str = "full") -> float:
    """Return the MB that one evaluation needs in addition to the inputs, measured in a new process."""
    from pathlib import Path

    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(count), str(dim), form, here], capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1024


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    quick = arguments.parse_args().quick
    count, dim = (20, 64) if quick else (200, 512)
    with kept("db_loss"):
        torch.manual_seed(0)
        case, thin = problem(count, dim), problem(count, dim, "lowrank")
        same(*case)
        times = side_by_side(
            {
                "ours, full": ours(*case),
                "ISDA/IL2A/PyCIL form": reference(*case),
                "bare matrix products": bare(*case),
                "ours, rank 32": ours(*thin),
                "bare products, rank 32": bare_thin(*thin),
                "ours, diagonal": ours(*problem(count, dim, "diagonal")),
            },
            rounds=7,
        )
        full = times["ours, full"]
        print(f"loss + gradient, K = {count} classes, d = {dim}, float32")
        for name, seconds in times.items():
            low, high = (1e3 * end for end in times.spread[name])
            print(f"  {name:24s} {1e3 * seconds:8.1f} ms ({low:.1f} to {high:.1f})   {seconds / full:6.3f} x ours, full")
        print(f"  faster than the ISDA/IL2A/PyCIL form: {times['ISDA/IL2A/PyCIL form'] / full:.2f} x   (floor 3.5)")
        print(f"  time over the bare matrix products:   {full / times['bare matrix products']:.2f} x   (ceiling 1.6)")
        print(f"  rank 32 faster than full:             {full / times['ours, rank 32']:.1f} x   (floor 8)")
        limit = full / times["bare products, rank 32"]
        print(f"    (its bare products alone:           {limit:.1f} x)")
        print(f"  diagonal faster than full:            {full / times['ours, diagonal']:.1f} x   (floor 20)")
        del case

        print("\nmemory of one evaluation beyond its inputs (fresh process, peak resident size)")
        for k, d in [(count, dim)] if quick else [(100, 256), (100, 512), (100, 1024), (200, 512), (1000, 512)]:
            print(
                f"  K = {k:5d}, d = {d:5d}, full:    {extra_memory(k, d):7.1f} MB" + ("   (ceiling 200)" if k == 1000 else "")
            )

        print("\ngrowth, full covariances: the products are 2 K² d² operations")
        for k, d in [(10, 32), (20, 64)] if quick else [(50, 512), (100, 512), (200, 512), (400, 512), (100, 256), (100, 1024)]:
            run = ours(*problem(k, d, few=True))
            seconds = side_by_side({"run": run}, rounds=3)["run"]
            rate = 2 * (k * d) ** 2 / seconds / 1e9
            print(f"  K = {k:5d}, d = {d:5d}: {1e3 * seconds:8.1f} ms   {rate:6.0f} billion operations/s")
        print(f"\npeak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB")


if __name__ == "__main__":
    main()
