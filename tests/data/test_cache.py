"""The cache of decoded images: reused if nothing has changed, otherwise created again, and never incomplete."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amgc.data import cache, image_files, load
from amgc.data.decode import CorruptImageError


@pytest.fixture
def pets(tmp_path: Path, paint: Callable[..., Path]) -> Path:
    for label, name in enumerate(("ant", "bee")):
        for number in range(6):
            paint(tmp_path / "pets" / name / f"{number}.png", (label * 100 + number, 0, 0))
    return tmp_path / "pets"


class Counter:
    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Return a counter of decoded files."""
    counter, original = Counter(), image_files.decode

    def counting(path: Any, size: int) -> Any:
        counter.count += 1
        return original(path, size)

    monkeypatch.setattr(image_files, "decode", counting)
    return counter


def reds(pets: Path, **options: Any) -> list[int]:
    dataset = load(f"folder:{pets}", size=8, **options)
    both = [images.take(range(len(images)))[:, 0, 0, 0] for images in (dataset.train, dataset.test)]
    return sorted(torch.cat(both).tolist())


EXPECTED = [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105]


def parts(own_cache: Path) -> tuple[Path, Path]:
    (manifest,) = own_cache.rglob("manifest.json")
    (pixels,) = own_cache.rglob("pixels-*.npy")
    return manifest, pixels


def test_a_second_load_decodes_nothing_whatever_the_split(pets: Path, decoded: Counter) -> None:
    assert reds(pets) == EXPECTED and decoded.count == 12
    assert reds(pets) == EXPECTED and reds(pets, split_seed=3) == EXPECTED and reds(pets, memory=0) == EXPECTED
    assert decoded.count == 12


def test_another_size_has_its_own_cache(pets: Path, decoded: Counter) -> None:
    reds(pets)
    load(f"folder:{pets}", size=4)
    reds(pets)
    assert decoded.count == 24


@pytest.mark.parametrize("change", ["content", "added", "removed", "renamed", "touched"])
def test_changed_files_are_decoded_again(
    change: str, pets: Path, paint: Callable[..., Path], caplog: pytest.LogCaptureFixture, own_cache: Path
) -> None:
    reds(pets)
    target, expected = pets / "ant" / "0.png", list(EXPECTED)
    if change == "content":
        paint(target, (77, 0, 0))
        expected[0] = 77
    elif change == "added":
        paint(pets / "ant" / "new.png", (77, 0, 0))
        expected.append(77)
    elif change == "removed":
        target.unlink()
        expected.remove(0)
    elif change == "renamed":
        target.rename(pets / "bee" / "from-ant.png")
    else:
        os.utime(target, ns=(1, 1))
    with caplog.at_level(logging.WARNING, "amgc.data"):
        assert reds(pets) == sorted(expected)
    if change in ("content", "touched"):
        assert "rebuilt: files were changed" in caplog.text
        parts(own_cache)  # exactly one array is left
    else:
        assert "has other caches (1)" in caplog.text and "clear" in caplog.text
    assert cache.clear(pets) and not list(own_cache.rglob("*.npy"))


def test_two_lists_of_classes_in_one_folder_do_not_evict_each_other(
    tmp_path: Path, paint: Callable[..., Path], decoded: Counter
) -> None:
    for split in ("train", "val"):
        for name in ("ant", "bee", "owl"):
            paint(tmp_path / split / name / "x.png")
    for names in ("ant bee", "bee owl", "ant bee", "bee owl"):
        (tmp_path / "list.txt").write_text("\n".join(names.split()))
        load("imagenet-subset", tmp_path, classes=str(tmp_path / "list.txt"), size=8)
    assert decoded.count == 8


def test_another_spelling_of_the_folder_finds_its_cache(pets: Path, decoded: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    reds(pets)
    monkeypatch.chdir(pets)
    assert reds(Path(".")) == EXPECTED and reds(Path("../pets")) == EXPECTED and decoded.count == 12


def test_another_pillow_decodes_again(
    pets: Path, decoded: Counter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reds(pets)
    monkeypatch.setattr("PIL.__version__", "99.0")
    assert reds(pets) == EXPECTED and decoded.count == 24
    assert "and this is 99.0" in caplog.text


def test_a_folder_whose_name_is_not_utf8_has_a_cache(pets: Path, decoded: Counter) -> None:
    strange = pets.with_name(os.fsdecode(b"caf\xe9"))
    try:
        pets.rename(strange)
    except OSError:
        pytest.skip("this file system wants UTF-8")
    assert reds(strange) == EXPECTED and reds(strange) == EXPECTED and decoded.count == 12
    assert cache.clear(strange) == 1


def test_clear_removes_the_caches_of_a_folder_or_all_and_nothing_else(pets: Path, own_cache: Path, tmp_path: Path) -> None:
    shutil.copytree(pets, tmp_path / "more")
    reds(pets)
    load(f"folder:{pets}", size=4)
    reds(tmp_path / "more")
    mine = own_cache / "images" / "holiday" / "beach" / "manifest.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("")
    assert cache.clear(pets / "ant") == 0 and cache.clear(pets) == 2 and cache.clear(pets) == 0
    assert len(list(own_cache.rglob("pixels-*.npy"))) == 1
    assert cache.clear(cache=tmp_path) == 0 and cache.clear() == 1
    reds(pets)
    assert cache.clear(tmp_path) == 1, "what was loaded from a folder inside"
    reds(pets)
    next(own_cache.rglob("pixels-*.npy")).with_name("manifest.json").write_text("damaged")
    assert cache.clear(pets) == 1
    assert [path for path in own_cache.rglob("*") if path.is_file()] == [mine]


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_cache_files_have_ordinary_permissions(pets: Path, own_cache: Path) -> None:
    before = os.umask(0o027)
    try:
        reds(pets)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in parts(own_cache)] == [0o640, 0o640]


def test_a_file_that_the_disk_does_not_give_is_no_failure_of_the_cache(
    pets: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = image_files.decode

    def failing(path: Any, size: int) -> Any:
        if str(path).endswith("bee/3.png"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return original(path, size)

    monkeypatch.setattr(image_files, "decode", failing)
    with pytest.raises(OSError, match=r"bee/3\.png") as caught:
        reds(pets, on_corrupt="skip")
    assert caught.value.errno == errno.EIO and "not cached" not in caplog.text
    assert not [path for path in own_cache.rglob("*") if path.is_file()]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip_last(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("memory", [10**9, 0])
@pytest.mark.parametrize(
    ("part", "damage"),
    [
        (0, truncate),
        (0, lambda path: path.write_text("[]")),
        (0, lambda path: path.write_text("{}")),
        (0, lambda path: path.write_bytes(b"\xff\xfe")),
        (0, lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))),
        (0, lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "pixels": "../../x.npy"}))),
        (0, lambda path: path.unlink()),
        (1, truncate),
        (1, flip_last),
        (1, lambda path: path.write_bytes(b"")),
        (1, lambda path: path.write_bytes(path.read_bytes()[:60] + b"[" * 100_000)),
        (1, lambda path: np.save(path, np.zeros((2, 2)))),
        (1, lambda path: path.unlink()),
    ],
)
def test_a_damaged_cache_is_created_again_with_a_message(
    part: int, damage: Any, memory: int, pets: Path, own_cache: Path, caplog: pytest.LogCaptureFixture, decoded: Counter
) -> None:
    reds(pets)
    damage(parts(own_cache)[part])
    with caplog.at_level(logging.WARNING, "amgc.data"):
        assert reds(pets, memory=memory) == EXPECTED
    assert "rebuilt" in caplog.text and decoded.count == 24
    assert reds(pets) == EXPECTED and decoded.count == 24


def test_checksums_cover_every_block(pets: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "BLOCK", 5)
    reds(pets)
    manifest, pixels = parts(own_cache)
    assert len(json.loads(manifest.read_text())["crc32"]) == 3
    array = np.load(pixels)
    for row in range(12):
        damaged = array.copy()
        damaged[row, 1, 2, 3] ^= 1
        np.save(pixels, damaged)
        with pytest.raises(cache.StaleCacheError, match=f"rows from {row // 5 * 5} on"):
            cache._open(manifest.parent, json.loads(manifest.read_text()), check_all=True)


def test_files_that_a_killed_process_left_behind_are_removed(pets: Path, own_cache: Path, paint: Callable[..., Path]) -> None:
    reds(pets)
    left = parts(own_cache)[0].with_name(".pixels-x.partial")
    fresh = left.with_name(".pixels-y.partial")
    left.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(left, (1, 1))
    paint(pets / "ant" / "new.png")
    reds(pets)
    assert not left.exists() and fresh.exists()


def test_an_interrupted_write_leaves_no_cache_and_no_litter(
    pets: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = image_files.decode

    def interrupted(path: Any, size: int) -> Any:
        if str(path).endswith("bee/3.png"):
            raise KeyboardInterrupt
        return original(path, size)

    with monkeypatch.context() as patch:
        patch.setattr(image_files, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reds(pets)
    assert not [path for path in own_cache.rglob("*") if path.is_file()]
    assert reds(pets) == EXPECTED


def test_a_full_or_read_only_disk_means_no_cache_and_the_same_images(
    pets: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "amgc.data"):
        patch.setattr(cache.os, "fsync", full)
        assert reds(pets) == EXPECTED
    assert "No space left" in caplog.text and not [path for path in own_cache.rglob("*") if path.is_file()]
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "amgc.data"):
        patch.setattr(cache, "SPARE", 1 << 62)
        assert reds(pets) == EXPECTED
    assert "GB free" in caplog.text
    blocked = own_cache / "file"
    blocked.write_text("")
    assert reds(pets, cache=str(blocked)) == EXPECTED


def test_without_a_cache_nothing_is_written_and_another_folder_may_be_named(pets: Path, own_cache: Path) -> None:
    assert reds(pets, cache=False) == EXPECTED and list(own_cache.iterdir()) == []
    assert reds(pets, cache=str(own_cache / "here")) == EXPECTED
    assert list((own_cache / "here").rglob("manifest.json")) and not list(pets.rglob("*.npy"))


def test_corrupt_files_are_remembered_so_that_skipping_costs_no_second_decoding(pets: Path, decoded: Counter) -> None:
    (pets / "ant" / "2.png").write_bytes(b"no picture")
    with pytest.raises(CorruptImageError, match=r"ant/2\.png"):
        reds(pets)
    assert reds(pets, on_corrupt="skip") == [red for red in EXPECTED if red != 2]
    assert decoded.count == 12
