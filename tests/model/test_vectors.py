"""Models whose features are vectors of the user, or are computed by a function of the user."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from model.drawing import draw
from PIL import Image

from amgc import AMGCClassifier
from amgc.cli.main import main
from amgc.data.vectors import read_vectors
from amgc.features import extractors
from amgc.model import ImageError, Model, ModelError
from amgc.model.extractors import ExtractorOptions


def samples(count: int, seed: int = 0, dim: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors (3 count, dim) of three classes, far from zero, and their labels."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(20, 2, (3, dim))
    labels = np.repeat(["ant", "bee", "猫"], count)
    return centres.repeat(count, 0) + rng.normal(size=(3 * count, dim)), labels


def taught(path, count: int = 20) -> Model:
    x, y = samples(count)
    model = Model.create(path, "vectors")
    model.learn_all({label: x[y == label] for label in ("ant", "bee", "猫")})
    return model


def test_a_model_of_vectors_is_the_estimator_on_these_vectors(tmp_path):
    (x, y), (new, labels) = samples(20), samples(30, seed=1)
    model = taught(tmp_path / "model")
    assert model.info().covariance == "full" and model.info().features["dim"] == 5
    reference = AMGCClassifier().fit(x, y)
    found = model.predict(new, top=3)
    shares = np.array(
        [[dict(zip(one.labels, one.probabilities, strict=True))[name] for name in reference.classes_] for one in found]
    )
    assert np.allclose(shares, reference.predict_proba(new), atol=1e-12)
    assert np.allclose([one.fit for one in found], np.minimum(reference.typicality(new), 0.5), atol=1e-12)
    assert model.evaluate(new, labels.tolist()).accuracy == reference.score(new, labels)
    again = Model.open(model.path)
    assert again.predict(new, top=3) == found and repr(again).endswith("3 classes from 60 vectors, vectors with 5 features)")
    assert again.info() == model.info()


def test_vectors_far_from_all_classes_are_rejected(tmp_path):
    model = taught(tmp_path / "model")
    x, _ = samples(5, seed=2)
    assert all(one.rejected for one in model.predict(x + 30, reject=0.01))
    assert sum(one.rejected for one in model.predict(x, reject=0.01)) <= 2


def test_equal_vectors_count_each_as_they_may_be_different_samples(tmp_path):
    model = Model.create(tmp_path / "model", "vectors")
    assert model.learn(np.ones((4, 3)), "ones").images == 4


def test_vectors_come_as_tensors_lists_tables_and_files(tmp_path):
    pandas = pytest.importorskip("pandas")
    model, (x, _) = taught(tmp_path / "model"), samples(2, seed=3)
    np.savez(tmp_path / "new.npz", x=x)
    np.save(tmp_path / "new.npy", x)
    expected = [one.probabilities for one in model.predict(x)]
    for given in (torch.tensor(x), x.tolist(), pandas.DataFrame(x), tmp_path / "new.npz", str(tmp_path / "new.npy"), list(x)):
        assert [one.probabilities for one in model.predict(given)] == expected
    assert model.predict(x[0])[0].source == "the vector" and model.predict(tmp_path / "new.npz")[3].source.endswith(
        "new.npz, row 3"
    )


def test_vectors_of_another_length_or_not_finite_are_named(tmp_path):
    model = taught(tmp_path / "model")
    with pytest.raises(ImageError, match="vector 1 cannot be used: it has 4 numbers, and the model takes 5"):
        model.learn(np.zeros((2, 4)), "ant")
    x, _ = samples(1)
    x[1, 2] = np.nan
    found = list(model.predict_each(x))
    assert isinstance(found[1], ImageError) and str(found[1]) == "vector 2 cannot be used: it holds NaN or infinity."
    learned = model.learn(x, "new", on_corrupt="skip")
    assert learned.added == {"new": 2} and learned.skipped == (("vector 2", "it holds NaN or infinity"),)
    with pytest.raises(ValueError, match="takes vectors of numbers"):
        model.predict(draw("cat", 2))
    with pytest.raises(ModelError, match=r"takes vectors, not images: 'cat\.png'"):
        model.predict("cat.png")
    with pytest.raises(ValueError, match="do not have the same number of features"):
        model.predict([[1.0, 2.0], [1.0]])


def test_settings_of_extractors_are_refused_for_vectors_and_functions(tmp_path):
    for features in ("vectors", lambda images: images):
        with pytest.raises(ValueError, match="it has no filters, size for them"):
            Model.create(tmp_path / "model", features, size=32, filters=3)
    with pytest.raises(ValueError, match="takes vectors and has no extractor"):
        Model.create(tmp_path / "other", taught(tmp_path / "model").path)


def test_models_of_vectors_merge_exactly_and_only_with_their_like(tmp_path):
    x, y = samples(20)
    halves = [Model.create(tmp_path / name, "vectors") for name in "ab"]
    halves[0].learn_all({"ant": x[y == "ant"], "bee": x[y == "bee"][:10]})
    halves[1].learn_all({"bee": x[y == "bee"][10:], "猫": x[y == "猫"]})
    merged = Model.merged(halves, tmp_path / "both")
    new, _ = samples(10, seed=4)
    one, all_ = (model.predict(new, top=3) for model in (merged, taught(tmp_path / "all")))
    assert [p.labels for p in one] == [p.labels for p in all_]
    assert np.allclose([p.probabilities for p in one], [p.probabilities for p in all_], atol=1e-6)  # covariances are float32
    other = Model.create(tmp_path / "other", "vectors")
    other.learn(np.eye(4), "dog")
    with pytest.raises(ModelError, match="different features: vectors of 5 numbers and vectors of 4 numbers"):
        merged.merge(other)


def test_a_model_of_vectors_is_packed_forgets_renames_and_undoes(tmp_path):
    model = taught(tmp_path / "model")
    copy = Model.unpacked(model.packed(), tmp_path / "copy")
    x, _ = samples(3, seed=5)
    assert copy.predict(x) == model.predict(x)
    copy.rename("ant", "aunt").undo().forget("bee")
    assert copy.classes == {"ant": 20, "猫": 20} and copy.predict(x)[0].label == "ant"


def test_an_onnx_file_takes_vectors(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    model = taught(tmp_path / "model")
    assert model.export_onnx(tmp_path / "model.onnx").difference < 1e-5
    x = samples(10, seed=6)[0].astype(np.float32)
    shares, _, names = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"vectors": x})
    found = model.predict(x)
    assert list(names) == [one.label for one in found]
    assert np.allclose(shares.max(1), [one.probabilities[0] for one in found], atol=1e-5)


# ---- functions -----------------------------------------------------------------------------------------------------------


def embed(images: list[Image.Image]) -> np.ndarray:
    """Return means and standard deviations of the channels."""
    assert all(image.mode == "RGB" for image in images)
    pixels = [np.asarray(image, np.float32).reshape(-1, 3) for image in images]
    return np.array([[*one.mean(0), *one.std(0)] for one in pixels])


def test_a_function_computes_features_and_is_needed_again(tmp_path):
    model = Model.create(tmp_path / "model", embed)
    model.learn_all({kind: draw(kind) for kind in ("cat", "dog")})
    assert model.info().features["given"].endswith("embed") and model.info().features["dim"] == 6
    images = [*draw("cat", 10, seed=1), *draw("dog", 10, seed=1)]
    expected = AMGCClassifier().fit(embed([*map(Image.fromarray, [*draw("cat"), *draw("dog")])]), ["cat"] * 30 + ["dog"] * 30)
    found = model.predict(images, reject=0.01)
    assert [one.label for one in found] == expected.predict(embed([*map(Image.fromarray, images)])).tolist()
    again = Model.open(model.path)
    for ask in (lambda: again.predict(images), lambda: again.learn(draw("owl"), "owl")):
        with pytest.raises(ModelError, match=r"a Python function, which is not stored.*Model\.open\(path, features=FUNCTION\)"):
            ask()
    assert Model.open(model.path, embed).predict(images, reject=0.01) == found
    again.rename("dog", "wolf")
    model.refresh()
    assert model.predict(draw("dog", 1))[0].labels and model.classes == {"cat": 30, "wolf": 30}
    assert again.export_onnx(tmp_path / "model.onnx").classes == ("cat", "wolf")


def test_a_function_that_gives_something_else_is_refused(tmp_path):
    model = Model.create(tmp_path / "model", lambda images: np.zeros((len(images), 2, 2)))
    with pytest.raises(ValueError, match=r"gave float64 \(1, 2, 2\) for 1 images; it must give finite numbers"):
        model.learn(draw("cat", 3), "cat")
    Model.create(tmp_path / "right", embed).learn(draw("cat", 3), "cat")
    with pytest.raises(ModelError, match="gave 3 features, but the model has 6"):
        Model.open(tmp_path / "right", lambda images: np.ones((len(images), 3))).predict(draw("cat", 1))
    with pytest.raises(ValueError, match="are vectors, not a function"):
        Model.open(taught(tmp_path / "vectors").path, embed)


def test_images_that_cannot_be_read_are_skipped_before_the_function(tmp_path):
    model = Model.create(tmp_path / "model", embed)
    learned = model.learn([b"no image", *draw("cat", 3)], "cat", on_corrupt="skip")
    assert learned.added == {"cat": 3} and len(learned.skipped) == 1
    with pytest.raises(ImageError):
        Model.create(tmp_path / "other", embed).learn(b"no image", "cat")


# ---- files and commands --------------------------------------------------------------------------------------------------


def run(capsys, *arguments: object) -> str:
    assert main([str(one) for one in arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys, *arguments: object) -> str:
    assert main([str(one) for one in arguments]) in (1, 2)
    return capsys.readouterr().err


def test_the_commands_take_files_of_vectors(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (x, y), (new, labels) = samples(20), samples(10, seed=1)
    np.savez("both.npz", train_x=x, train_y=y, test_x=new, test_y=labels)
    np.savez("new.npz", x=new[:2])
    output = run(capsys, "learn", "model", "both.npz")
    assert "Learned 3 classes from 60 vectors" in output and "No vector was stored" in output
    assert "vectors, 5 features" in run(capsys, "info", "model")
    answers = [
        json.loads(line) for line in run(capsys, "predict", "model", "new.npz", "--json", "--reject", "0.01").splitlines()
    ]
    assert [one["source"] for one in answers] == ["new.npz, row 0", "new.npz, row 1"] and answers[0]["answer"] == "ant"
    shown = run(capsys, "predict", "model", "new.npz")
    assert shown.split()[0] == "vector" and "share of vectors of known classes" in shown and "image" not in shown
    found = json.loads(run(capsys, "evaluate", "model", "both.npz", "--json"))
    assert found["images"] == 30 and found["accuracy"] == AMGCClassifier().fit(x, y).score(new, labels)
    run(capsys, "learn", "model", "--label", "dog", "new.npz")
    assert run(capsys, "undo", "model") == "Undone: 'dog' is gone. The model has 3 classes.\n"
    assert "has no labels: add an array 'y'" in refused(capsys, "learn", "model", "new.npz")
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    Image.fromarray(draw("cat", 1)[0]).save("photos/cat/1.png")
    assert "takes vectors: files of the kinds" in refused(capsys, "learn", "model", "photos")
    assert "takes vectors, not images: 'photos/cat/1.png'" in refused(capsys, "predict", "model", "photos/cat/1.png")
    assert "takes vectors, not images" in refused(capsys, "sort", "model", "photos", "--into", "sorted")
    run(capsys, "learn", "images", "photos", "--filters", "2")
    assert "takes images, not vectors" in refused(capsys, "learn", "images", "both.npz")
    assert "either vectors or images" in refused(capsys, "learn", "model", "both.npz", "photos")


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"a": np.zeros(3)}, "has no array 'x' or 'train_x'; it has 'a'"),
        ({"x": np.zeros(3)}, r"contains float64 \(3,\); expected vectors of numbers"),
        ({"x": np.zeros((3, 2)), "y": np.arange(2)}, "has 3 vectors and 2 labels"),
        ({"x": np.zeros((3, 2)), "y": np.full(3, 0.5)}, "labels must be integers or strings, not float64"),
        ({"x": np.zeros((1, 2)), "y": np.array([2]), "class_names": np.array(["a"])}, "indices into the 1 class_names"),
        ({"x": np.array([[None]], dtype=object)}, "Python objects, which are never unpickled"),
    ],
)
def test_a_file_that_holds_no_vectors_is_refused_with_the_reason(tmp_path, arrays, reason):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=reason):
        read_vectors(tmp_path / "a.npz")


def test_labels_are_numbers_or_names(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(2), y=np.array([7, 3]))
    assert read_vectors(tmp_path / "a.npz").labels == ["7", "3"]
    np.savez(tmp_path / "b.npz", x=np.eye(2), y=np.array([1, 0]), class_names=np.array([b"a", b"b"]))
    assert read_vectors(tmp_path / "b.npz").labels == ["b", "a"]
    (tmp_path / "c.npz").write_bytes(b"no zip file")
    with pytest.raises(ValueError, match="cannot be read as a file of numpy"):
        read_vectors(tmp_path / "c.npz")


def test_a_parquet_file_has_a_column_of_lists_or_columns_of_numbers(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    x, y = samples(2)
    parquet.write_table(pyarrow.table({"path": ["a"] * 6, "vector": x.tolist(), "label": y}), tmp_path / "lists.parquet")
    columns = {f"f{number}": x[:, number] for number in range(5)}
    parquet.write_table(pyarrow.table(columns | {"label": y}), tmp_path / "columns.parquet")
    parquet.write_table(pyarrow.table(columns), tmp_path / "bare.parquet")
    for name, labels in (("lists", y.tolist()), ("columns", y.tolist()), ("bare", None)):
        found = read_vectors(tmp_path / f"{name}.parquet")
        assert np.array_equal(found.vectors, x) and found.labels == labels
    parquet.write_table(pyarrow.table({"vector": [[1.0], [1.0, 2.0]]}), tmp_path / "ragged.parquet")
    parquet.write_table(pyarrow.table({"text": ["a", "b"]}), tmp_path / "text.parquet")
    for name, reason in (("ragged", "are not vectors: 'vector"), ("text", "expected vectors of numbers")):
        with pytest.raises(ValueError, match=reason):
            read_vectors(tmp_path / f"{name}.parquet")
    (tmp_path / "no.parquet").write_bytes(b"no table")
    with pytest.raises(ValueError, match="cannot be read as a Parquet file"):
        read_vectors(tmp_path / "no.parquet")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(ImportError, match=r"needs pyarrow, an extra: pip install 'amgc\[parquet\]'"):
        read_vectors(tmp_path / "a.parquet")


def test_the_types_of_extractor_options_are_those_of_the_extractors():
    named = {"filters", "draw", "weights", "model"}  # parameters of Model.create, and NAME of timm:NAME
    entries = [entry for name, entry in extractors().items() if name != "layers"]  # a new model refuses these
    declared = {field for entry in entries for field in entry.options.__dataclass_fields__}
    assert set(ExtractorOptions.__annotations__) >= declared - named


def test_low_rank_covariances_are_those_of_the_file_as_soon_as_they_are_learned(tmp_path):
    x, y = samples(40, dim=70)
    model = Model.create(tmp_path / "model", "vectors", covariance="lowrank")
    model.learn_all({label: x[y == label] for label in ("ant", "bee", "猫")})  # factors are stored in half precision
    new, _ = samples(10, seed=1, dim=70)
    assert Model.open(model.path).predict(new, top=3) == model.predict(new, top=3)


def test_a_new_model_refuses_layers_and_says_how_to_get_them(tmp_path):
    with pytest.raises(ValueError, match="amgc model RUN -o MODEL"):
        Model.create(tmp_path / "model", "layers")
    assert not (tmp_path / "model").exists()
