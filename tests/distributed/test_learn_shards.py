"""Learning from shards: the same bits with any number of workers, after kill -9, and with shards that cannot be read."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from model.drawing import draw
from PIL import Image

import amgc
from amgc import tensor_files
from amgc.core.parameters import DeviceError
from amgc.core.statistics import ClassStatistics
from amgc.data.shards import Sample, ShardError, file_shards
from amgc.distributed.executors import LocalProcesses, OnRay, here
from amgc.distributed.finished import SHARDS
from amgc.distributed.learn import learn_shards
from amgc.distributed.worker import CHUNK, KIND, Job, Worker, read_part
from amgc.model import Model, ModelError
from amgc.model.folder import ModelBusyError

KINDS = ("cat", "dog", "owl")


def photos(folder: Path, count: int = 8) -> dict[str, list[str]]:
    """Write drawings and return their files by class."""
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
        for number, pixels in enumerate(draw(kind, count)):
            path = folder / kind / f"{number}.png"
            Image.fromarray(pixels).save(path)
            found.setdefault(kind, []).append(str(path))
    return found


@pytest.fixture
def shards(tmp_path: Path) -> list:
    return file_shards(photos(tmp_path / "photos"), 5)


def new(folder: Path, name: str, **how: object) -> Model:
    return Model.create(folder / name, **{"filters": 6, **how})


def bits(model: Model) -> dict[str, bytes]:
    """Return everything that was learned."""
    _, tensors = model.state.classifier.packed()
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def backwards(job: Job, given: list) -> Iterator:
    """An executor whose workers finish in the opposite order."""
    yield from reversed(list(here(job, given)))


@pytest.mark.cpus
@pytest.mark.parametrize("form", ["full", "lowrank", "diagonal", "shared"])
def test_the_order_in_which_workers_finish_does_not_change_a_bit(tmp_path, shards, form):
    one, two = (new(tmp_path, name, covariance=form) for name in ("one", "two"))
    learned = learn_shards(one, shards)
    learn_shards(two, shards, backwards)
    assert learned.added == dict.fromkeys(KINDS, 8) == one.classes
    assert bits(one) == bits(two)
    assert not (one.path / SHARDS).exists()


@pytest.mark.cpus
@pytest.mark.parametrize("form", ["full", "diagonal", "shared"])
def test_shards_give_the_statistics_of_one_pass(tmp_path, shards, form):
    rows = {kind: np.random.default_rng(place).normal(3, 1, (9, 7)) for place, kind in enumerate(KINDS)}
    model = new(tmp_path, "model", features="vectors", filters=None, covariance=form)
    pieces = [Rows(tuple((kind, tuple(row)) for kind in KINDS for row in rows[kind][at : at + 2])) for at in range(0, 9, 2)]
    learn_shards(model, pieces)
    whole = ClassStatistics(7, form, dtype=torch.float64)
    whole.update(np.concatenate(list(rows.values())), [kind for kind in KINDS for _ in range(9)])
    found = model.state.classifier.statistics_
    assert found.classes == whole.classes and found.count.tolist() == [9, 9, 9]
    tolerance = 16 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(found.mean, whole.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.pooled().double(), whole.pooled(), rtol=tolerance, atol=tolerance)


@dataclass(frozen=True)
class Rows:
    """A shard of vectors; `fault` makes it fail."""

    rows: tuple
    fault: str = ""

    @property
    def name(self) -> str:
        return f"rows {abs(hash(self.rows)) % 997}"

    @property
    def size(self) -> int:
        return len(self.rows)

    @property
    def unit(self) -> str:
        return "images"

    def stamp(self) -> str:
        return "1"

    def samples(self) -> Iterator[Sample]:
        if self.fault == "killed" and multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault in ("always", "once") and (self.fault != "once" or not Path("tried").exists()):
            Path("tried").touch()
            raise ShardError(self.name, "it is no tar file.")
        for number, (label, row) in enumerate(self.rows):
            yield Sample(f"row {number}", label, np.array(row))


def rows(*labels: str, seed: int = 0, fault: str = "") -> Rows:
    drawn = np.random.default_rng(seed).normal(size=(len(labels), 4))
    return Rows(tuple((label, tuple(row)) for label, row in zip(labels, drawn.tolist(), strict=True)), fault)


@pytest.fixture
def vectors(tmp_path: Path) -> Model:
    return Model.create(tmp_path / "vectors", features="vectors")


def test_a_shard_that_cannot_be_read_is_named_and_skipped_only_if_asked(vectors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good, bad = rows("cat", "dog", "cat", "dog", seed=1), rows("cat", "dog", seed=2, fault="always")
    with pytest.raises(ModelError, match=rf"{bad.name}: it is no tar file.*Nothing was learned; 1 of 2 shards are kept"):
        learn_shards(vectors, [good, bad])
    assert not vectors.classes
    learned = learn_shards(vectors, [good, bad], on_bad_shard="skip")
    assert learned.added == {"cat": 2, "dog": 2} and learned.bad_shards == ((bad.name, f"{bad.name}: it is no tar file."),)


def test_a_shard_is_tried_again(vectors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learn_shards(vectors, [rows("cat", "dog")])
    assert learn_shards(vectors, [rows("cat", "dog", seed=1, fault="once")]).images == 2 and Path("tried").exists()


def test_finished_shards_are_not_computed_again_and_damaged_ones_are(vectors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [rows(*2 * ("cat", "dog", "owl"), seed=seed) for seed in range(4)]
    computed: list[int] = []

    def stopping(job: Job, waiting: list) -> Iterator:
        for place, (number, found) in enumerate(here(job, waiting[::-1])):
            if place == 3:
                raise KeyboardInterrupt
            yield number, found

    def counting(job: Job, waiting: list) -> Iterator:
        for number, found in here(job, waiting):
            computed.append(number)
            yield number, found

    with pytest.raises(KeyboardInterrupt):
        learn_shards(vectors, given, stopping)
    finished = sorted((vectors.path / SHARDS).glob("part-*"))
    assert [path.name[5:11] for path in finished] == ["000001", "000002", "000003"]
    content = finished[1].read_bytes()
    finished[1].write_bytes(content[:-4] + b"\0\1\2\3")
    other = Model.create(tmp_path / "other", features="vectors")
    learn_shards(other, given)
    learn_shards(Model.open(vectors.path), given, counting)
    assert computed == [0, 2]
    assert bits(Model.open(vectors.path)) == bits(Model.open(other.path))


def test_shards_that_have_changed_are_computed_again(vectors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = [rows("cat", "dog", seed=seed) for seed in range(2)]
    with pytest.raises(ModelError):
        learn_shards(vectors, [*good, rows("cat", "dog", fault="always")])
    learned = learn_shards(vectors, [rows("owl", "fox", seed=5)])
    assert learned.added == {"owl": 1, "fox": 1}


def test_a_driver_that_is_killed_after_adding_the_shards_does_not_add_them_twice(vectors, monkeypatch):
    given = [rows("cat", "dog", seed=seed) for seed in range(2)]
    monkeypatch.setattr("amgc.distributed.learn.remove", lambda folder: None)  # as if it had no time to
    learn_shards(vectors, given)
    monkeypatch.undo()
    with pytest.raises(ModelError, match="learned already"):
        learn_shards(Model.open(vectors.path), given)
    assert Model.open(vectors.path).classes == {"cat": 2, "dog": 2}
    assert learn_shards(Model.open(vectors.path), given).again == ("cat", "dog")  # asked for a second time


def test_classes_that_are_numbers_in_one_shard_and_names_in_another_are_an_error(vectors):
    strange = rows("3", "4", seed=1)
    with pytest.raises(ShardError, match=rf"{strange.name}: its classes are numbers such as '3', those before are names"):
        learn_shards(vectors, [rows("cat", "dog"), strange])
    assert not Model.open(vectors.path).classes


def test_samples_without_a_label_are_an_error_that_names_the_shard(vectors):
    with pytest.raises(ModelError, match=r"rows \d+: 'row 1' has no label; --label-column"):
        learn_shards(vectors, [rows("cat", "")])


def test_statistics_from_other_versions_or_with_impossible_numbers_are_refused(vectors, tmp_path):
    shard = rows("cat", "cat", "dog")
    learn_shards(vectors, [rows("cat", "dog", seed=9)])
    job = Job(str(vectors.path), "")
    path = tmp_path / "part"
    path.write_bytes(Worker(job)(shard))
    header, tensors = tensor_files.read(path, KIND)
    assert read_part(path, job, shard).statistics.count.tolist() == [2, 1]

    def refused(why: str, changed: dict | None = None, about: dict | None = None) -> None:
        path.write_bytes(tensor_files.to_bytes(KIND, header | (about or {}), tensors | (changed or {})))
        with pytest.raises(ShardError, match=why):
            read_part(path, job, shard)

    refused("its statistics cannot be used: .*amgc '0.0.1'", about={"amgc": "0.0.1"})
    refused("the extractor 'other'", about={"extractor": "other"})
    refused("it is of 'another'", about={"shard": "another"})
    refused("'mean'", {"mean": tensors["mean"][:, :3]})
    refused("NaN", {"mean": tensors["mean"] * torch.nan})
    refused("counts 7 images", {"count": torch.tensor([6, 1])})
    refused("no samples", {"count": torch.tensor([3, 0])})
    refused("negative", {"full": -tensors["full"].abs() - 1})
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ShardError, match="cannot be used"):
        read_part(path, job, shard)


def test_a_worker_of_another_version_or_extractor_is_an_error(vectors):
    with pytest.raises(ModelError, match=r"this worker has amgc .*begun with 0\.0\.1"):
        Worker(Job(str(vectors.path), "", "0.0.1"))
    with pytest.raises(ModelError, match="is not that of the lesson"):
        Worker(Job(str(vectors.path), "else"))


def test_models_that_must_not_store_statistics_of_few_images_are_refused(tmp_path):
    model = Model.create(tmp_path / "model", features="vectors", fewest=3)
    with pytest.raises(ModelError, match="cannot learn from shards"):
        learn_shards(model, [rows("cat", "dog")])


def test_a_shard_without_usable_images_counts_as_empty(tmp_path, shards):
    broken = tmp_path / "broken.png"
    broken.write_text("dear all")
    empty = file_shards({"cat": [str(broken)]})
    model = new(tmp_path, "model")
    learned = learn_shards(model, [*shards, *empty])
    assert learned.images == 24 and learned.skipped[0][0] == str(broken)
    with pytest.raises(ModelError, match="can be used"):
        learn_shards(model, empty)


@pytest.mark.slow
def test_processes_give_the_same_bits_and_survive_a_killed_worker(tmp_path, shards, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{Path(amgc.__file__).parents[1]}:{Path(__file__).parents[1]}")
    one, two, three = (new(tmp_path, name) for name in ("one", "two", "three"))
    learn_shards(one, shards)
    learn_shards(two, shards, LocalProcesses(2))
    assert bits(one) == bits(two)
    killer = rows("cat", fault="killed")
    learned = learn_shards(three, [shards[0], killer], LocalProcesses(2), on_bad_shard="skip")
    assert learned.images == 5 and "its worker was killed 3 times" in learned.bad_shards[0][1]


@pytest.mark.slow
def test_a_killed_driver_loses_at_most_the_shards_under_way(tmp_path, shards):
    """kill -9 after each finished shard, until the lesson is done."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from amgc.data.shards import file_shards
from amgc.distributed import executors, learn_shards
from amgc.model import Model
folder = Path({str(tmp_path / "photos")!r})
images = {{kind: sorted(map(str, (folder / kind).glob("*.png"))) for kind in {KINDS!r}}}
path = {str(tmp_path / "killed")!r}
model = Model.open(path) if os.path.exists(path + "/manifest.json") else Model.create(path, filters=6)
def executor(job, waiting):
    for place, one in enumerate(executors.here(job, waiting)):
        if place == 2: os.kill(os.getpid(), 9)
        print("computed", one[0], flush=True)
        yield one
learn_shards(model, file_shards(images, 5), executor)
"""
    told = []
    for _ in range(9):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        told += done.stdout.split("computed ")[1:]
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
    assert [int(one) for one in told] == list(range(5))  # each once: a shard is kept before the next one is begun
    other = new(tmp_path, "other")
    learn_shards(other, shards)
    assert bits(Model.open(tmp_path / "killed")) == bits(Model.open(other.path))


def test_parts_are_replaced_by_their_sum(vectors, monkeypatch):
    """So the room on the disk stays bounded however many shards there are."""
    most = 0

    def watching(job: Job, waiting: list) -> Iterator:
        nonlocal most
        for one in here(job, waiting):
            yield one
            most = max(most, len(list((vectors.path / SHARDS).glob("part-*"))))

    learn_shards(vectors, [rows("cat", "dog", "cat", "dog", seed=seed) for seed in range(12)], watching)
    assert most <= 4
    assert CHUNK and vectors.classes == {"cat": 24, "dog": 24}


def test_the_features_of_a_single_image_are_never_on_the_disk(vectors, tmp_path):
    """The mean of a class with one image is that image's features."""
    given = [rows("cat", seed=0), rows("dog", "dog", "cat", seed=1), rows("cat", "owl", "owl", seed=2), rows("owl", seed=3)]
    single = [np.array(row, kind).tobytes() for shard in given for _, row in shard.rows for kind in (np.float32, np.float64)]
    stored = 0

    def watching(job: Job, waiting: list) -> Iterator:
        nonlocal stored
        for one in here(job, waiting):
            yield one
            for path in (vectors.path / SHARDS).iterdir():
                content = path.read_bytes()
                assert not any(row in content for row in single), path.name
                stored += path.suffix == ".safetensors"

    learn_shards(vectors, given, watching)
    assert stored, "sums of several images are"
    other = Model.create(tmp_path / "other", features="vectors")
    learn_shards(other, given)
    assert bits(vectors) == bits(other) and vectors.classes == {"cat": 3, "dog": 2, "owl": 3}


# ---- what comes from workers is not trusted --------------------------------------------------------------------------


def damaging(job: Job, given: list) -> Iterator:
    """An executor whose second result is damaged on the way."""
    for number, found in here(job, given):
        yield number, found[:-9] if number == 1 else found


def test_statistics_that_are_damaged_on_the_way_are_an_error_and_skipped_only_if_asked(vectors):
    given = [rows(*2 * ("cat", "dog"), seed=seed) for seed in range(3)]
    with pytest.raises(ModelError, match=rf"{given[1].name}: its statistics cannot be used: .* Nothing was learned; 1 of 3"):
        learn_shards(vectors, given, damaging)
    assert not Model.open(vectors.path).classes
    learned = learn_shards(vectors, given, damaging, on_bad_shard="skip")
    assert learned.added == {"cat": 4, "dog": 4} and learned.bad_shards[0][0] == given[1].name


def test_a_shard_whose_classes_are_numbers_is_skipped_if_asked(vectors):
    strange = rows("3", "4", "3", "4", seed=1)
    given = [rows(*2 * ("cat", "dog"), seed=0), strange, rows(*2 * ("cat", "owl"), seed=2)]
    learned = learn_shards(vectors, given, on_bad_shard="skip")
    assert learned.added == {"cat": 4, "dog": 2, "owl": 2}
    assert [name for name, _ in learned.bad_shards] == [strange.name] and "numbers such as '3'" in learned.bad_shards[0][1]


def test_shards_that_an_earlier_call_skipped_are_tried_again_by_a_call_that_skips_none(vectors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = [rows(*2 * ("cat", "dog"), seed=seed) for seed in range(3)]
    given = [good[0], rows("cat", "cat", seed=5, fault="once"), *good[1:]]

    def stopping(job: Job, waiting: list) -> Iterator:
        for number, found in here(job, waiting):
            yield number, "it cannot be read." if number == 1 else found
            if number == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_shards(vectors, given, stopping, on_bad_shard="skip")
    learned = learn_shards(Model.open(vectors.path), given)
    assert learned.added == {"cat": 8, "dog": 6} and not learned.bad_shards


def test_a_second_driver_is_refused_and_the_first_one_goes_on(vectors):
    given = [rows(*2 * ("cat", "dog"), seed=seed) for seed in range(2)]
    refused = []

    def disturbed(job: Job, waiting: list) -> Iterator:
        for one in here(job, waiting):
            with pytest.raises(ModelBusyError, match="is learning from shards already"):
                learn_shards(Model.open(vectors.path), given)
            refused.append(one[0])
            yield one

    assert learn_shards(vectors, given, disturbed).images == 8 and refused == [0, 1]
    assert Model.open(vectors.path).classes == {"cat": 4, "dog": 4}


def test_numbers_that_are_too_large_are_an_error_that_names_the_shard(vectors):
    large = Rows(tuple((label, (sign * 1e30, 0.0, 0.0, 0.0)) for label in ("cat", "dog") for sign in (1, -1)))
    with pytest.raises(ModelError, match=rf"^{large.name}: .*too large.*Nothing was learned"):
        learn_shards(vectors, [rows(*2 * ("cat", "dog")), large])
    assert not Model.open(vectors.path).classes


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the state of processes in /proc")
def test_workers_end_when_their_driver_is_killed(tmp_path, shards, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{Path(amgc.__file__).parents[1]}:{Path(__file__).parents[1]}")
    code = f"""
import multiprocessing, os, sys
from distributed.test_learn_shards import rows
from amgc.distributed import LocalProcesses, learn_shards
from amgc.model import Model
def executor(job, waiting):
    for one in LocalProcesses(2)(job, waiting):
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)
        os.kill(os.getpid(), 9)
if __name__ == "__main__":
    learn_shards(Model.create({str(tmp_path / "model")!r}, "vectors"), [rows("cat", "dog")] * 2, executor)
"""
    script = tmp_path / "driver.py"
    script.write_text(code)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as driver:
        workers = [int(one) for one in driver.stdout.readline().split()]
    assert driver.returncode == -9 and len(workers) == 2
    end = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").is_dir() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text() for pid in workers):
        assert time.monotonic() < end, "a worker without a driver is still there"
        time.sleep(0.05)


# ---- Ray, without a cluster ------------------------------------------------------------------------------------------


class FakeRay:
    """As much of Ray Data as `OnRay` uses. Actors run here; one that is `fatal` loses its shard."""

    def __init__(self, fatal: int) -> None:
        self.data, self.fatal, self.asked, self.stopped = self, fatal, {}, False
        self.DataContext, self.ActorPoolStrategy, self.context = self, dict, SimpleNamespace()

    def get_current(self) -> SimpleNamespace:
        return self.context

    def init(self, **how: object) -> None:
        self.how = how

    def from_items(self, items: list, override_num_blocks: int) -> FakeRay:
        self.items = items
        return self

    def map_batches(self, actor: type, fn_constructor_args: tuple, **asked: object) -> FakeRay:
        self.job, self.asked = fn_constructor_args[0], asked
        self.actor = actor(replace(self.job, device="cpu"), fn_constructor_args[1])
        return self

    def iter_rows(self) -> Iterator[dict]:
        for item in self.items:
            if item["number"] != self.fatal:
                found = self.actor({"number": np.array([item["number"]])})
                yield {name: values[0] for name, values in found.items()}

    def shutdown(self) -> None:
        self.stopped = True


def test_on_ray_a_shard_that_kills_its_worker_is_named_and_the_others_are_kept(vectors, monkeypatch):
    given = [rows(*2 * ("cat", "dog"), seed=seed) for seed in range(3)]
    ray = FakeRay(fatal=1)
    monkeypatch.setattr("amgc.distributed.executors.import_ray", lambda: ray)
    with pytest.raises(ModelError, match=rf"{given[1].name}: its worker was killed 3 times.*2 of 3 shards are kept"):
        learn_shards(vectors, given, OnRay(2))
    assert ray.context.max_errored_blocks == -1 and ray.asked["max_task_retries"] == 2 and ray.stopped
    assert learn_shards(vectors, given, OnRay(2), on_bad_shard="skip").images == 8


def test_on_ray_the_gpus_of_a_worker_are_asked_for_and_used(vectors, monkeypatch):
    for gpus, device in ((0.5, "cuda"), (0, "cpu")):
        ray = FakeRay(fatal=-1)
        monkeypatch.setattr("amgc.distributed.executors.import_ray", lambda ray=ray: ray)
        learn_shards(vectors, [rows(*2 * ("cat", "dog"), seed=int(2 * gpus))], OnRay(1, gpus=gpus, cpus=2))
        assert (ray.job.device, ray.asked["num_gpus"], ray.asked["num_cpus"]) == (device, gpus or None, 2)


def test_a_worker_without_the_gpu_that_was_asked_for_is_an_error(tmp_path, shards):
    model = new(tmp_path, "model")
    learn_shards(model, shards)
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="has no device 'cuda'"):
            Worker(Job(str(model.path), model.state.checksum, device="cuda"))
