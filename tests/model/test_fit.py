"""The fit of a prediction: how typical an image is, and None if it cannot be estimated."""

from __future__ import annotations

import numpy as np
import pytest
from model.drawing import draw

from amgc.model import Model
from amgc.model.extractors import encode_batches
from amgc.model.inputs import images_from


def test_the_fit_is_none_until_there_are_enough_images_of_two_classes(make):
    model = make("cat")
    assert model.predict(draw("dog", 1))[0].fit is None, "one class has nothing to be compared with"
    few = make("cat", "dog", name="few", count=2)
    prediction = few.predict(draw("owl", 1), reject=0.5)[0]
    assert prediction.fit is None and not prediction.rejected and prediction.to_json()["fit"] is None
    few.learn(draw("dog", 1, seed=1), "dog")  # three images beyond one a class are enough
    assert few.predict(draw("owl", 1))[0].fit is not None


def test_the_fit_is_the_typicality_of_the_classifier(make):
    model, shown = make("cat", "dog"), draw("cat", 5, seed=4)
    fits, state = [one.fit for one in model.predict(shown)], model._state
    ((_, features, _),) = encode_batches(state.extractor, state.frame, images_from(shown))
    assert fits == pytest.approx(np.minimum(state.classifier.typicality(features.numpy()), 0.5).tolist())


def test_the_fit_uses_the_features_that_the_extractor_names_for_images_of_another_kind(make):
    model, shown = make("cat", "dog"), draw("owl", 5, seed=4)
    state, before = model._state, [one.fit for one in model.predict(shown)]
    state.extractor.far = range(3, 9)
    ((_, features, _),) = encode_batches(state.extractor, state.frame, images_from(shown))
    fits = [one.fit for one in model.predict(shown)]
    expected = np.minimum(state.classifier.typicality(features.numpy(), far=range(3, 9)), 0.5)
    assert fits == pytest.approx(expected.tolist()) and fits != before


def test_the_fit_does_not_single_out_images_that_were_learned(make):
    learned, new = draw("cat", 12), draw("cat", 40, seed=7)
    model = make("cat", "dog", count=12)
    inside, outside = ([one.fit for one in model.predict(images)] for images in (learned, new))
    assert max(inside) == 0.5 == max(outside) and np.mean(np.array(outside) == 0.5) > 0.1
    for wrong in (0.51, 1.0):
        with pytest.raises(ValueError, match=r"reject from 0 to 0\.5"):
            model.predict(new, reject=wrong)


def test_an_evaluation_counts_no_rejects_where_the_fit_cannot_be_told(tmp_path):
    model = Model.create(tmp_path / "model", filters=16)
    model.learn_all({"cat": draw("cat", 1), "dog": draw("dog", 1)})
    found = model.evaluate(draw("cat", 4, seed=2), ["cat"] * 4, reject=0.5)
    assert np.isnan(found.fit).all() and found.rejected()[0] == 0.0
