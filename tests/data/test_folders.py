"""Folders of images, Tiny-ImageNet and ImageNet-Subset."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from amgc.data import Augment, CorruptImageError, TaskStream, load
from amgc.data.image_files import Files
from amgc.data.images import InMemory, Mapped
from amgc.data.sets import folders

COLOURS = {"ant": (250, 0, 0), "bee": (0, 250, 0), "owl": (0, 0, 250)}


@pytest.fixture
def pets(tmp_path: Path, paint: Callable[..., Path]) -> Path:
    """Write three classes of ten images in their colour. The red value of the last row identifies an image."""
    for name, colour in COLOURS.items():
        for number in range(10):
            paint(tmp_path / "pets" / name / f"{number}.png", colour)
    return tmp_path / "pets"


@pytest.fixture
def split(tmp_path: Path, paint: Callable[..., Path]) -> Path:
    for name, colour in COLOURS.items():
        for number in range(3):
            paint(tmp_path / "split" / "train" / name / f"{number}.png", colour, (20, 30))
        paint(tmp_path / "split" / "test" / name / "t.png", colour)
    return tmp_path / "split"


def colours_match(dataset: object) -> bool:
    for images in (dataset.train, dataset.test):  # type: ignore[attr-defined]
        pixels = images.take(range(len(images)))[:, :, 4, 4]
        expected = torch.tensor(list(COLOURS.values()))[images.labels]
        if not torch.equal(pixels.int(), expected.int()):
            return False
    return True


def test_train_and_test_folders_are_read_with_their_class_names(split: Path) -> None:
    dataset = load(f"folder:{split}", size=8)
    assert dataset.class_names == ("ant", "bee", "owl") and dataset.name == "folder:split"
    assert len(dataset.train) == 9 and len(dataset.test) == 3 and dataset.train.shape == (3, 8, 8)
    assert colours_match(dataset)


def test_a_stray_pdf_in_a_class_folder_is_ignored(split: Path) -> None:
    (split / "train" / "ant" / "leaflet.pdf").write_bytes(b"%PDF-1.4")
    assert len(load(f"folder:{split}", size=8).train) == 9


def test_val_serves_as_test(split: Path) -> None:
    (split / "test").rename(split / "val")
    assert len(load(f"folder:{split}", size=8).test) == 3


def test_one_level_is_split_by_class_and_seed(pets: Path, paint: Callable[..., Path]) -> None:
    dataset = load(f"folder:{pets}", size=8, test_share=0.3)
    assert torch.bincount(dataset.test.labels).tolist() == [3, 3, 3]
    assert torch.bincount(dataset.train.labels).tolist() == [7, 7, 7]
    assert colours_match(dataset)


def test_the_split_follows_the_seed_and_a_new_class_does_not_change_it() -> None:
    labels = np.repeat(np.arange(3), 50)
    names = ("ant", "bee", "owl")
    first = folders.stratified(labels, 0.2, 0, names)
    assert np.array_equal(first, folders.stratified(labels, 0.2, 0, names))
    assert not np.array_equal(first, folders.stratified(labels, 0.2, 1, names))
    without = folders.stratified(labels[:100], 0.2, 0, ("ant", "owl"))
    assert np.array_equal(without[50:], first[100:])


def test_a_class_of_one_image_cannot_be_split(pets: Path, paint: Callable[..., Path]) -> None:
    paint(pets / "yak" / "only.png")
    with pytest.raises(ValueError, match="'yak' has 1 images"):
        load(f"folder:{pets}", size=8)


def test_an_empty_class_folder_is_named(pets: Path) -> None:
    (pets / "gnu").mkdir()
    (pets / "gnu" / ".DS_Store").write_bytes(b"x")
    with pytest.raises(ValueError, match="gnu' has no images"):
        load(f"folder:{pets}", size=8)


def test_hidden_folders_are_no_classes(pets: Path, paint: Callable[..., Path]) -> None:
    paint(pets / ".trash" / "x.png")
    assert load(f"folder:{pets}", size=8).class_names == ("ant", "bee", "owl")


def test_train_and_test_must_have_the_same_classes(split: Path, paint: Callable[..., Path]) -> None:
    paint(split / "test" / "yak" / "x.png")
    with pytest.raises(ValueError, match=r"'yak' is in .*test' and not in .*train'"):
        load(f"folder:{split}")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("")
    with pytest.raises(NotADirectoryError, match=r"x\.zip' is a file"):
        load(f"folder:{tmp_path / 'x.zip'}")


def test_a_missing_folder_or_missing_parts_say_what_to_do(tmp_path: Path, split: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere' is missing\. folder:PATH takes"):
        load(f"folder:{tmp_path / 'nowhere'}")
    shutil.rmtree(split / "test")
    with pytest.raises(FileNotFoundError, match=r"no test/.*set aside"):
        load(f"folder:{split}")
    (tmp_path / "bare").mkdir()
    with pytest.raises(FileNotFoundError, match="no class folders"):
        load(f"folder:{tmp_path / 'bare'}")


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("memory", [10**9, 0])
def test_a_corrupt_file_is_named_or_by_choice_skipped_and_counted(
    cache: bool, memory: int, pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = pets / "bee" / "4.png"
    bad.write_bytes(bad.read_bytes()[:40])
    with pytest.raises(CorruptImageError, match=r"bee/4.png"):
        dataset = load(f"folder:{pets}", size=8, cache=cache, memory=memory)
        for images in (dataset.train, dataset.test):  # without cache and memory: when it is asked for
            images.take(range(len(images)))
    with caplog.at_level(logging.WARNING, "amgc.data"):
        dataset = load(f"folder:{pets}", size=8, cache=cache, memory=memory, on_corrupt="skip")
    assert len(dataset.train) + len(dataset.test) == 29
    assert dataset.skipped == (str(bad),) and "1 of 30 files cannot be read" in caplog.text
    assert colours_match(dataset)


def test_a_class_whose_images_are_all_corrupt_is_an_error_even_when_skipping(split: Path) -> None:
    (split / "test" / "owl" / "t.png").write_bytes(b"")
    with pytest.raises(ValueError, match="'owl' has no test images"):
        load(f"folder:{split}", on_corrupt="skip", size=8)
    with pytest.raises(ValueError, match="on_corrupt must be"):
        load(f"folder:{split}", on_corrupt="ignore", size=8)


def test_images_are_in_memory_if_they_fit_and_otherwise_on_disk_or_decoded(pets: Path) -> None:
    kinds = {(True, 10**9): InMemory, (True, 100): Mapped, (False, 10**9): InMemory, (False, 100): Files}
    answers = []
    for (cache, memory), kind in kinds.items():
        dataset = load(f"folder:{pets}", size=8, cache=cache, memory=memory)
        assert type(dataset.train.pixels) is kind
        answers.append(dataset.train.take(range(len(dataset.train))))
        batches = list(dataset.train.batches(torch.arange(len(dataset.train)).split(5)))
        assert torch.equal(torch.cat([pixels for pixels, _ in batches]), answers[0])
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_a_task_of_files_lists_no_file_of_another_task(pets: Path) -> None:
    dataset = load(f"folder:{pets}", size=8, cache=False, memory=0)
    task = TaskStream(dataset, (2, 0, 1), (1, 1, 1)).train(0)
    assert isinstance(task.pixels, Files) and all("owl" in path for path in task.pixels.paths)


def test_a_task_is_kept_in_memory_within_what_load_was_given(pets: Path) -> None:
    one = 8 * 3 * 8 * 8  # the training images of a class
    for memory, kind in ((one - 1, Mapped), (one, InMemory)):
        stream = TaskStream(load(f"folder:{pets}", size=8, memory=memory), (2, 0, 1), (1, 2))
        assert type(stream.train(0).pixels) is kind and type(stream.train(1).pixels) is Mapped
    stream = TaskStream(replace(load(f"folder:{pets}", size=8, memory=0), memory=one), (2, 0, 1), (1, 2))
    assert type(stream.train(0).pixels) is InMemory


@pytest.fixture
def tiny(tmp_path: Path, paint: Callable[..., Path]) -> Path:
    """Write the official layout with three classes. wnids.txt is not sorted, like the official one."""
    base = tmp_path / "data" / "tiny-imagenet-200"
    wnids = {"n03": "owl", "n01": "ant", "n02": "bee"}
    for wnid, name in wnids.items():
        for number in range(2):
            paint(base / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", COLOURS[name], (64, 64))
        (base / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        paint(base / "val" / "images" / f"val_{name}.JPEG", COLOURS[name], (64, 64))
    (base / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (base / "words.txt").write_text("n00\tentity\nn01\tant, pismire\nn02\tbee\nn03\towl, bird of Minerva\n")
    rows = [f"val_{name}.JPEG\t{wnid}\t0\t0\t62\t62" for wnid, name in wnids.items()]
    (base / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    return base


def test_tiny_imagenet_is_read_from_its_official_layout(tiny: Path) -> None:
    for root in (tiny, tiny.parent):
        dataset = load("tiny-imagenet", root)
        assert dataset.class_names == ("ant", "bee", "owl"), "by sorted wnid"
        assert len(dataset.train) == 6 and len(dataset.test) == 3 and dataset.train.shape == (3, 64, 64)
        for images in (dataset.train, dataset.test):  # JPEG changes colours a little
            brightest = images.take(range(len(images)))[:, :, 30, 30].argmax(1)
            assert torch.equal(brightest, images.labels)
        assert Augment.of(dataset) == Augment(64, folders.MEAN, folders.STD, padding=4, flip=True)


@pytest.mark.parametrize("name", ["wnids.txt", "words.txt", "val/val_annotations.txt", "val/images/val_bee.JPEG"])
def test_a_missing_part_of_tiny_imagenet_is_named(name: str, tiny: Path) -> None:
    (tiny / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{name}' is missing.*unpack the official"):
        load("tiny-imagenet", tiny)


def test_an_unknown_wnid_in_the_annotations_is_named_with_its_line(tiny: Path) -> None:
    path = tiny / "val" / "val_annotations.txt"
    path.write_text(path.read_text().replace("n02", "n99"))
    with pytest.raises(ValueError, match="line 3: 'n99'"):
        load("tiny-imagenet", tiny)


def imagenet(root: Path, paint: Callable[..., Path], count: int) -> Path:
    one = paint(root / "one.png")
    for split in ("train", "val"):
        for number in range(count):
            folder = root / split / f"n{number:08d}"
            folder.mkdir(parents=True)
            (folder / "x.png").hardlink_to(one)
    return root


def test_the_stored_class_list_is_numpys_shuffle_with_seed_1993() -> None:
    state = np.random.get_state()
    np.random.seed(1993)
    order = np.arange(1000)
    np.random.shuffle(order)
    np.random.set_state(state)
    assert folders.subset_places() == order[:100].tolist()


def test_the_class_list_may_have_the_line_ends_of_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = folders.subset_places()
    content = (resources.files("amgc.data.sets") / folders.LIST).read_bytes()
    (tmp_path / folders.LIST).write_bytes(content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
    monkeypatch.setattr(folders.resources, "files", lambda _: tmp_path)
    assert folders.subset_places() == expected
    (tmp_path / folders.LIST).write_bytes(content.replace(b"894", b"89x"))
    with pytest.raises(ValueError, match="has been changed"):
        folders.subset_places()


def test_a_changed_class_list_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LIST_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="has been changed"):
        folders.subset_places()


def test_of_1000_classes_the_listed_100_are_taken_in_sorted_order(tmp_path: Path, paint: Callable[..., Path]) -> None:
    dataset = load("imagenet-subset", imagenet(tmp_path, paint, 1000), size=8)
    assert dataset.class_names == tuple(f"n{place:08d}" for place in sorted(folders.subset_places()))


def test_a_folder_of_100_classes_is_taken_as_it_is_and_words_name_the_classes(
    tmp_path: Path, paint: Callable[..., Path]
) -> None:
    root = imagenet(tmp_path, paint, 100)
    (root / "LOC_synset_mapping.txt").write_text("n00000000 tench, Tinca tinca\nn00000001 crane\nn00000002 crane\n")
    dataset = load("imagenet-subset", root, size=8)
    assert dataset.class_names[:4] == ("tench", "crane (n00000001)", "crane (n00000002)", "n00000003")
    assert len(dataset.class_names) == 100


def test_another_number_of_classes_needs_a_list(tmp_path: Path, paint: Callable[..., Path]) -> None:
    root = imagenet(tmp_path, paint, 5)
    with pytest.raises(ValueError, match=r"5 class folders.*classes=FILE"):
        load("imagenet-subset", root)
    chosen = tmp_path / "list.txt"
    chosen.write_text("# mine\nn00000003 something\nn00000001\n")
    dataset = load("imagenet-subset", root, classes=str(chosen))
    assert dataset.class_names == ("n00000001", "n00000003")
    assert Augment.of(dataset) == Augment(224, folders.MEAN, folders.STD, flip=True, resized=True), "as PyCIL, from 256"
    chosen.write_text("n00000009\n")
    with pytest.raises(FileNotFoundError, match="n00000009' is missing"):
        load("imagenet-subset", root, classes=str(chosen))


def test_a_validation_folder_without_class_folders_is_refused(tmp_path: Path, paint: Callable[..., Path]) -> None:
    root = imagenet(tmp_path, paint, 100)
    shutil.rmtree(root / "val")
    paint(root / "val" / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(FileNotFoundError, match=r"val/n00000000' is missing.*one folder per class"):
        load("imagenet-subset", root)
