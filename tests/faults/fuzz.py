"""Damage every kind of file in a seeded way, and kill commands at random moments. `make fuzz` runs all of it.

A damaged file must give a message or the same answers as before: no traceback, no hang, no gigabytes, no changed model.
A command that is killed must leave the state before or after it, and the next command must work.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from model.drawing import answers, draw
from reference import within

from amgc import AMGCClassifier, tensor_files
from amgc.cli.errors import exit_code
from amgc.cli.main import main
from amgc.data import load
from amgc.data.shards import open_source
from amgc.data.vectors import read_vectors
from amgc.features import build
from amgc.features.weights import load_extractor, read_weights, save_extractor
from amgc.model import Model
from amgc.model.folder import Folder, digest
from amgc.model.manifest import Manifest
from amgc.runs import load_run

SECONDS = 30  # that a command may take with a damaged file
GROWTH = 1_000_000  # kilobytes that the process may grow beyond its peak before
RUN = ["run", "digits", "--classes", "0", "1", "2", "3", "--tasks", "2", "--method", "amgc-closed", "--features", "patches"]
RUN += ["--features.filters", "2", "--first.epochs", "0", "--quiet"]
TRAINED = ["run", "digits", "--classes", "0", "1", "2", "3", "--tasks", "2", "--method", "finetune", "--first.epochs", "1"]
TRAINED += ["--later.epochs", "1", "--features.dim", "8", "--checkpoint-minutes", "0", "--quiet"]
STRANGE: list[Any] = [None, True, -1, 0, 1e400, 1.5, 10**30, float("nan"), [], {}, [[]], {"a": {}}]
STRANGE += ["", "x", "../x", "/dev/zero", "\ud800"]
Probe = Callable[[], Any]


@dataclass(frozen=True)
class Kind:
    """A kind of file. `probe` reads it; what it returns must stay the same if it is not None."""

    name: str
    path: Path
    probe: Probe


# ---- damage ----------------------------------------------------------------------------------------------------------


def damage(content: bytes, rng: random.Random) -> bytes:
    """Return other bytes: flipped, cut, inserted, repeated, zeroed; or, of JSON, another value somewhere."""
    if content[:1] in (b"{", b"[") and rng.random() < 0.6:
        with contextlib.suppress(ValueError):
            whole, *rest = content.split(b"\n", 1) if b"\n{" in content else [content]  # the first of several lines
            return b"\n".join([json.dumps(other_value(json.loads(whole), rng)).encode("utf-8", "surrogatepass"), *rest])
    place, length = rng.randrange(len(content) + 1), rng.choice([1, 1, 2, 8, 64, 1000])
    before, after = content[:place], content[place:]
    return rng.choice(
        [
            lambda: before,
            lambda: before + after[length:],
            lambda: before + rng.randbytes(length) + after,
            lambda: before + rng.randbytes(length) + after[length:],
            lambda: before + after[:length] + after,
            lambda: before + bytes(length) + after[length:],
            lambda: before + b"\xff" * length + after[length:],
            lambda: b"",
            lambda: before + bytes([after[0] ^ 1 << rng.randrange(8)]) + after[1:] if after else before,
            lambda: before + b"[" * 100_000,
        ]
    )()


def other_value(value: Any, rng: random.Random) -> Any:
    """Return JSON with one value replaced, removed or renamed, at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        if rng.random() < 0.15:
            return {key: one for key, one in value.items() if key != name}
        return {key: other_value(one, rng) if key == name else one for key, one in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        return [other_value(one, rng) if number == place else one for number, one in enumerate(value)]
    return rng.choice(STRANGE)


# ---- probes ----------------------------------------------------------------------------------------------------------


def called(*arguments: str) -> None:
    """Call a command, which may report an error but not raise one."""
    main(list(arguments))


def kinds(folder: Path) -> list[Kind]:
    """Make a file of every kind in a folder, and say how each is read."""
    os.chdir(folder)
    os.environ["AMGC_CACHE"], os.environ["AMGC_STATE"] = str(folder / "cache"), str(folder / "state")
    assert main([*RUN, "--out", "run"]) == 0
    model = Model.create("model", filters=2)
    model.learn_all({kind: draw(kind, 10) for kind in ("cat", "dog")})
    model.rename("cat", "lynx")
    Path("model.zip").write_bytes(model.packed())
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 12)
    rows = rng.normal(size=(36, 4)) + labels[:, None]
    AMGCClassifier().fit(rows, labels).save("classifier.safetensors")
    torch.save(build("convnet", image_shape=(1, 8, 8), dim=8).network.state_dict(), "weights.pth")
    save_extractor("extractor.safetensors", build("convnet", image_shape=(1, 8, 8), dim=8))
    np.savez_compressed("data.npz", train_x=rows, train_y=labels, test_x=rows, test_y=labels)
    preset = 'methods = ["ncm"]\ndata = "digits"\nfeatures = "patches"\ntasks = 2\n[hyper.first]\nepochs = 0\n'
    Path("own.toml").write_text(preset)
    Path("grid").mkdir()
    Path("grid/compare.json").write_text(json.dumps({"version": 1, "commands": [["compare", "ncm"]]}))
    for suffix in ("png", "jpg", "gif", "bmp", "tif", "webp", "ppm"):
        for name in ("cat", "dog"):
            Path("photos", name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw(name, 1)[0]).save(f"photos/{name}/1.{suffix}")
    assert main(["sort", "model", "photos", "--into", "sorted"]) == 0
    load(f"folder:{folder / 'photos'}", size=8)

    def whole_model() -> Any:
        return sorted(Model.open("model").classes.items()), answers(Model.open("model"), "cat", "dog", count=2)

    def unpacked() -> Any:
        shutil.rmtree("unpacked", ignore_errors=True)
        found = Model.unpacked(Path("model.zip").read_bytes(), "unpacked")
        return sorted(found.classes.items()), answers(found, "cat", "dog", count=2)

    def read_run() -> None:
        for command in (["show", "run"], ["report", "run", "-o", "page.html"], ["resume", "run", "--quiet"]):
            called(*command)
        shutil.rmtree("made", ignore_errors=True)
        called("model", "run", "--out", "made")

    def look(path: Path) -> Callable[[], None]:
        return lambda: called("predict", "model", str(path), "--json")

    found = [Kind(f"model {path.name.split('-')[0]}", path, whole_model) for path in sorted(Path("model").glob("[!.]*"))]
    found += [Kind("model.zip", Path("model.zip"), unpacked)]
    names = ("run.json", "plan.json", "metrics.jsonl", "observed/task-1.json", "checkpoint.safetensors")
    found += [Kind(f"run {name}", Path("run", name), read_run) for name in names]
    found += [Kind(f"picture {path.suffix}", path, look(path)) for path in sorted(Path("photos/cat").iterdir())]
    classifier = Path("classifier.safetensors")
    found += [
        Kind("classifier", classifier, lambda: AMGCClassifier.load(classifier).predict_proba(rows).tolist()),
        Kind("weights .pth", Path("weights.pth"), lambda: read_weights("weights.pth") and None),
        Kind("extractor", Path("extractor.safetensors"), lambda: load_extractor("extractor.safetensors") and None),
        Kind("npz", Path("data.npz"), lambda: load("npz:data.npz") and None),
        Kind("preset", Path("own.toml"), lambda: called("run", "own.toml", "--dry-run", "--out", "dry")),
    ]
    found += [Kind(f"source {Path(source).suffix}", Path(source.partition(":")[2]), read(source)) for source in sources()]
    np.savez("vectors.npz", x=rows, y=labels)
    found.append(Kind("vectors .npz", Path("vectors.npz"), lambda: read_vectors("vectors.npz") and None))
    for path in Path("sorted").glob("amgc-sort.jsonl"):
        found.append(Kind("journal of sort", path, lambda: called("sort", "--undo", "sorted")))
    found.append(Kind("compare.json", Path("grid/compare.json"), lambda: called("resume", "grid")))
    for path in [*Path("cache/images").glob("*/*/manifest.json"), *Path("cache/images").glob("*/*/pixels-*.npy")][:4]:
        found.append(Kind(f"cache {path.suffix}", path, lambda: load(f"folder:{folder / 'photos'}", size=8) and None))
    return found


def sources() -> list[str]:
    """Write the drawings of photos/ as tar files and, with pyarrow, as a Parquet file. Returns their names."""
    drawn = [(path.parent.name, path.read_bytes()) for path in sorted(Path("photos").glob("*/*.png"))]
    made = ["wds:drawn.tar", "wds:drawn.tgz"]
    for name, mode in zip(made, ("w", "w:gz"), strict=True):
        with tarfile.open(name.partition(":")[2], mode) as archive:
            for number, parts in enumerate(drawn):
                for suffix, content in zip(("json", "png"), (json.dumps({"label": parts[0]}).encode(), parts[1]), strict=True):
                    member = tarfile.TarInfo(f"{number}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    with contextlib.suppress(ImportError):
        import pyarrow
        import pyarrow.parquet

        columns = {"image": [content for _, content in drawn], "label": [label for label, _ in drawn]}
        pyarrow.parquet.write_table(pyarrow.table(columns), "drawn.parquet")
        made.append("parquet:drawn.parquet")
    return made


def read(source: str) -> Probe:
    """Return a probe that reads all samples of a source."""

    def probe() -> None:
        for shard in open_source(source):
            for _ in shard.samples():
                pass

    return probe


class TooLong(BaseException):
    """Not an Exception, so that nothing catches it."""


@contextlib.contextmanager
def silent() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def outcome(probe: Probe) -> tuple[str, Any]:
    """Return "ok" and what the probe returns, "refused" and None, or what went wrong and its traceback."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with silent(), within(SECONDS, TooLong):
            value = probe()
    except TooLong:
        return "hang", traceback.format_exc()
    except Exception as error:
        if exit_code(error) is None:
            return "traceback", traceback.format_exc()
        value, result = None, "refused"
    else:
        result = "ok"
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > peak + GROWTH:
        return "growth", f"{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1e6:.1f} GB"
    return result, value


def restored(folder: Path, copy: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(copy, folder, dirs_exist_ok=True, symlinks=True)


def mutate(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Damage files `count` times in turn. Returns how it ended, by kind of end, and a description of each fault."""
    ends: Counter[str] = Counter()
    faults = []
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        folder, copy = Path(place, "work").resolve(), Path(place, "copy").resolve()
        folder.mkdir()
        with silent():
            found = kinds(folder)
        shutil.copytree(folder, copy, symlinks=True)
        expected = {}
        for kind in found:
            expected[kind.name, kind.path] = outcome(kind.probe)[1]
            restored(folder, copy)
        for number in range(count):
            kind, rng = found[number % len(found)], random.Random(f"{seed} {number}")
            content = kind.path.read_bytes()
            damaged = damage(content, rng)
            kind.path.write_bytes(damaged)
            resigned = kind.path.parent.name == "model" and rng.random() < 0.5 and _resign(kind.path, content, rng)
            end, value = outcome(kind.probe)
            known = expected[kind.name, kind.path]
            if end == "ok" and known is not None and value != known and not resigned and damaged != content:
                end, value = "changed", ""
            ends[end] += 1
            if end not in ("ok", "refused"):
                told = str(value).encode("utf-8", "backslashreplace").decode()  # pytest's processes exchange UTF-8 only
                faults.append(f"{end}: {kind.name}, seed {seed}, mutation {number}\n{told}")
            restored(folder, copy)
        os.chdir(home)
    return ends, faults


def _resign(path: Path, content: bytes, rng: random.Random) -> bool:
    """Damage a file of the model and correct all checksums."""
    folder = Folder("model")
    path.write_bytes(content)
    if path.suffix == ".json":
        changed = other_value({name: value for name, value in json.loads(content).items() if name != "checksum"}, rng)
        path.write_text(json.dumps(changed), encoding="utf-8", errors="replace")
        return True
    manifest = folder.manifest()
    role = path.name.split("-")[0]
    kind = {"classes": "model classes", "extractor": "extractor"}[role]
    header, tensors = tensor_files.read(path, kind)
    header = other_value(header, rng)
    if not isinstance(header, dict):
        header = {}
    with contextlib.suppress(ValueError, TypeError):
        tensor_files.write(path, kind, header, tensors)
    new = manifest.to_json()
    del new["checksum"]
    for entry in new["files"].values():
        if entry["name"] == path.name:
            entry |= {"sha256": digest(path), "bytes": path.stat().st_size}
    (folder.path / "manifest.json").write_text(json.dumps(new))
    Manifest.from_json(folder.path, new)
    return True


# ---- kills -----------------------------------------------------------------------------------------------------------


def in_child(arguments: list[str], after: float | None = None) -> float:
    """Call a command in a forked process, which is killed after a time. Returns how long it took."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
            code = main(arguments)
        finally:
            os._exit(code)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return time.monotonic() - start


def state_of_model(path: str = "model") -> Any:
    found = Model.open(path)
    return sorted(found.classes.items()), answers(found, "cat", "dog", count=2)


def figures(path: str) -> Any:
    return [(line.correct, line.total) for line in load_run(path).lines]


def commands() -> dict[str, list[str]]:
    return {
        "learn": ["learn", "model", "more"],
        "shards": ["learn", "model", "more", "--jobs", "1", "--shard-files", "2"],
        "forget": ["forget", "model", "cat"],
        "rename": ["rename", "model", "cat", "lynx"],
        "merge": ["merge", "model", "other", "--out", "merged"],
        "undo": ["undo", "model"],
        "run": [*TRAINED, "--out", "run"],
        "resume": ["resume", "run", "--quiet"],
        "sort": ["sort", "model", "more", "--into", "sorted", "--move"],
    }


def kill(name: str, count: int, seed: int) -> list[str]:
    """Kill a command `count` times at random moments. Returns a description of each fault."""
    faults = []
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        home, folder, copy = os.getcwd(), Path(place, "work").resolve(), Path(place, "copy").resolve()
        folder.mkdir()
        os.chdir(folder)
        os.environ["AMGC_STATE"] = str(folder / "state")
        try:
            with silent():
                _prepare(name)
            shutil.copytree(folder, copy)
            arguments = commands()[name]
            allowed = [_state(name)]
            longest = in_child(arguments)
            allowed.append(_state(name))
            for number in range(count):
                restored(folder, copy)
                rng = random.Random(f"{seed} {name} {number}")
                in_child(arguments, rng.uniform(0, longest))
                try:
                    with silent(), within(120, TooLong):
                        _follow(name, allowed)
                except (Exception, TooLong):
                    faults.append(f"{name}, seed {seed}, kill {number}\n{traceback.format_exc()}")
        finally:
            os.chdir(home)
    return faults


def _prepare(name: str) -> None:
    if name in ("run", "resume"):
        if name == "resume":
            in_child([*TRAINED, "--out", "run"], in_child([*TRAINED, "--out", "whole"]) * 0.6)
            if not Path("run/run.json").exists():
                shutil.copytree("whole", "run")
        return
    model = Model.create("model", filters=2)
    model.learn_all({kind: draw(kind, 10) for kind in ("cat", "dog")})
    for number, pixels in enumerate(draw("owl", 8)):
        Path("more/owl").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(f"more/owl/{number}.png")
    if name == "merge":
        Model.create("other", features="model").learn(draw("fox", 10), "fox")
    if name == "undo":
        model.rename("cat", "lynx")


def _state(name: str) -> Any:
    """What the command changes."""
    if name in ("run", "resume"):
        return figures("run") if Path("run/run.json").exists() else None
    if name == "merge":
        return state_of_model("merged") if Path("merged/manifest.json").exists() else None
    if name == "sort":
        return sorted(path.read_bytes() for root in ("more", "sorted") for path in Path(root).rglob("*.png"))
    return state_of_model()


def _follow(name: str, allowed: list[Any]) -> None:
    """Check what a killed command left, and that the command can be followed by another one."""
    before, after = allowed
    if name in ("run", "resume"):
        if Path("run/run.json").exists():
            assert main(["resume", "run", "--quiet"]) == 0
        else:
            shutil.rmtree("run", ignore_errors=True)
            assert main([*TRAINED, "--out", "run"]) == 0
        assert figures("run") == after, "the resumed run has other figures"
        return
    if name == "sort":
        assert set(before) == set(_state(name)) - {b""}, "a picture is lost"  # an empty file claims a name, until undo
        if Path("sorted").exists():
            assert main(["sort", "--undo", "sorted"]) in (0, 1, 2)
            assert set(before) == set(_state(name)), "a picture is lost by undo"
        return
    assert _state(name) in allowed, "neither the state before nor the one after"
    if name == "merge":
        assert Path("merged/manifest.json").exists() or main(commands()[name]) == 0
    else:
        assert main(["learn", "model", "--label", "bee", "more/owl/0.png"]) == 0


def main_fuzz() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    ends, faults = mutate(given.mutations, given.seed)
    print(f"{given.mutations} mutations: {dict(ends)}", flush=True)
    for name in commands() if given.kills else ():
        found = kill(name, given.kills, given.seed)
        print(f"{name}: {given.kills} kills, {len(found)} faults", flush=True)
        faults += found
    print("\n".join(faults))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main_fuzz())
