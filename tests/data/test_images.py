"""Images, their three kinds of sources, arrays and the registry."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amgc.data import Dataset, Images, data_set, data_sets, load, option
from amgc.data.images import InMemory, Mapped, in_memory
from amgc.data.registry import DATA_SETS
from amgc.data.sets import arrays


def numbered(count: int) -> np.ndarray[Any, Any]:
    """Return images in which image k is filled with the number k."""
    return np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 3, 2, 2)).copy()


def on_disk(folder: Path, count: int) -> Mapped:
    np.save(folder / "pixels.npy", numbered(count))
    return Mapped(np.load(folder / "pixels.npy", mmap_mode="r"))


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_take_gives_the_named_images_in_their_order_and_as_often(kind: str, tmp_path: Path) -> None:
    pixels = InMemory(torch.from_numpy(numbered(9))) if kind == "memory" else on_disk(tmp_path, 9)
    images = Images(torch.arange(9), pixels)
    taken = images.take([5, 0, 5, 8])
    assert taken.dtype == torch.uint8 and taken.shape == (4, 3, 2, 2)
    assert taken[:, 0, 0, 0].tolist() == [5, 0, 5, 8]
    some = images.subset([7, 2, 4], budget=0 if kind == "disk" else 10**6)
    assert some.take([2, 0])[:, 0, 0, 0].tolist() == [4, 7] and some.labels.tolist() == [7, 2, 4]
    assert images.take([]).shape == (0, 3, 2, 2)


@pytest.mark.parametrize("wrong", [[9], [-1], [0, 100]])
def test_indices_outside_are_refused(wrong: list[int], tmp_path: Path) -> None:
    for pixels in (InMemory(torch.from_numpy(numbered(9))), on_disk(tmp_path, 9)):
        with pytest.raises(IndexError, match="indices are 0 to 8"):
            Images(torch.arange(9), pixels).take(wrong)


def test_a_mask_or_fractions_are_no_indices() -> None:
    images = Images.of(numbered(2), [0, 1])
    for wrong in ([True, False], [0.5], [[0]]):
        with pytest.raises(ValueError, match="whole numbers"):
            images.take(wrong)


def test_images_that_fit_the_budget_are_loaded_and_others_stay_on_disk(tmp_path: Path) -> None:
    mapped = on_disk(tmp_path, 10)
    assert in_memory(mapped, budget=119) is mapped
    loaded = in_memory(mapped, budget=120, chunk=3)
    assert isinstance(loaded, InMemory)
    assert np.array_equal(loaded.samples.numpy(), numbered(10))


def test_batches_come_in_order_with_their_labels(tmp_path: Path) -> None:
    order = torch.randperm(50).split(7)
    for pixels in (InMemory(torch.from_numpy(numbered(50))), on_disk(tmp_path, 50)):
        images = Images(torch.arange(50) * 2, pixels)
        found = list(images.batches(order))
        assert [batch[:, 0, 0, 0].tolist() for batch, _ in found] == [rows.tolist() for rows in order]
        assert [labels.tolist() for _, labels in found] == [(rows * 2).tolist() for rows in order]


class Counting(Mapped):
    """A source that counts reads and fails at row 6."""

    taken = 0

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        self.taken += len(rows)
        if 6 in rows.tolist():
            raise OSError("row 6")
        return super().take(rows)


def test_no_more_than_a_few_batches_are_read_ahead_and_threads_end() -> None:
    pixels = Counting(numbered(100))
    batches = Images(torch.arange(100), pixels).batches([[k] for k in range(20, 100)], ahead=3)
    for _ in range(5):
        next(batches)
    assert pixels.taken <= 5 + 3
    batches.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("amgc-prefetch")]


def test_an_error_arises_at_its_own_batch() -> None:
    batches = Images(torch.arange(10), Counting(numbered(10))).batches([[k] for k in range(10)], ahead=4)
    for _ in range(6):
        next(batches)
    with pytest.raises(OSError, match="row 6"):
        next(batches)


def test_labels_and_images_must_be_equally_many() -> None:
    with pytest.raises(ValueError, match="2 labels for 3 images"):
        Images.of(numbered(3), [0, 1])


def test_a_class_without_images_is_refused_by_its_name() -> None:
    both, one = Images.of(numbered(2), [0, 1]), Images.of(numbered(2), [0, 0])
    with pytest.raises(ValueError, match="'dog' has no test images"):
        Dataset(both, one, ("cat", "dog"), "pets")
    with pytest.raises(ValueError, match="pets: there are no test images at all"):
        Dataset(both, Images.of(numbered(0), []), ("cat", "dog"), "pets")
    with pytest.raises(ValueError, match="go up to 1 for 1"):
        Dataset(both, both, ("cat",), "pets")
    with pytest.raises(ValueError, match="same name"):
        Dataset(both, both, ("cat", "cat"), "pets")


def test_digits_are_scikit_learns_with_a_fifth_of_each_class_set_aside() -> None:
    from sklearn.datasets import load_digits

    dataset = load("digits")
    pixels = torch.cat([part.take(range(len(part))) for part in (dataset.train, dataset.test)]).squeeze(1).numpy()
    labels = torch.cat([dataset.train.labels, dataset.test.labels]).numpy()
    ours = sorted((int(label), image.tobytes()) for image, label in zip(pixels, labels, strict=True))
    raw = load_digits()
    theirs = sorted(
        (int(label), np.rint(image * 255 / 16).astype(np.uint8).tobytes())
        for image, label in zip(raw.images, raw.target, strict=True)
    )
    assert ours == theirs and pixels.max() == 255
    share = np.bincount(dataset.test.labels.numpy()) / np.bincount(raw.target)
    assert np.all(np.abs(share - 0.2) < 0.01)
    again = load("digits")
    assert torch.equal(again.test.labels, dataset.test.labels)


def test_digits_are_read_without_importing_scikit_learn() -> None:
    code = "import sys; from amgc.data import load; load('digits'); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_digits_have_the_same_values_by_the_file_and_by_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn.datasets  # noqa: F401  (before the finder is changed, which others use as well)

    direct = arrays._digits_table()
    monkeypatch.setattr(arrays.importlib.util, "find_spec", lambda _: None)  # as if the file had moved
    assert np.array_equal(direct, arrays._digits_table()) and direct.shape == (1797, 65)


def npz(path: Path, **changes: Any) -> str:
    arrays: dict[str, Any] = {
        "train_x": numbered(4).transpose(0, 2, 3, 1),
        "train_y": [0, 1, 0, 1],
        "test_x": numbered(2).transpose(0, 2, 3, 1),
        "test_y": [1, 0],
    }
    arrays.update(changes)
    np.savez(path / "set.npz", **{name: value for name, value in arrays.items() if value is not None})
    return f"npz:{path / 'set.npz'}"


def test_npz_images_are_read_in_either_layout(tmp_path: Path) -> None:
    big = np.random.RandomState(0).randint(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    nhwc = load(npz(tmp_path, train_x=big, test_x=big[:2]))
    nchw = load(npz(tmp_path, train_x=big.transpose(0, 3, 1, 2), test_x=big[:2].transpose(0, 3, 1, 2)))
    assert nhwc.train.shape == (3, 5, 6)
    assert torch.equal(nhwc.train.take([0, 3]), nchw.train.take([0, 3]))
    assert torch.equal(nhwc.train.take([1])[0], torch.from_numpy(big[1]).permute(2, 0, 1))
    grey = load(npz(tmp_path, train_x=big[..., 0], test_x=big[:2, ..., 0]))
    assert grey.train.shape == (1, 5, 6) and grey.mean == (0.5,)


def test_npz_features_are_float32_and_scaled(tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.uint8).reshape(4, 2)
    dataset = load(npz(tmp_path, train_x=x, test_x=x[:2], scale=np.array([0.5, 2.0])))
    assert dataset.is_features and dataset.train.take([3]).tolist() == [[3.0, 14.0]]
    assert dataset.train.take([0]).dtype == torch.float32


def test_npz_labels_may_be_words_or_any_numbers(tmp_path: Path) -> None:
    dataset = load(npz(tmp_path, train_y=["owl", "ant", "owl", "ant"], test_y=["ant", "owl"]))
    assert dataset.class_names == ("ant", "owl") and dataset.train.labels.tolist() == [1, 0, 1, 0]
    dataset = load(npz(tmp_path, train_y=[70, 30, 70, 30], test_y=[30, 70]))
    assert dataset.class_names == ("30", "70") and dataset.test.labels.tolist() == [0, 1]
    assert load(npz(tmp_path, class_names=np.array([b"no", "né".encode()]))).class_names == ("no", "né")
    dataset = load(npz(tmp_path, class_names=["no", "yes"]))
    assert dataset.class_names == ("no", "yes") and dataset.test.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_y": None}, "no array 'test_y'"),
        ({"train_y": [0, 1]}, "4 rows, train_y has 2"),
        ({"test_y": [1, 5]}, "class 5 is in test_y and not in train_y"),
        ({"train_x": np.zeros((4, 2, 2, 3))}, "float64.*expected uint8"),
        ({"train_x": np.zeros((4, 3, 5, 3), np.uint8)}, "layout="),
        ({"train_x": np.array([[1.0], [np.nan], [0], [0]]), "test_x": np.ones((2, 1))}, "1 of 4 rows.*row 1"),
        ({"train_y": [0.5, 1, 0, 1]}, "integers or strings"),
        ({"class_names": ["only"]}, "indices into the 1 class_names"),
        ({"train_y": np.array([0, 1, "x", None], dtype=object)}, "never unpickled"),
    ],
)
def test_a_wrong_npz_says_what_is_wrong(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    name = npz(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load(name)


def test_a_truncated_or_missing_npz_is_named(tmp_path: Path) -> None:
    name = npz(tmp_path)
    path = tmp_path / "set.npz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"set\.npz.*cannot be read"):
        load(name)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load("npz:nowhere.npz")


def test_an_unknown_name_or_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'mnist'.*cifar100, digits, folder"):
        load("mnist")
    with pytest.raises(TypeError, match=r"no option 'resolution'; its options are .*size"):
        load("folder:x", resolution=3)
    with pytest.raises(ValueError, match="folder:PATH"):
        load("folder")
    with pytest.raises(ValueError, match="names its path already"):
        load("folder:x", root="y")


def test_options_are_the_keywords_of_load() -> None:
    assert asdict(data_sets()["cifar100"].options) == {"download": False, "verify": True}
    assert asdict(data_sets()["digits"].options) == {}
    with pytest.raises(TypeError, match=r"digits has no option 'size'; it has none"):
        load("digits", size=3)


@pytest.mark.parametrize("name", list(data_sets()))
def test_every_option_has_a_help_text(name: str) -> None:
    assert data_sets()[name].summary
    assert all(field.metadata["help"] for field in fields(data_sets()[name].options))


def test_a_new_data_set_is_one_decorated_function(monkeypatch: pytest.MonkeyPatch) -> None:
    data_sets()  # the package's own modules register themselves when first imported: now, and not below
    monkeypatch.setattr(DATA_SETS, "entries", {})

    @dataclass(frozen=True)
    class Options:
        count: int = option(2, "number of images")

    @data_set("nothing", Options())
    def nothing(root: Path, options: Options) -> Dataset:
        """Return a data set of black squares."""
        images = Images.of(numbered(options.count), range(options.count))
        return Dataset(images, images, tuple(map(str, range(options.count))), "nothing")

    assert {name: entry.summary for name, entry in data_sets().items()} == {"nothing": "Return a data set of black squares."}
    assert len(load("nothing", count=3).train) == 3
    with pytest.raises(ValueError, match="count must be int, not 'many'"):
        load("nothing", count="many")
    with pytest.raises(ValueError, match="two data sets called 'nothing'"):
        data_set("nothing")(lambda root, options: load("digits"))


def test_listing_the_data_sets_imports_no_torch() -> None:
    code = "import sys; from amgc.data import data_sets; assert len(data_sets()) >= 6; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
