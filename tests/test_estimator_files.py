"""`AMGCClassifier.save` and `load`: everything is restored, the file has no samples, and damage is detected."""

from __future__ import annotations

import datetime
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import torch
from digits import FORMS, learned, part, same_statistics, split
from safetensors import safe_open

from amgc import AMGCClassifier, ClassStatistics, FileFormatError, files, tensor_files

pytestmark = pytest.mark.cpus

TRAIN, TEST, TRAIN_LABELS, TEST_LABELS = split()
TASKS = [[7, 1], [0, 4], [3]]
CLASSIFIERS = {
    **{form: AMGCClassifier(covariance=form, rank=8) for form in FORMS},
    "paper": AMGCClassifier.paper(),
    "float64": AMGCClassifier(dtype="float64", shrinkage=0.5, standardize=False),
}


def trained(classifier: AMGCClassifier | None = None) -> AMGCClassifier:
    fresh = AMGCClassifier() if classifier is None else AMGCClassifier(**classifier.get_params())
    return learned(TRAIN, TRAIN_LABELS, TASKS, fresh)


def assert_equal_to_the_bit(one: AMGCClassifier, two: AMGCClassifier) -> None:
    assert one.get_params() == two.get_params()
    assert same_statistics(one, two)
    assert one.classes_.tolist() == two.classes_.tolist() and one.classes_.dtype == two.classes_.dtype
    for name in ("coef_", "intercept_", "margins_"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes(), name
    assert one.temperature_ == two.temperature_
    for method in ("predict", "predict_proba", "decision_function"):
        assert getattr(one, method)(TEST).tobytes() == getattr(two, method)(TEST).tobytes(), method


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_loaded_classifier_equals_the_saved_one_to_the_bit(name: str, tmp_path: Path) -> None:
    classifier = trained(CLASSIFIERS[name])
    classifier.save(tmp_path / "model.safetensors")
    loaded = AMGCClassifier.load(tmp_path / "model.safetensors")
    assert_equal_to_the_bit(loaded, classifier)
    certificate = {key: value for key, value in vars(classifier.head_).items() if key not in ("weight", "bias")}
    assert certificate == {key: getattr(loaded.head_, key) for key in certificate}
    assert loaded.n_features_in_ == 64 and not hasattr(loaded, "feature_names_in_")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_loaded_classifier_continues_as_if_it_had_never_been_saved(name: str, tmp_path: Path) -> None:
    classifier = trained(CLASSIFIERS[name])
    classifier.save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()
    loaded = AMGCClassifier.load(tmp_path / "model")
    for one in (classifier, loaded):
        one.partial_fit(*part(TRAIN, TRAIN_LABELS, [3, 5]))
    if name == "lowrank":  # a file keeps factors in half precision
        np.testing.assert_allclose(loaded.coef_, classifier.coef_, rtol=0, atol=1e-2 * np.abs(classifier.coef_).max())
        np.testing.assert_allclose(loaded.statistics_.mean, classifier.statistics_.mean, rtol=0, atol=0)
        return
    assert_equal_to_the_bit(loaded, classifier)
    if name != "shared":
        for one in (classifier, loaded):
            one.forget(1)
        assert_equal_to_the_bit(loaded, classifier)
    assert (tmp_path / "model").read_bytes() == before, "learning on must not write into the file"


def test_a_file_is_loaded_changed_and_saved_in_place(tmp_path: Path) -> None:
    path = tmp_path / "model"
    trained().save(path)
    loaded = AMGCClassifier.load(path).partial_fit(*part(TRAIN, TRAIN_LABELS, [8]))
    loaded.save(path)
    assert_equal_to_the_bit(AMGCClassifier.load(path), loaded)
    assert os.listdir(tmp_path) == ["model"]


def test_saving_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    classifier = trained()
    classifier.save(tmp_path / "one")
    AMGCClassifier.load(tmp_path / "one").save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_saving_takes_a_string_as_well_as_a_path(tmp_path: Path) -> None:
    trained().save(str(tmp_path / "model"))
    assert AMGCClassifier.load(str(tmp_path / "model"), device="cpu").classes_.tolist() == [0, 1, 3, 4, 7]


def test_saving_does_not_depend_on_having_predicted(tmp_path: Path) -> None:
    asked, silent = trained(), trained()
    asked.predict(TEST)
    asked.save(tmp_path / "asked")
    silent.save(tmp_path / "silent")
    assert (tmp_path / "asked").read_bytes() == (tmp_path / "silent").read_bytes()


def test_a_loaded_classifier_can_be_pickled_and_merged(tmp_path: Path) -> None:
    one, two = trained(), AMGCClassifier().fit(*part(TRAIN, TRAIN_LABELS, [2, 6]))
    one.save(tmp_path / "one")
    two.save(tmp_path / "two")
    loaded = AMGCClassifier.load(tmp_path / "one").merge(AMGCClassifier.load(tmp_path / "two"))
    assert_equal_to_the_bit(pickle.loads(pickle.dumps(loaded)), one.merge(two))


def test_feature_names_are_kept_in_the_file(tmp_path: Path) -> None:
    frame = pd.DataFrame(TRAIN, columns=[f"pixel {i} é" for i in range(64)])
    classifier = AMGCClassifier().fit(frame, TRAIN_LABELS)
    classifier.save(tmp_path / "model")
    loaded = AMGCClassifier.load(tmp_path / "model")
    assert loaded.feature_names_in_.tolist() == classifier.feature_names_in_.tolist()
    assert loaded.feature_names_in_.dtype == classifier.feature_names_in_.dtype
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.predict(frame.rename(columns={"pixel 0 é": "other"}))
    assert (loaded.predict(frame) == classifier.predict(frame)).all()


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(np.array(["b", "a", "ü \n\"'\\ 猫"]), id="strings"),
        pytest.param(np.array([3, -1, 2**60]), id="integers"),
        pytest.param(np.array([3.0, -1.0, 2.0]), id="floats"),
        pytest.param(np.array([True, False]), id="booleans"),
    ],
)
def test_labels_keep_their_type_in_a_file(names: np.ndarray, tmp_path: Path) -> None:
    X, y = part(TRAIN, TRAIN_LABELS, range(len(names)))
    classifier = AMGCClassifier().fit(X, names[y])
    classifier.save(tmp_path / "model")
    loaded = AMGCClassifier.load(tmp_path / "model")
    assert_equal_to_the_bit(loaded, classifier)
    assert [type(label) for label in loaded.statistics_.classes] == [type(label) for label in names.tolist()]


def test_labels_that_json_cannot_hold_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    X, y = part(TRAIN, TRAIN_LABELS, [0, 1])
    days = np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]")[y]
    classifier = AMGCClassifier().fit(X, days)
    assert classifier.classes_.tolist() == [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]
    with pytest.raises(TypeError, match=r"string or a number.*2024"):
        classifier.save(tmp_path / "model")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "parameters",
    [
        {"rank": np.int64(4), "covariance": "lowrank"},
        {"margin": np.float32(0.25)},
        {"margin": np.float64(0.25)},
        {"margin": np.int64(1)},
        {"shrinkage": np.float32(0.5)},
        {"shrinkage": [0.5, 0.25]},
        {"shrinkage": (np.float32(0.5), 0)},
        {"shrinkage": np.array([0.5, 0.25])},
        {"standardize": np.bool_(False)},
    ],
    ids=repr,
)
def test_parameters_may_be_numpy_scalars_as_a_grid_search_gives_them(parameters: dict, tmp_path: Path) -> None:
    classifier = AMGCClassifier(**parameters).fit(*part(TRAIN, TRAIN_LABELS, [0, 1, 2]))
    classifier.save(tmp_path / "model")
    loaded = AMGCClassifier.load(tmp_path / "model")
    assert loaded.predict_proba(TEST).tobytes() == classifier.predict_proba(TEST).tobytes()
    for name, value in parameters.items():
        assert np.all(np.asarray(getattr(loaded, name)) == np.asarray(value))


# ---- privacy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_training_row_is_in_the_file(form: str, dtype: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X, y = random.normal(size=(60, 6)), np.repeat(["a", "b", "c"], 20)
    classifier = AMGCClassifier(covariance=form, dtype=dtype, rank=3).fit(X[:40], y[:40])
    for row, label in zip(X[40:], y[40:], strict=True):  # one by one as well
        classifier.partial_fit([row], [label])
    classifier.save(tmp_path / "model")
    content = (tmp_path / "model").read_bytes() + pickle.dumps(classifier)
    means = {label: X[y == label].mean(0) for label in "abc"}
    found = 0
    for row, label in zip(X, y, strict=True):
        for version in (row, row - means[label], row - X.mean(0), row - means[label].astype(np.float32)):
            for kind in (np.float32, np.float64, np.float16):
                values = version.astype(kind)
                found += values.tobytes() in content or values[:2].tobytes() in content
    assert found == 0
    assert np.asarray(classifier.statistics_.mean[0]).tobytes() in content, "the search itself must be able to find"


def test_the_file_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    one, two = (AMGCClassifier().fit(np.tile(TRAIN, (k, 1)), np.tile(TRAIN_LABELS, k)) for k in (1, 5))
    one.save(tmp_path / "one")
    two.save(tmp_path / "two")
    assert abs((tmp_path / "one").stat().st_size - (tmp_path / "two").stat().st_size) < 200


# ---- damage --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "model"
    AMGCClassifier().fit(TRAIN[:, 20:26], TRAIN_LABELS).save(path)
    return path.read_bytes()


def assert_refused(path: Path) -> None:
    with pytest.raises(FileFormatError) as caught:
        AMGCClassifier.load(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("share", [0, 1e-3, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(share: float, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(content[: int(share * len(content))])
    assert_refused(tmp_path / "model")


def test_a_file_with_something_appended_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(content + b"more")
    assert_refused(tmp_path / "model")


def test_a_file_with_one_flipped_bit_is_refused_or_reads_the_same(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(content)
    expected = AMGCClassifier.load(tmp_path / "whole")
    start = 8 + int.from_bytes(content[:8], "little")
    random = np.random.default_rng(0)
    places = {0, 7, 8, 9, start, len(content) - 1, *random.integers(start, len(content), 60).tolist()}
    for place in sorted(places):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(random.integers(8))
        (tmp_path / "model").write_bytes(damaged)
        assert_refused(tmp_path / "model")
    for place in random.integers(8, start, 100).tolist():  # the header: JSON, which may still be read
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(random.integers(8))
        (tmp_path / "model").write_bytes(damaged)
        try:
            loaded = AMGCClassifier.load(tmp_path / "model")
        except FileFormatError as error:
            assert str(tmp_path / "model") in str(error)
        else:
            assert loaded.predict(TEST[:, 20:26]).tobytes() == expected.predict(TEST[:, 20:26]).tobytes()
            assert loaded.get_params() == expected.get_params()
            assert same_statistics(loaded, expected)


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not a model\n" * 50, id="text"),
        pytest.param(pickle.dumps({"a": 1}), id="pickle"),
        pytest.param(safetensors.numpy.save({"weight": np.zeros(3)}), id="safetensors of another program"),
        pytest.param(safetensors.numpy.save({"weight": np.zeros(3)}, metadata={"format": "pt"}), id="PyTorch weights"),
        pytest.param(safetensors.numpy.save({"weight": np.zeros(3)}, metadata={"amgc": "not JSON"}), id="amgc, not JSON"),
        pytest.param(safetensors.numpy.save({"weight": np.zeros(3)}, metadata={"amgc": "[1]"}), id="amgc, no object"),
        pytest.param(b"\xff" * 200, id="noise"),
    ],
)
def test_a_foreign_file_is_refused(foreign: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(foreign)
    assert_refused(tmp_path / "model")


def test_a_file_of_class_statistics_is_not_a_classifier_and_the_message_says_which(tmp_path: Path) -> None:
    trained().statistics_.save(tmp_path / "statistics")
    assert_refused(tmp_path / "statistics")
    with pytest.raises(FileFormatError, match=r"class statistics.*classifier"):
        AMGCClassifier.load(tmp_path / "statistics")
    trained().save(tmp_path / "model")
    with pytest.raises(FileFormatError, match=r"classifier.*class statistics"):
        ClassStatistics.load(tmp_path / "model")


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(tensor_files, "VERSION", 99)
        trained().save(tmp_path / "model")
    assert_refused(tmp_path / "model")
    with pytest.raises(FileFormatError, match="99"):
        AMGCClassifier.load(tmp_path / "model")


@pytest.mark.parametrize("name", ["missing", "missing/model", "."])
def test_a_missing_file_is_said_to_be_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        AMGCClassifier.load(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def rewritten(path: Path, change) -> None:
    """Change header and tensors of the file by `change` and update the checksum: a valid file, but not a classifier."""
    header, tensors = tensor_files.read(path, "classifier")
    change(header, tensors)
    tensor_files.write(path, "classifier", header, tensors)


@pytest.mark.any_cpu
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda header, tensors: header.clear(), id="empty header"),
        pytest.param(lambda header, tensors: tensors.clear(), id="no tensors"),
        pytest.param(lambda header, tensors: header["parameters"].update(unknown=1), id="unknown parameter"),
        pytest.param(lambda header, tensors: header.pop("certificate"), id="no certificate"),
        pytest.param(lambda header, tensors: header.update(parameters=None), id="no parameters"),
        pytest.param(lambda header, tensors: header.update(statistics=[]), id="statistics of the wrong type"),
        pytest.param(lambda header, tensors: header["statistics"].update(dim=7), id="another dimension"),
        pytest.param(lambda header, tensors: header["statistics"].update(covariance="round"), id="unknown form"),
        pytest.param(lambda header, tensors: header["statistics"]["classes"].pop(), id="a class too few"),
        pytest.param(lambda header, tensors: header["statistics"].update(classes=[1, 1, 1, 1, 1]), id="a class many times"),
        pytest.param(lambda header, tensors: header["statistics"].update(classes=[1, "a", 2, 3, 4]), id="mixed labels"),
        pytest.param(lambda header, tensors: tensors.pop("statistics.mean"), id="no means"),
        pytest.param(lambda header, tensors: tensors.update({"head.weight": torch.zeros(2, 2)}), id="weights of another shape"),
        pytest.param(lambda header, tensors: tensors.pop("head.bias"), id="no bias"),
        pytest.param(lambda header, tensors: header.update(features=["a", "b"]), id="too few feature names"),
        pytest.param(lambda header, tensors: header.update(temperature="hot"), id="no temperature"),
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused_with_its_path(change, tmp_path: Path) -> None:
    trained().save(tmp_path / "model")
    rewritten(tmp_path / "model", change)
    assert_refused(tmp_path / "model")


# ---- writing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_failed_write_leaves_the_old_file(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    trained().save(path)
    before = path.read_bytes()

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    changed = trained().partial_fit(*part(TRAIN, TRAIN_LABELS, [9]))
    with monkeypatch.context() as broken:
        broken.setattr(files.os, step, full)
        with pytest.raises(OSError, match="No space left"):
            changed.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model"]
    changed.save(path)
    assert AMGCClassifier.load(path).classes_.tolist() == [0, 1, 3, 4, 7, 9]


def test_saving_into_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        trained().save(tmp_path / "missing" / "model")


def test_the_file_is_plain_safetensors_with_a_json_header(tmp_path: Path) -> None:
    trained().save(tmp_path / "model")
    with safe_open(tmp_path / "model", framework="np") as file:
        about = json.loads(file.metadata()["amgc"])
        assert about["kind"] == "classifier"
        assert set(about["header"]["statistics"]["classes"]) == {0, 1, 3, 4, 7}
        assert file.get_tensor("head.weight").shape == (5, 64)
