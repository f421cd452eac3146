"""Labels and features of any kind are converted; errors name what is invalid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import few

from amgc.core.inputs import check_finite, group_by_label, plain, read_features
from amgc.text import listing

CPU = torch.device("cpu")


@few
@given(labels=st.one_of(st.lists(st.integers(-5, 5)), st.lists(st.text(max_size=2)), st.lists(st.booleans())))
def test_labels_are_grouped_in_order_of_arrival_whatever_holds_them(labels):
    expected = list(dict.fromkeys(labels))
    holders = [labels, tuple(labels), iter(labels), np.array(labels, dtype=object)]
    if labels and not any("\0" in label for label in labels if isinstance(label, str)):  # numpy drops NUL at the end
        holders.append(np.array(labels))
    if labels and not isinstance(labels[0], str):
        holders.append(torch.tensor(labels))
    for holder in holders:
        names, inverse = group_by_label(holder)
        assert names == expected and [names[i] for i in inverse] == labels
        assert all(type(name) is type(labels[0]) for name in names)


def test_scalars_become_the_python_values_they_stand_for():
    for scalar, value in [
        (np.int8(3), 3),
        (np.float64(0.5), 0.5),
        (np.str_("a"), "a"),
        (np.bool_(True), True),
        (torch.tensor(7), 7),
    ]:
        assert plain(scalar) == value and type(plain(scalar)) is type(value)


@pytest.mark.parametrize("label", [float("nan"), np.float32("nan"), torch.tensor(float("nan"))])
def test_nan_is_no_label(label):
    with pytest.raises(ValueError, match="NaN is not a class label"):
        plain(label)


def test_a_listing_is_short():
    assert listing([]) == "none" and listing(["a", 3]) == "'a', 3"
    assert listing(range(12), most=2) == "0, 1 and 10 more"


def test_features_keep_their_precision_and_integers_become_float64():
    assert read_features(np.zeros((2, 3), np.float32), 3, CPU).dtype == torch.float32
    assert read_features(np.zeros((2, 3), np.int64), 3, CPU).dtype == torch.float64
    assert read_features([[1, 2, 3]], 3, CPU).tolist() == [[1.0, 2.0, 3.0]]


def test_arrays_that_torch_cannot_share_are_read_as_well():
    features = np.arange(6.0).reshape(2, 3)
    read_only = features.copy()
    read_only.flags.writeable = False
    for view in (features[::-1], features[:, ::-1], read_only, features.astype(">f8"), features.astype(np.uint16)):
        assert read_features(view, 3, CPU).tolist() == np.asarray(view).tolist()


def test_rows_that_are_not_finite_are_counted_and_the_first_is_named():
    features = np.ones((4, 3))
    check_finite(features)
    check_finite(features[:0])
    features[1, 2], features[3, 0] = np.nan, -np.inf
    for kind in (features, torch.tensor(features), features.astype(np.float32)):
        with pytest.raises(ValueError, match=r"2 of 4 rows hold NaN or infinity \(first: row 1\)"):
            check_finite(kind)
