"""The cost estimate of a run is exact in the number of image passes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from amgc.engine import cost as cost_module
from amgc.engine import session as session_module
from amgc.engine.cost import Cost, estimate
from amgc.engine.run import resume, run
from amgc.engine.watch import Stopped, Watch
from amgc.methods.contract import Phase, Task, TaskImages
from amgc.methods.ewc import EWC
from amgc.runs.folder import CHECKPOINT

COUNTS = (9, 4, 11, 5, 1, 8, 7)  # images per class: tasks and batches of unequal size
FROZEN = {"extractor_lr": 0.0}
SECOND = Phase(epochs=2, batch_size=9, augment=False)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "PATIENCE", 0.0)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the images that pass through the networks of new sessions and their copies, with and without gradients."""
    counts, studies = {"trained": 0, "passed": 0}, [0]
    whole, whole_collect = session_module.make_network, EWC.collect

    def collect(self: EWC, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        """Count the images that it gets, because its gradients are functional and no hook sees single images."""
        counts["trained"] += len(images.labels)
        studies.append(1)
        whole_collect(self, task, images, generator)
        studies.pop()

    def make_network(*arguments: Any) -> Any:
        def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
            if not studies[-1] and bool(inputs[0].any()):  # SSRE folds batch norm with the help of a blank image
                counts["trained" if output.requires_grad else "passed"] += len(output)

        network = whole(*arguments)
        network.register_forward_hook(hook)
        return network

    monkeypatch.setattr(EWC, "collect", collect)
    monkeypatch.setattr(session_module, "make_network", make_network)
    return counts


class Ask(Watch):
    """Request the cost estimate, and reset the counters, because the estimate itself uses a copy of the network."""

    def __init__(self, counts: dict[str, int], stop_at: tuple[int, int] | None = None) -> None:
        self.counts, self.stop_at, self.now = counts, stop_at, (0, 0)

    def begin_run(self, class_names: Any, sizes: Any, cost: Callable[[], Cost]) -> None:
        self.cost = cost()
        self.counts.update(trained=0, passed=0)

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.now = task.index, done

    def wants_progress(self) -> bool:
        self.now = self.now[0], self.now[1] + 1
        self.stop = self.now == self.stop_at
        return False


RUNS: dict[str, dict[str, Any]] = {
    "trained": {"method": "amgc"},
    "frozen": {"method": "amgc", "later": FROZEN},
    "frozen from the start": {"method": "sbgc", "first": FROZEN, "later": FROZEN},
    "solved": {"method": "amgc-exact"},
    "nothing trained": {"method": "amgc-exact", "first": {"epochs": 0}},
    "finetune": {"method": "finetune"},
    "joint": {"method": "joint"},
    "an old network": {"method": "lwf"},
    "an old network of a frozen one": {"method": "lwf", "later": FROZEN},
    "four views": {"method": "pass"},
    "side branches": {"method": "ssre"},
    "gradients of single images": {"method": "ewc"},
    "gradients of batches": {"method": "ewc", "hyper": {"fisher": "batch"}},
    "features of two networks": {"method": "sdc"},
    "a second stage": {"method": "ldc"},
    "a second stage of a frozen network": {"method": "adagauss", "later": FROZEN, "hyper": {"second": SECOND}},
}
MOMENTS = [(0, 1), (0, 6), (2, 1)]  # the first step, the end of task 1, the first step of the last task


@pytest.mark.parametrize(("name", "kind"), [*((name, "images") for name in RUNS), ("trained", "vectors"), ("joint", "vectors")])
def test_a_run_makes_exactly_the_passes_that_were_promised(
    name: str, kind: str, counts: dict[str, int], tmp_path: Path
) -> None:
    watch = Ask(counts)
    run(tiny.config(**RUNS[name], sizes=(3, 2, 2)), tmp_path, watch, getattr(tiny, kind)(COUNTS))
    assert {"trained": watch.cost.trained, "passed": watch.cost.passed} == counts
    assert counts["passed"] > 0


@pytest.mark.parametrize(("name", "moment"), [*((name, (1, 4)) for name in RUNS), *(("trained", moment) for moment in MOMENTS)])
def test_a_resumed_run_makes_exactly_the_passes_that_were_promised(
    name: str, moment: tuple[int, int], counts: dict[str, int], tmp_path: Path
) -> None:
    with contextlib.suppress(Stopped):  # a run without such a step ends; then there is nothing left
        run(tiny.config(**RUNS[name], sizes=(3, 2, 2)), tmp_path, Ask(counts, moment), tiny.images(COUNTS))
    watch = Ask(counts)
    resume(tmp_path, watch, tiny.images(COUNTS))
    assert {"trained": watch.cost.trained, "passed": watch.cost.passed} == counts


def test_a_run_that_takes_task_1_over_is_promised_less(counts: dict[str, int], tmp_path: Path) -> None:
    run(tiny.config(sizes=(3, 2, 2)), tmp_path / "start", dataset=tiny.images(COUNTS))
    watch = Ask(counts)
    config = tiny.config(sizes=(3, 2, 2), machine={"start": str(tmp_path / "start")})
    run(config, tmp_path / "run", watch, tiny.images(COUNTS))
    assert {"trained": watch.cost.trained, "passed": watch.cost.passed} == counts


def test_mixtures_are_counted_as_many_as_are_to_be_expected(counts: dict[str, int], tmp_path: Path) -> None:
    """IL2A mixes images of a batch that are paired with one of another class. Their number is random."""
    watch = Ask(counts)
    larger = {"batch_size": 60}
    run(tiny.config("il2a", tasks=2, first=larger, later=larger), tmp_path, watch, tiny.images((40,) * 6))
    shown = 2 * 2 * 120
    assert 3 * shown < counts["trained"] < 4.5 * shown  # 1 + 4 rounds of ⅔
    assert watch.cost.trained == pytest.approx(counts["trained"], rel=0.1)
    assert watch.cost.passed == pytest.approx(counts["passed"], rel=0.1)


@pytest.mark.parametrize("method", ["finetune", "lwf", "pass", "ssre"])
def test_the_promised_time_is_that_of_all_passes(
    method: str, counts: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock by which an image takes a second in a network, with or without the backward pass."""
    monkeypatch.setattr(cost_module, "clock", lambda: float(sum(counts.values())))
    watch = Ask(counts)
    run(tiny.config(method), tmp_path, watch, tiny.images((7,) * 6))  # batches of 7, every one of them full
    assert watch.cost.seconds == pytest.approx(watch.cost.trained + watch.cost.passed)
    assert watch.cost.trained + watch.cost.passed == sum(counts.values())


def test_the_promised_disk_is_enough_and_not_far_too_much(counts: dict[str, int], tmp_path: Path) -> None:
    watch = Ask(counts)
    run(tiny.config(features_options={"dim": 64}), tmp_path, watch, tiny.images())
    largest = (tmp_path / CHECKPOINT).stat().st_size + sum(path.stat().st_size for path in tmp_path.iterdir())
    assert largest / 2 < watch.cost.disk < 4 * largest


def test_each_kind_of_step_of_a_task_is_listed_with_its_number(tmp_path: Path) -> None:
    config = tiny.config("amgc", sizes=(3, 2, 2), later={"epochs": 3, "batch_size": 4})
    session = session_module.Session(config, tmp_path, Watch(), tiny.images((6, 6, 6, 3, 3, 2, 2)))
    images = sum(session.stream.class_counts[0][3:5])
    found = list(cost_module.parts(session, 1, cost_module.measure(session)[1]))
    counts = {part.what: part.count for part in found}
    tests = sum(session.stream.class_counts[1][:5])
    assert counts["optimiser step"] == 3 * -(-images // 4)
    assert counts["image through the network"] == images + tests  # for the statistics and the evaluation
    assert counts["row of Method.end"] == images and counts["rest of Method.end"] == 1
    assert len(counts) == len(found) and all(part.step >= 0 for part in found)


def test_a_finished_run_costs_nothing_more(counts: dict[str, int], tmp_path: Path) -> None:
    run(tiny.config(), tmp_path, dataset=tiny.images())
    watch = Ask(counts)
    resume(tmp_path, watch, tiny.images())
    assert (watch.cost.trained, watch.cost.passed, watch.cost.seconds) == (0, 0, 0.0)


def test_a_cost_is_described_in_words() -> None:
    told = str(Cost(trained=12_000, passed=3_000, seconds=150, disk=2_500_000, memory=3_000_000_000))
    assert told == "15,000 image passes (12,000 of them training), about 2 min 30 s, 2.5 MB of disk, 3.0 GB of memory"


def test_the_estimate_leaves_the_session_alone(tmp_path: Path) -> None:
    session = session_module.Session(tiny.config(), tmp_path, Watch(), tiny.images())
    before = {name: tensor.clone() for name, tensor in session.network.state_dict().items()}
    state = torch.get_rng_state()
    estimate(session)
    tiny.assert_equal(before, session.network.state_dict())
    assert len(session.method.head) == 0 and torch.equal(state, torch.get_rng_state())
