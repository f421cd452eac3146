"""ClassStatistics against numpy's two-pass float64 mean and covariance."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import assert_close, few, many

from amgc import tensor_files
from amgc.core.covariance import Covariances, LowRank, enlarge
from amgc.core.losses import distribution_loss
from amgc.core.spread import SKETCH, Spread, random_directions
from amgc.core.statistics import KIND, ClassStatistics
from amgc.core.within import dependence
from amgc.files import FileFormatError

pytestmark = pytest.mark.cpus

FORMS = ["full", "lowrank", "diagonal", "shared"]
DIM = 4
F64 = {"dtype": torch.float64}


def _data(seed=0, samples=40, classes=3, dim=DIM):
    """Return samples of classes that differ in mean and spread, at least two per class."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.repeat(np.arange(classes), 2), rng.integers(0, classes, samples - 2 * classes)])
    rng.shuffle(labels)
    mixing = rng.normal(size=(classes, dim, dim))
    features = (
        np.einsum("nd,nde->ne", rng.normal(size=(samples, dim)), mixing[labels]) + 3 * rng.normal(size=(classes, dim))[labels]
    )
    return features, labels


def _state(statistics):
    """Return the whole state, for bitwise comparison."""
    state = {name: rows[: len(statistics)].clone() for name, rows in statistics._used.items()}
    if statistics.form == "shared":
        state |= {"scatter": statistics._scatter.upper.clone(), "freedom": torch.tensor(statistics.freedom)}
    return list(statistics.classes), dict(statistics._index), state


def _assert_same_bits(one, other):
    (classes, index, state), (other_classes, other_index, other_state) = one, other
    assert classes == other_classes and index == other_index and state.keys() == other_state.keys()
    for name in state:
        assert state[name].dtype == other_state[name].dtype
        assert torch.equal(state[name], other_state[name]), name


def _dense(statistics):
    """Return the class covariances (K, d, d) as numpy arrays."""
    covariance = statistics.covariance
    if isinstance(covariance, LowRank):
        return reference.FORMS["low rank"].dense(
            {"factor": covariance.factor.double().numpy(), "diagonal": covariance.diagonal.double().numpy()}, len(statistics)
        )
    covariance = covariance.double().numpy()
    return np.array([np.diag(row) for row in covariance]) if covariance.ndim == 2 else covariance


def _expected(features, labels, form, order):
    """Return counts, means and covariances by np.mean and np.cov; the shared one is pooled by degrees of freedom."""
    features, labels = np.asarray(features, np.float64), np.asarray(labels)
    groups = [features[labels == label] for label in order]
    dim = features.shape[1]
    each = [np.cov(g.T).reshape(dim, dim) if len(g) > 1 else np.zeros((dim, dim)) for g in groups]
    if form == "diagonal":
        each = [np.diag(np.diag(c)) for c in each]
    if form == "shared":
        freedom = sum(len(g) - 1 for g in groups)
        pooled = sum((len(g) - 1) * c for g, c in zip(groups, each, strict=True)) / max(freedom, 1)
        each = [pooled] * len(groups)
    return [len(g) for g in groups], np.array([g.mean(0) for g in groups]), np.array(each)


def _assert_is(statistics, features, labels, relative=1e-9, factor_exact=True):
    count, mean, dense = _expected(features, labels, statistics.form, statistics.classes)
    assert statistics.count.tolist() == count
    assert_close(statistics.mean, mean, relative, "mean")
    actual = _dense(statistics)
    if not factor_exact:
        actual, dense = np.array([np.diag(c) for c in actual]), np.array([np.diag(c) for c in dense])
    assert_close(actual, dense, relative, "covariance")


def _batches(features, labels, cuts, order):
    features, labels = features[order], labels[order]
    edges = [0, *sorted(cuts), len(labels)]
    return [(features[a:b], labels[a:b]) for a, b in itertools.pairwise(edges)]


@many
@given(
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(0, 40), max_size=12),
    order=st.permutations(range(40)),
    rank=st.sampled_from([2, DIM, 32]),
)
def test_any_order_and_batch_size_equal_two_passes(form, seed, cuts, order, rank):
    features, labels = _data(seed)
    statistics = ClassStatistics(DIM, form, rank, **F64)
    for batch in _batches(features, labels, cuts, list(order)):
        statistics.update(*batch)
    _assert_is(statistics, features, labels, factor_exact=rank >= DIM)


@pytest.mark.parametrize("size", [1, 2, 7, 100, 1000])
@pytest.mark.parametrize("form", FORMS)
def test_features_far_from_zero_in_float32_keep_three_digits(form, size):
    """With mean 1e4 and standard deviation 1, a sum of squares in float32 would consist of rounding errors only."""
    rng = np.random.default_rng(size)
    samples = 1000 if size > 1 else 400
    features = (rng.normal(size=(samples, 6)) @ rng.normal(size=(6, 6)) / 6**0.5 + 1e4).astype(np.float32)
    labels = np.arange(samples) % 2
    statistics = ClassStatistics(6, form, 6)
    for start in range(0, samples, size):
        statistics.update(features[start : start + size], labels[start : start + size])
    _, mean, dense = _expected(features, labels, form, [0, 1])
    assert_close(statistics.mean, mean, 1e-12)
    for actual, expected in zip(_dense(statistics), dense, strict=True):
        assert np.linalg.norm(actual - expected) <= 1e-3 * np.linalg.norm(expected)
        assert np.abs(np.diag(actual) / np.diag(expected) - 1).max() <= 1e-3


def test_a_low_rank_factor_is_exact_while_the_class_has_no_more_dimensions():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 8)) + 5
    statistics = ClassStatistics(8, "lowrank", 2, **F64)
    for start in range(0, 60, 7):
        statistics.update(features[start : start + 7], [0] * len(features[start : start + 7]))
    _assert_is(statistics, features, np.zeros(60))


def test_a_low_rank_factor_of_one_batch_is_the_best_of_its_rank():
    """The leading eigenvectors, by numpy; the variances stay exact."""
    features, _ = _data(1, 50, 1, 6)
    statistics = ClassStatistics(6, "lowrank", 2, **F64).update(features, [0] * 50)
    covariance = np.cov(features.T)
    values, vectors = np.linalg.eigh(covariance)
    best = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T
    factor = statistics.covariance.factor[0].numpy()
    assert_close(factor @ factor.T, best, 1e-9)
    assert_close(statistics.covariance.diagonal[0], np.diag(covariance), 1e-9)


# ---- merging ------------------------------------------------------------------------------------------------------------


def test_a_low_rank_factor_with_few_columns_is_exact():
    """As of a class with few samples. LAPACK does not always converge if most columns are zero and one is rounding error."""
    form, rng = Spread("lowrank", 512, 56, torch.float32), np.random.default_rng(0)
    for _ in range(300):
        wide = torch.zeros(512, 113, dtype=torch.float64)
        wide[:, [0, 1, 2, 3, 56, 112]] = torch.from_numpy(rng.normal(size=(512, 6))) * 0.4
        wide[:, 4] = torch.from_numpy(rng.normal(size=512)) * 1e-8
        found = form.leading(wide, torch.ones(512)).double()
        assert (found.abs().amax(0) > 0).sum() == 6
        probe = torch.from_numpy(rng.normal(size=512))
        torch.testing.assert_close(found @ (found.T @ probe), wide @ (wide.T @ probe), rtol=1e-4, atol=1e-4)


def _fed(form, features, labels, rank=DIM):
    return ClassStatistics(features.shape[1], form, rank, **F64).update(features, labels)


def _by_label(statistics):
    """Assert that count, mean and covariance of each class agree, in any order of the classes."""
    dense = _dense(statistics)
    return {c: (int(statistics.count[i]), statistics.mean[i].numpy(), dense[i]) for i, c in enumerate(statistics.classes)}


def _assert_equal_up_to_order(one, other, relative=1e-9):
    one, other = _by_label(one), _by_label(other)
    assert one.keys() == other.keys()
    for label in one:
        assert one[label][0] == other[label][0]
        assert_close(one[label][1], other[label][1], relative)
        assert_close(one[label][2], other[label][2], relative)


@few
@given(form=st.sampled_from(FORMS), seed=st.integers(0, 10_000), cut=st.integers(1, 39))
def test_merging_two_halves_equals_one_pass(form, seed, cut):
    features, labels = _data(seed)
    merged = _fed(form, features[:cut], labels[:cut]).merge(_fed(form, features[cut:], labels[cut:]))
    _assert_is(merged, features, labels)
    assert merged.classes == _fed(form, features, labels).classes


@few
@given(form=st.sampled_from(FORMS), seed=st.integers(0, 10_000), cuts=st.tuples(st.integers(1, 19), st.integers(20, 39)))
def test_merging_is_commutative_and_associative(form, seed, cuts):
    features, labels = _data(seed)

    def parts():
        edges = [0, *cuts, 40]
        return [_fed(form, features[a:b], labels[a:b]) for a, b in itertools.pairwise(edges)]

    a, b, c = parts()
    left = a.merge(b).merge(c)
    a, b, c = parts()
    right = a.merge(b.merge(c))
    _assert_equal_up_to_order(left, right)
    assert left.classes == right.classes
    a, b, _ = parts()
    forth = copy.deepcopy(a).merge(b)
    _assert_equal_up_to_order(forth, b.merge(a))


@pytest.mark.parametrize("form", FORMS)
def test_merging_leaves_the_other_side_as_it_was(form):
    features, labels = _data()
    one, other = _fed(form, features[:20], labels[:20]), _fed(form, features[20:], labels[20:])
    before = _state(other)
    one.merge(other)
    one.update(features, labels)
    _assert_same_bits(before, _state(other))


@pytest.mark.parametrize("form", FORMS)
def test_merging_with_itself_counts_everything_twice(form):
    features, labels = _data()
    statistics = _fed(form, features, labels)
    statistics.merge(statistics)
    _assert_is(statistics, np.concatenate([features, features]), np.concatenate([labels, labels]))


@pytest.mark.parametrize("form", FORMS)
def test_merging_with_nothing_changes_nothing(form):
    features, labels = _data()
    statistics = _fed(form, features, labels)
    before = _state(statistics)
    _assert_same_bits(before, _state(statistics.merge(ClassStatistics(DIM, form, DIM, **F64))))
    _assert_same_bits(before, _state(ClassStatistics(DIM, form, DIM, **F64).merge(statistics)))


def test_low_rank_statistics_of_another_rank_merge_into_this_one():
    features, labels = _data()
    other = _fed("lowrank", features[20:], labels[20:], rank=DIM)
    merged = _fed("lowrank", features[:20], labels[:20], rank=2).merge(other)
    assert merged.covariance.factor.shape == (3, DIM, 2)
    _assert_is(merged, features, labels, factor_exact=False)
    wide = _fed("lowrank", features[:20], labels[:20], rank=DIM).merge(_fed("lowrank", features[20:], labels[20:], rank=1))
    assert wide.covariance.factor.shape == (3, DIM, DIM)
    _assert_is(wide, features, labels, factor_exact=False)


def test_float64_statistics_merge_into_float32_ones():
    features, labels = _data()
    merged = ClassStatistics(DIM).update(features[:20], labels[:20]).merge(_fed("full", features[20:], labels[20:]))
    assert merged.covariance.dtype == torch.float32
    _assert_is(merged, features, labels, relative=1e-5)


# ---- joining and renaming ------------------------------------------------------------------------------------------------


@few
@given(form=st.sampled_from(FORMS), seed=st.integers(0, 10_000), pair=st.permutations(range(4)))
def test_two_joined_classes_are_as_if_seen_under_one_label(form, seed, pair):
    features, labels = _data(seed, classes=4)
    gone, kept, *_ = pair
    joined = _fed(form, features, labels).join(gone, kept)
    assert gone not in joined and joined.freedom == len(features) - 3
    _assert_equal_up_to_order(joined, _fed(form, features, np.where(labels == gone, kept, labels)))


def test_a_class_is_not_joined_with_itself_or_an_unknown_one():
    statistics = _fed("shared", *_data())
    before = _state(statistics)
    with pytest.raises(ValueError, match="with itself"):
        statistics.join(1, 1)
    for pair in ((1, 7), (7, 1)):
        with pytest.raises(KeyError, match="class 7 is not known"):
            statistics.join(*pair)
    _assert_same_bits(before, _state(statistics))


@pytest.mark.parametrize("form", FORMS)
def test_a_renamed_class_keeps_its_row_and_every_number(form):
    features, labels = _data()
    names = np.array(["cat", "dog", "cow"])[labels]
    statistics = _fed(form, features, names)
    _assert_same_bits(
        _state(statistics.rename("dog", "wolf")), _state(_fed(form, features, np.where(names == "dog", "wolf", names)))
    )
    with pytest.raises(ValueError, match="class 'cow' already"):
        statistics.rename("wolf", "cow")
    with pytest.raises(KeyError, match="'dog' is not known"):
        statistics.rename("dog", "fox")


# ---- removing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["full", "lowrank", "diagonal"])
@few
@given(seed=st.integers(0, 10_000), gone=st.integers(0, 3), size=st.integers(1, 40))
def test_statistics_without_a_removed_class_are_as_if_it_was_never_seen(form, dtype, seed, gone, size):
    features, labels = _data(seed, classes=4)
    with_it, without = (ClassStatistics(DIM, form, 2, dtype=dtype) for _ in range(2))
    for start in range(0, 40, size):
        x, y = features[start : start + size], labels[start : start + size]
        with_it.update(x, y)
        without.update(x[y != gone], y[y != gone])
    _assert_same_bits(_state(with_it.remove(gone)), _state(without))
    assert gone not in with_it
    _assert_same_bits(_state(with_it.update(features, labels)), _state(without.update(features, labels)))


def test_removing_from_shared_statistics_warns_that_the_covariance_keeps_its_part():
    features, labels = _data()
    statistics = _fed("shared", features, labels)
    pooled = statistics.pooled().clone()
    with pytest.warns(UserWarning, match="shared covariance still contains"):
        statistics.remove(1)
    assert 1 not in statistics and len(statistics) == 2
    assert_close(statistics.pooled(), pooled.numpy(), 1e-12)
    assert statistics.freedom == int((statistics.count - 1).sum())  # as if the class had never been seen


@pytest.mark.parametrize("form", FORMS)
def test_removing_an_unknown_class_says_which_are_known(form):
    features, labels = _data()
    statistics = _fed(form, features, [["cat", "dog", "cow"][k] for k in labels])
    before = _state(statistics)
    with pytest.raises(KeyError, match=r"'bird' is not known; known are .*'cat'"):
        statistics.remove("bird")
    _assert_same_bits(before, _state(statistics))


@pytest.mark.filterwarnings("ignore:.*shared covariance")
@pytest.mark.parametrize("form", FORMS)
def test_all_classes_can_be_removed_and_learned_again(form):
    features, labels = _data()
    statistics = _fed(form, features, labels)
    for label in list(statistics.classes):
        statistics.remove(label)
    assert len(statistics) == 0 and statistics.count.tolist() == []
    statistics.update(features, labels)
    assert statistics.count.tolist() == _fed(form, features, labels).count.tolist()


# ---- labels -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([5, 3, 5, -1], [5, 3, -1]),
        (["dog", "cat", "dog", "bird"], ["dog", "cat", "bird"]),
        (np.array(["dog", "cat", "dog", "bird"]), ["dog", "cat", "bird"]),
        (np.array(["dog", 3, "dog", None], dtype=object), ["dog", 3, None]),
        (np.array([5, 3, 5, 1], dtype=np.uint8), [5, 3, 1]),
        (torch.tensor([5, 3, 5, 1]), [5, 3, 1]),
        ([np.int64(5), np.str_("a"), 5, np.float32(0.5)], [5, "a", 0.5]),
        ([torch.tensor(5), 3, 5, torch.tensor(1)], [5, 3, 1]),
        ([True, False, True, True], [True, False]),
        (np.array([True, False, True, True]), [True, False]),
        ([("a", 1), ("b", 2), ("a", 1), "a"], [("a", 1), ("b", 2), "a"]),
    ],
)
def test_labels_of_any_kind_become_classes_in_order_of_arrival(labels, classes):
    features = np.arange(8.0).reshape(4, 2)
    statistics = ClassStatistics(2).update(features, labels)
    assert statistics.classes == classes
    assert [type(c) for c in statistics.classes] == [type(c) for c in classes]
    for i, label in enumerate(labels):
        assert label in statistics and statistics.index(label) == classes.index(statistics.classes[statistics.index(label)])
        assert i in np.flatnonzero([statistics.index(other) == statistics.index(label) for other in labels])


def test_a_numpy_integer_and_its_python_value_are_one_class():
    statistics = ClassStatistics(1)
    for label in (3, np.int64(3), torch.tensor(3), np.uint8(3)):
        statistics.update([[1.0]], [label])
    assert statistics.classes == [3] and statistics.count.tolist() == [4]


def test_later_classes_come_after_earlier_ones():
    statistics = ClassStatistics(1).update([[0.0], [1.0]], ["m", "z"]).update([[0.0], [1.0], [2.0]], ["b", "z", "a"])
    assert statistics.classes == ["m", "z", "b", "a"] and statistics.count.tolist() == [1, 2, 1, 1]


# ---- small and large ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_single_sample_has_its_mean_and_no_spread(form):
    statistics = ClassStatistics(3, form).update([[1.0, 2.0, 3.0]], ["one"])
    assert statistics.mean.tolist() == [[1.0, 2.0, 3.0]] and np.abs(_dense(statistics)).max() == 0
    assert statistics.pooled().abs().max() == 0
    assert distribution_loss(torch.ones(1, 3), torch.zeros(1), statistics.mean.float(), statistics.covariance).item() == 0


@pytest.mark.parametrize("form", FORMS)
def test_fewer_samples_than_dimensions_work(form):
    features, labels = _data(0, 12, 3, 30)
    statistics = ClassStatistics(30, form, 16, **F64).update(features[:5], labels[:5]).update(features[5:], labels[5:])
    _assert_is(statistics, features, labels)


@pytest.mark.parametrize("form", FORMS)
def test_hundreds_of_classes_one_by_one_equal_all_at_once(form):
    features, labels = _data(0, 400, 150)
    step, whole = ClassStatistics(DIM, form, DIM, **F64), _fed(form, features, labels)
    for label in whole.classes:
        step.update(features[labels == label], labels[labels == label])
    assert step.classes == whole.classes
    _assert_is(step, features, labels)


@pytest.mark.parametrize("form", FORMS)
def test_integer_half_and_list_features_are_read(form):
    features = np.array([[1, 2], [3, 5], [4, 4]])
    expected = _fed(form, features.astype(float), [0, 0, 0], rank=2)
    for given_as in (
        features,
        features.tolist(),
        torch.tensor(features),
        features.astype(np.float16),
        features.astype(bool) * features,
    ):
        _assert_same_bits(_state(expected), _state(_fed_any(form, given_as)))


def _fed_any(form, features):
    return ClassStatistics(2, form, 2, **F64).update(features, [0, 0, 0])


def test_features_of_a_network_are_taken_without_their_graph():
    features = torch.ones(3, 2, requires_grad=True) * 2
    assert not ClassStatistics(2).update(features, [0, 1, 1]).mean.requires_grad


@pytest.mark.parametrize("form", FORMS)
def test_the_features_given_are_not_changed(form):
    features, labels = _data()
    given_features, given_labels = torch.tensor(features), labels.copy()
    ClassStatistics(DIM, form, 2, **F64).update(given_features, given_labels)
    assert np.array_equal(given_features.numpy(), features) and np.array_equal(given_labels, labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_covariances_are_symmetric_to_the_bit(dtype):
    features, labels = _data(0, 300, 3, 33)
    statistics = ClassStatistics(33, dtype=dtype)
    for start in range(0, 300, 70):
        statistics.update(features[start : start + 70], labels[start : start + 70])
    assert torch.equal(statistics.covariance, statistics.covariance.mT)


# ---- views --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_covariances_are_the_covariance_as_a_sum_of_parts(form):
    features, labels = _data()
    statistics = _fed(form, features, labels, rank=2)
    parts = statistics.covariances
    assert isinstance(parts, Covariances)
    assert_close(reference.dense(parts, 3), _dense(statistics), 1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_enlarging_the_covariances_leaves_the_statistics_alone(form):
    features, labels = _data()
    statistics = _fed(form, features, labels)
    before = _state(statistics)
    enlarged = enlarge(statistics.covariances, 0.4)
    assert_close(reference.dense(enlarged, 3), reference.enlarge(_dense(statistics), 0.4), 1e-12)
    _assert_same_bits(before, _state(statistics))


@pytest.mark.parametrize("form", FORMS)
def test_pooled_is_the_within_class_covariance(form):
    features, labels = _data()
    labels = np.where(np.arange(40) == np.flatnonzero(labels == 2)[0], 9, labels)  # a class of a single sample weighs nothing
    pooled = _fed(form, features, labels).pooled().numpy()
    centred = np.concatenate([features[labels == c] - features[labels == c].mean(0) for c in np.unique(labels)])
    expected = centred.T @ centred / (len(labels) - len(np.unique(labels)))
    assert_close(pooled, np.diag(expected) if form == "diagonal" else expected, 1e-9)


# ---- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["full", "diagonal", "shared"])
def test_a_saved_file_gives_the_same_statistics_to_the_bit(tmp_path, form, dtype):
    features, labels = _data()
    names = np.array(["ä b", 7, 0.5], dtype=object)[labels]
    statistics = ClassStatistics(DIM, form, 2, dtype=dtype)
    for start in range(0, 40, 9):
        statistics.update(features[start : start + 9], names[start : start + 9])
    statistics.save(tmp_path / "statistics")
    loaded = ClassStatistics.load(tmp_path / "statistics")
    assert (loaded.dim, loaded.form, loaded.rank, loaded.dtype) == (DIM, form, 2, dtype)
    assert [type(c) for c in loaded.classes] == [type(c) for c in statistics.classes]
    _assert_same_bits(_state(statistics), _state(loaded))
    _assert_same_bits(_state(statistics.update(features, labels)), _state(loaded.update(features, labels)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_low_rank_factor_keeps_half_precision_and_everything_else_its_bits(tmp_path, dtype):
    features, labels = _data()
    statistics = ClassStatistics(DIM, "lowrank", 2, dtype=dtype)
    for start in range(0, 40, 9):
        statistics.update(features[start : start + 9] * [1e-6, 1.0, 1e3, 1e6], labels[start : start + 9])
    statistics.save(tmp_path / "statistics")
    loaded = ClassStatistics.load(tmp_path / "statistics")
    for name in ("count", "mean", "diagonal"):
        assert torch.equal(loaded._rows(name), statistics._rows(name))
    deviation = statistics.covariance.diagonal.sqrt()[:, :, None]
    assert ((loaded.covariance.factor - statistics.covariance.factor).abs() <= 2**-11 * deviation).all()
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "statistics").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_exact_tensors_bring_everything_back_to_the_bit(form, dtype):
    """A checkpoint needs this. At this size matrix products are not exactly symmetric by themselves."""
    features, labels = _data(0, 700, 5, 67)
    statistics = ClassStatistics(67, form, 9, dtype=dtype)
    for start in range(0, 700, 90):
        statistics.update(features[start : start + 90], labels[start : start + 90])
        tensors = {name: tensor.clone() for name, tensor in statistics.tensors(exact=True).items()}
        loaded = ClassStatistics.from_file(statistics.header(), tensors)
        _assert_same_bits(_state(statistics), _state(loaded))
    _assert_same_bits(_state(statistics.update(features, labels)), _state(loaded.update(features, labels)))


@pytest.mark.parametrize("form", FORMS)
def test_empty_statistics_can_be_saved(tmp_path, form):
    statistics = ClassStatistics(DIM, form)
    statistics.save(tmp_path / "statistics")
    _assert_same_bits(_state(statistics), _state(ClassStatistics.load(tmp_path / "statistics")))


@pytest.mark.parametrize("form", FORMS)
def test_nbytes_is_the_size_of_the_file_without_its_header(tmp_path, form):
    features, labels = _data(0, 400, 20, 24)
    statistics = ClassStatistics(24, form, 4).update(features, labels)
    statistics.save(tmp_path / "statistics")
    size = (tmp_path / "statistics").stat().st_size
    assert 0 < size - statistics.nbytes < 2000
    if form == "full":
        assert statistics.nbytes == 20 * (8 + 24 * 8 + 24 * 25 // 2 * 4)


@pytest.mark.parametrize("form", FORMS)
def test_no_saved_byte_sequence_is_a_feature_row(tmp_path, form):
    """Neither plain nor centred at the class mean, in either precision."""
    features, labels = _data(3, 40, 4, 6)
    stored = [features, features.astype(np.float32).astype(float)]
    for dtype in (torch.float32, torch.float64):
        statistics = ClassStatistics(6, form, 6, dtype=dtype)
        for start in range(0, 40, 13):
            statistics.update(features[start : start + 13], labels[start : start + 13])
        statistics.save(tmp_path / "statistics")
        content = (tmp_path / "statistics").read_bytes()
        means = np.array([features[labels == label].mean(0) for label in range(4)])
        for rows in (*stored, stored[0] - means[labels], stored[0] - features.mean(0)):
            for row in rows:
                assert row.tobytes() not in content
                assert row.astype(np.float32).tobytes() not in content
        assert statistics.mean[0].numpy().tobytes() in content  # the search finds what is stored


def _load(folder, header, tensors):
    """Read a file whose checksum is right, whatever its contents."""
    tensor_files.write(folder / "statistics", KIND, header, tensors)
    return ClassStatistics.load(folder / "statistics")


def test_a_label_that_json_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    statistics = ClassStatistics(1).update([[1.0]], [("a", 1)])
    with pytest.raises(TypeError, match=r"must be a string or a number, not .'a', 1."):
        statistics.save(tmp_path / "statistics")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 5},
        {"dim": "4"},
        {"dim": 0},
        {"covariance": "diagonal"},
        {"covariance": "odd"},
        {"covariance": None},
        {"dtype": "float64"},
        {"dtype": "int8"},
        {"classes": [0, 1]},
        {"classes": 3},
        {"classes": [0, 1, [2]]},
        {"classes": [0, 1, 1]},
        {"rank": None},
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_its_tensors_is_refused(tmp_path, change):
    statistics = _fed("full", *_data())
    statistics.dtype, statistics._used["full"] = torch.float32, statistics._used["full"].float()
    with pytest.raises(FileFormatError, match="do not fit together"):
        _load(tmp_path, statistics.header() | change, statistics.tensors())


@pytest.mark.parametrize("form", FORMS)
def test_a_header_or_file_that_lacks_something_is_refused(tmp_path, form):
    statistics = _fed(form, *_data())
    header, tensors = statistics.header(), statistics.tensors()
    for name in header:
        with pytest.raises(FileFormatError, match="do not fit together"):
            _load(tmp_path, {k: v for k, v in header.items() if k != name}, tensors)
    for name in tensors:
        with pytest.raises(FileFormatError, match="do not fit together"):
            _load(tmp_path, header, {k: v for k, v in tensors.items() if k != name})


@pytest.mark.parametrize(("form", "added"), [("diagonal", "sketch"), ("shared", "size")])
def test_a_file_of_version_1_is_read_and_goes_on(tmp_path, form, added):
    """It lacks a tensor. Then classes vary equally, and features are independent."""
    features, labels = _data()
    statistics = _fed(form, features, labels)
    header = {name: value for name, value in statistics.header().items() if name != "version"}
    older = {name: value for name, value in statistics.tensors().items() if name != added}
    found = _load(tmp_path, header, older)
    assert torch.equal(found.mean, statistics.mean) and torch.equal(found.pooled(), statistics.pooled())
    if form == "shared":
        assert_close(found.sizes(), statistics.pooled().trace().expand(len(found)), 1e-6)
    else:
        assert dependence(found) == 1
    assert found.update(features, labels).count.tolist() == (2 * statistics.count).tolist()
    with pytest.raises(FileFormatError, match="do not fit together"):
        _load(tmp_path, statistics.header() | {"version": 3}, statistics.tensors())


# ---- bad input ----------------------------------------------------------------------------------------------------------

ROW = [0.0] * DIM


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([ROW, [0, 1, np.nan, 0], ROW], [0, 1, 2], r"1 of 3 rows hold NaN or infinity \(first: row 1\)"),
        ([[np.inf, 0, 0, 0], ROW, [0, 0, 0, -np.inf]], [0, 1, 2], r"2 of 3 rows hold NaN or infinity \(first: row 0\)"),
        ([[0.0, 1.0]], [0], r"features must have shape \(samples, 4\), not \(1, 2\)"),
        (ROW, [0], r"features must have shape \(samples, 4\), not \(4,\)"),
        ([], [], r"features must have shape \(samples, 4\), not \(0,\)"),
        ([[ROW]], [0], r"features must have shape"),
        ([ROW, ROW], [0], "2 rows of features but 1 labels"),
        ([ROW], [0, 1], "1 rows of features but 2 labels"),
        ([ROW], [], "1 rows of features but 0 labels"),
        ([ROW, ROW], [0, float("nan")], "NaN is not a class label"),
        ([ROW, ROW], np.array([0, np.nan]), "NaN is not a class label"),
        ([ROW, ROW], np.array([[0, 1]]), "labels must be one per row"),
        ([ROW, ROW], torch.tensor([[0], [1]]), "labels must be one per row"),
    ],
)
def test_bad_batches_are_refused_and_change_nothing(form, features, labels, message):
    statistics = _fed(form, *_data())
    before = _state(statistics)
    with pytest.raises(ValueError, match=message):
        statistics.update(features, labels)
    _assert_same_bits(before, _state(statistics))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("features", "labels"),
    [([ROW], [[0]]), ([ROW], [{}]), ([["a"] * DIM], [0]), ([[None] * DIM], [0]), (None, [0]), ([ROW], None), ([ROW], 3)],
    ids=str,
)
def test_invalid_input_is_a_type_or_value_error_and_changes_nothing(form, features, labels):
    statistics = _fed(form, *_data())
    before = _state(statistics)
    with pytest.raises((TypeError, ValueError)):
        statistics.update(features, labels)
    _assert_same_bits(before, _state(statistics))


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_batch_changes_nothing(form):
    statistics = _fed(form, *_data())
    before = _state(statistics)
    for labels in ([], np.array([]), torch.tensor([])):
        _assert_same_bits(before, _state(statistics.update(np.zeros((0, DIM)), labels)))


@pytest.mark.parametrize("form", FORMS)
def test_merging_other_dimensions_forms_or_things_is_refused_and_changes_nothing(form):
    statistics = _fed(form, *_data())
    before = _state(statistics)
    others = [ClassStatistics(DIM + 1, form).update([[0.0] * (DIM + 1)], [0])]
    others += [ClassStatistics(DIM, f).update([ROW], [0]) for f in FORMS if f != form]
    for other in others:
        with pytest.raises(ValueError, match=f"cannot merge {other.form!r} statistics of {other.dim} features"):
            statistics.merge(other)
    with pytest.raises(TypeError, match="merge needs ClassStatistics, not dict"):
        statistics.merge({})
    _assert_same_bits(before, _state(statistics))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, not 0"),
        ({"dim": 3, "rank": 0}, "rank must be at least 1, not 0"),
        ({"dim": 3, "covariance": "sparse"}, "covariance must be one of full, lowrank, diagonal, shared, not 'sparse'"),
    ],
)
def test_options_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ClassStatistics(**arguments)


@pytest.mark.parametrize("form", ["full", "lowrank", "diagonal"])
def test_an_update_that_is_interrupted_changes_nothing(form, monkeypatch):
    rng = np.random.default_rng(0)
    statistics = ClassStatistics(3, form, rank=2).update(rng.normal(size=(12, 3)), [0, 1, 2] * 4)
    before = {name: tensor.clone() for name, tensor in statistics.tensors().items()}
    calls = []

    def interrupted(self, *arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return merged(self, *arguments)

    merged = Spread.merged
    monkeypatch.setattr(Spread, "merged", interrupted)
    with pytest.raises(KeyboardInterrupt):
        statistics.update(rng.normal(size=(8, 3)), [0, 1, 2, 3] * 2)
    assert statistics.classes == [0, 1, 2]
    assert all(torch.equal(before[name], tensor) for name, tensor in statistics.tensors().items())


@pytest.mark.parametrize("form", ["full", "lowrank", "diagonal", "shared"])
def test_features_whose_squares_overflow_are_refused(form):
    statistics = ClassStatistics(2, form, rank=1).update(np.eye(2), [0, 0])
    with pytest.raises(ValueError, match=r"too large for covariances in float32.*float64"):
        statistics.update(1e25 * np.array([[1.0, -1.0], [-1.0, 2.0], [0.5, 1.0]]), [1, 1, 1])
    with pytest.raises(ValueError, match="too large for covariances in float32"):  # a known class, from far away
        statistics.update(1e25 * np.eye(2), [0, 0])
    assert statistics.classes == [0] and statistics.count.tolist() == [2]


@pytest.mark.parametrize("shared", [0.0, 0.5, 2.0])
def test_the_dependence_of_features_is_that_of_their_covariances(shared: float) -> None:
    """Features with a common part: Σ = I + shared 1 1ᵀ / d. The sketch estimates the sum of its squared entries."""
    random, dim, count = np.random.default_rng(0), 100, 4000
    rows = random.normal(size=(count, dim)) + np.sqrt(shared) * random.normal(size=(count, 1))
    covariance = np.eye(dim) + shared
    expected = np.square(covariance).sum() / np.square(np.diag(covariance)).sum()
    statistics = ClassStatistics(dim, "diagonal").update(rows, ["a", "b"] * (count // 2))
    assert abs(np.log(dependence(statistics) / expected)) < 0.5  # 64 random directions: a standard deviation of 0.2


def test_merging_adds_the_sketch_exactly() -> None:
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(40, 7)) + 3, ["a", "b"] * 20
    whole = ClassStatistics(7, "diagonal", dtype=torch.float64).update(rows, labels)
    parts = ClassStatistics(7, "diagonal", dtype=torch.float64).update(rows[:13], labels[:13])
    parts.merge(ClassStatistics(7, "diagonal", dtype=torch.float64).update(rows[13:], labels[13:]))
    assert torch.allclose(parts.tensors()["sketch"], whole.tensors()["sketch"], rtol=1e-12)
    signs = random_directions(7, SKETCH).numpy()
    assert np.allclose(whole.tensors()["sketch"][0], (rows[::2] @ signs).var(0, ddof=1), rtol=1e-12)
