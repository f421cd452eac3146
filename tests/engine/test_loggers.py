"""`--log`: the files of TensorBoard and Weights & Biases, also of a run that was killed and resumed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny

from amgc.engine import loggers
from amgc.engine.checkpoint import Checkpoints
from amgc.engine.loggers import moment, task_values
from amgc.engine.run import resume, run
from amgc.engine.watch import Stopped, Watch
from amgc.methods.contract import Task
from amgc.runs import Metrics

SIZES, STEPS = (2, 2, 2), 6  # two epochs of three steps in every task


class KilledError(BaseException):
    """Raised to end a run without any cleanup, as by kill -9."""


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the values that TensorBoard would show."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the extra tensorboard is not installed"
    )
    events = accumulator.EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")


def wandb_records(file: Path) -> Iterator[Any]:
    """Return the records of a .wandb file, a LevelDB log of protocol buffers in blocks of 32 KB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def wandb_values(folder: Path) -> list[dict[str, list[tuple[int, float]]]]:
    """Return the logged values of each offline folder, in order."""
    import wandb

    wandb.teardown()  # its own process writes the files, and ends with ours
    found = []
    for file in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        values: dict[str, list[tuple[int, float]]] = {}
        for record in wandb_records(file):
            if record.WhichOneof("record_type") == "history":
                for item in record.history.item:
                    name = item.key or "/".join(item.nested_key)
                    values.setdefault(name, []).append((record.history.step.num, float(item.value_json)))
        found.append(values)
    return found


def steps_of(values: dict[str, list[tuple[int, float]]], tag: str) -> list[int]:
    return [step for step, _ in values[tag]]


def run_logged(method: str, folder: Path, **machine: Any) -> tuple[list[dict[str, Any]], dict[int, dict[str, float]]]:
    """Run with logs. Return the lines of its metrics, and the losses of all steps as a watch got them."""
    losses: dict[int, dict[str, float]] = {}

    class Listener(Watch):
        task = 0

        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.task = task.index

        def wants_progress(self) -> bool:
            return True

        def progress(self, now: Any) -> None:
            losses[self.task * (STEPS + 1) + now.step] = now.losses

    return run(tiny.config(method, machine=machine), folder, Listener(), tiny.images()), losses


def test_tensorboard_has_every_loss_and_every_task(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    lines, losses = run_logged("amgc", tmp_path, log=("tensorboard",))
    values = scalars(tmp_path)
    assert len(losses) == 3 * STEPS and {line["steps"] for line in lines} == {STEPS}
    for name in ("cross-entropy", "new", "old"):
        expected = [(step, terms[name]) for step, terms in losses.items() if name in terms]
        assert steps_of(values, f"loss/{name}") == [step for step, _ in expected]
        assert [value for _, value in values[f"loss/{name}"]] == pytest.approx([value for _, value in expected], rel=1e-6)
    metrics = Metrics(SIZES, [line["correct"] for line in lines], [line["total"] for line in lines])
    ends = [STEPS + 1, 2 * (STEPS + 1), 3 * (STEPS + 1)]
    assert values["accuracy/LA"] == [(end, pytest.approx(value)) for end, value in zip(ends, metrics.accuracy, strict=True)]
    assert values["accuracy/AIA"][-1] == (ends[-1], pytest.approx(metrics.average_incremental_accuracy))
    assert values["accuracy/forgetting"][-1] == (ends[-1], pytest.approx(metrics.forgetting))
    assert values["task_accuracy/2"] == [(end, pytest.approx(metrics.matrix[t][1])) for t, end in enumerate(ends) if t]
    assert values["memory/kept_bytes"] == [(end, line["kept_bytes"]) for end, line in zip(ends, lines, strict=True)]
    assert values["seconds/train"][0] == (ends[0], pytest.approx(lines[0]["seconds"]["train"], rel=1e-5))
    assert values["final/LA"] == [(ends[-1], pytest.approx(metrics.last_accuracy))]


def test_tensorboard_has_the_hyper_parameters(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    run(tiny.config("amgc", machine={"log": ("tensorboard",)}, hyper={"margin": 0.3}), tmp_path, dataset=tiny.images())
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    shown = plugin.HParamsPluginData.FromString(content).session_start_info.hparams
    assert shown["hyper/margin"].number_value == pytest.approx(0.3) and shown["method"].string_value == "amgc"
    (text,) = events.Tensors("config/text_summary")
    assert '"margin": 0.3' in text.tensor_proto.string_val[0].decode()


def test_a_killed_run_continues_its_log_without_steps_doubled_or_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    # Files are read in the order of their names, which end with a number that counts up: of one second, 10 is before 9.
    monkeypatch.setattr(writer, "_global_uid", writer.AtomicCounter(100))
    lines, _ = run_logged("amgc", tmp_path / "whole", log=("tensorboard",))
    for task, step in ((0, 4), (1, 2), (1, 5), (2, 3)):
        with monkeypatch.context() as patched, pytest.raises(KilledError):
            kill_at(patched, task, step)
            start(tmp_path / "killed", log=("tensorboard",))
    resume(tmp_path / "killed", dataset=tiny.images())
    whole, resumed = scalars(tmp_path / "whole"), scalars(tmp_path / "killed")
    same = {tag for tag in whole if not tag.startswith(("seconds", "memory/peak"))}
    assert {tag: whole[tag] for tag in same} == {tag: resumed[tag] for tag in same}
    assert [steps_of(whole, tag) for tag in sorted(whole)] == [steps_of(resumed, tag) for tag in sorted(resumed)]
    assert lines and len(list((tmp_path / "killed" / "tensorboard").iterdir())) == 5, "five processes wrote"


def start(folder: Path, **machine: Any) -> None:
    """Start a run, or resume it."""
    if (folder / "run.json").exists():
        resume(folder, dataset=tiny.images())
    else:
        run(tiny.config("amgc", machine=machine), folder, dataset=tiny.images())


def kill_at(patched: pytest.MonkeyPatch, task: int, step: int) -> None:
    """Kill the run in the middle of a task, after a checkpoint and a further logged step. Buffers are lost, as in a crash."""
    whole = Checkpoints.save_if_due

    def save_if_due(self: Checkpoints, optimizer: Any, *, last: bool) -> None:
        position, watch = self.session.position, self.session.watch
        if (position.task, position.step) == (task, step):
            for logger in watch.loggers if isinstance(watch, loggers.Logged) else ():
                patched.setattr(type(logger), "close", lambda self, complete: None)
                if isinstance(logger, loggers.TensorBoard):
                    logger.flush()  # the worst: all that is beyond the checkpoint has reached the disk
            raise KilledError
        if position.step % 2 == 0:
            self.save(optimizer)
        whole(self, optimizer, last=last)

    patched.setattr(Checkpoints, "save_if_due", save_if_due)


def test_logged_steps_are_on_the_disk_before_the_checkpoint_that_covers_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    whole, seen = Checkpoints.save, []

    def save(self: Checkpoints, optimizer: Any = None) -> None:
        whole(self, optimizer)
        values = scalars(tmp_path)
        session = self.session
        seen.append((moment(session.lines, session.position.step), max(max(steps_of(values, tag)) for tag in values)))

    monkeypatch.setattr(Checkpoints, "save", save)
    run(tiny.config("finetune", machine={"log": ("tensorboard",), "checkpoint_minutes": 0.0}), tmp_path, dataset=tiny.images())
    assert len(seen) == 3 * STEPS + 3 and all(due == logged for due, logged in seen)


def test_a_run_that_is_to_log_from_its_middle_on_tells_its_earlier_tasks(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    class StopLater(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = task.index == 2

    with pytest.raises(Stopped):
        run(tiny.config("amgc"), tmp_path, StopLater(), tiny.images())
    resume(tmp_path, dataset=tiny.images(), log=["tensorboard"])
    assert steps_of(scalars(tmp_path), "accuracy/LA") == [7, 14, 21] and steps_of(scalars(tmp_path), "loss/old")[0] == 16


def test_a_stop_reaches_a_run_that_logs(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    class StopNow(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = True

    with pytest.raises(Stopped):
        run(tiny.config("amgc", machine={"log": ("tensorboard",)}), tmp_path, StopNow(), tiny.images())
    assert steps_of(scalars(tmp_path), "loss/cross-entropy") == [1]


def test_a_hundred_of_many_steps_are_logged() -> None:
    watch = loggers.Logged(Watch(), (1,), [], [])
    watch.begin_task(Task(0, range(1)), 1, 1234, 0)
    due = [step for step in range(1, 1235) if watch.wants_progress()]
    assert due == list(range(12, 1235, 12))


def test_values_are_those_of_the_report() -> None:
    correct, total = [[9, 7], [8, 3, 5], [10, 0, 4, 6]], [[10, 10], [10, 10, 5], [10, 10, 5, 8]]
    lines = [
        {"correct": c, "total": t, "seconds": {}, "kept_bytes": 5, "steps": 4} for c, t in zip(correct, total, strict=True)
    ]
    for done in (1, 2, 3):
        metrics, values = Metrics([2, 1, 1], correct[:done], total[:done]), task_values([2, 1, 1], lines[:done])
        assert values["accuracy/LA"] == pytest.approx(metrics.last_accuracy)
        assert values["accuracy/AIA"] == pytest.approx(metrics.average_incremental_accuracy)
        assert values.get("accuracy/forgetting") == pytest.approx(metrics.forgetting)
        assert [values[f"task_accuracy/{task + 1}"] for task in range(done)] == pytest.approx(metrics.matrix[-1])
    assert moment(lines, 3) == 3 * (4 + 1) + 3


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_weights_and_biases_offline_holds_our_values(tmp_path: Path) -> None:
    lines, losses = run_logged("amgc", tmp_path, log=("wandb",))
    (values,) = wandb_values(tmp_path)
    assert values["loss/old"] == [(step, pytest.approx(terms["old"])) for step, terms in losses.items() if "old" in terms]
    accuracy = [sum(line["correct"]) / sum(line["total"]) for line in lines]
    assert values["accuracy/LA"] == [(7 * (task + 1), pytest.approx(value)) for task, value in enumerate(accuracy)]
    assert [value for _, value in values["memory/kept_bytes"]] == [line["kept_bytes"] for line in lines]
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for record in wandb_records(file):
        if record.WhichOneof("record_type") == "run":
            config |= {item.key: item.value_json for item in record.run.config.update}
        if record.WhichOneof("record_type") == "summary":
            summary |= {item.key or "/".join(item.nested_key): item.value_json for item in record.summary.update}
    assert config["method"] == '"amgc"' and '"margin":0.4' in config["hyper"].replace(" ", "")
    assert float(summary["final/LA"]) == pytest.approx(accuracy[-1])


@pytest.mark.usefixtures("offline")
def test_a_killed_offline_run_keeps_its_id_without_steps_doubled_or_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(KilledError):
        kill_at(patched, 1, 5)
        start(tmp_path, log=("wandb",))
    import wandb

    wandb.teardown()
    resume(tmp_path, dataset=tiny.images())
    first, second = wandb_values(tmp_path)
    joined = {tag: first.get(tag, []) + second.get(tag, []) for tag in first.keys() | second.keys()}
    assert steps_of(first, "loss/new") == [8, 9, 10, 11], "up to the checkpoint; the fifth step had been logged as well"
    assert steps_of(joined, "loss/new") == [8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20]
    assert steps_of(joined, "accuracy/LA") == [7, 14, 21]
    files = list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2 and len({file.name for file in files}) == 1


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_named_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match=rf"--log {name} needs a package .* pip install 'amgc\[{name}\]'"):
        run(tiny.config("amgc", machine={"log": (name,)}), tmp_path / "run", dataset=tiny.images())
    assert not (tmp_path / "run").exists()


def test_logging_changes_nothing_in_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run(tiny.config("amgc"), tmp_path / "one", dataset=tiny.images())
    run(tiny.config("amgc", machine={"log": ("tensorboard",)}), tmp_path / "other", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "one", tmp_path / "other")
