"""Differential privacy: sensitivities, noise and accounting against independent references."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from amgc import AMGCClassifier, ClassStatistics
from amgc.core import estimates
from amgc.core import release as core
from amgc.core.accounting import gaussian_delta, gaussian_epsilon, gaussian_loss, largest_area
from amgc.core.narrowing import narrowing
from amgc.core.privacy import BudgetError, Privacy
from amgc.core.release import Lesson, release
from amgc.core.sums import Sums


def seeded(seed: int) -> core.RandomBytes:
    """Return a source of bytes that is the same every time; the real one cannot have a seed."""
    return np.random.default_rng(seed).bytes


def drawn(count: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    return random.normal(size=(count, dim)) + 3 * np.eye(dim)[labels], labels


# ---- accounting ------------------------------------------------------------------------------------------------------

PAIRS = [(0.1, 1e-5), (0.5, 1e-6), (1.0, 1e-5), (3.0, 1e-9), (8.0, 1e-5), (20.0, 1e-3)]


@pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
def test_the_noise_is_that_of_dp_accounting(epsilon, delta):
    dp_accounting = pytest.importorskip("dp_accounting")
    reference = dp_accounting.get_sigma_gaussian(epsilon, delta)
    assert Privacy(epsilon, delta).noise == pytest.approx(reference, rel=1e-6)


@pytest.mark.parametrize("losses", [[0.05], [0.01] * 7, [0.5, 0.2, 0.1]])
def test_losses_add_up_as_in_dp_accounting(losses):
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    accountant = pld.PLDAccountant()  # rounds losses up to multiples of 1e-4
    for loss in losses:
        accountant.compose(dp_accounting.GaussianDpEvent(loss**-0.5))
    reference = accountant.get_epsilon(1e-5)
    assert reference - 1e-3 <= gaussian_epsilon(sum(losses), 1e-5) <= reference


@pytest.mark.parametrize("loss", [0.01, 0.2, 1.0, 9.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0])
def test_delta_is_the_hockey_stick_divergence_of_two_normal_distributions(loss, epsilon):
    mu = math.sqrt(loss)
    x = np.linspace(-12, 12 + mu, 400_001)
    beyond = np.maximum(stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x), 0)
    assert gaussian_delta(loss, epsilon) == pytest.approx(np.trapezoid(beyond, x), rel=1e-5, abs=1e-12)


@given(st.floats(0.01, 50), st.floats(1e-12, 0.1))
def test_loss_and_epsilon_are_inverse_and_never_exceed_what_was_asked_for(epsilon, delta):
    loss = gaussian_loss(epsilon, delta)
    assert gaussian_delta(loss, epsilon) <= delta
    assert gaussian_epsilon(loss, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("loss", [0.0, 0.07, 2.8])
def test_the_largest_area_is_that_of_the_best_test_on_draws(loss):
    random = np.random.default_rng(0)
    without, within = random.normal(size=40_000), random.normal(math.sqrt(loss), size=40_000)
    area = stats.mannwhitneyu(within, without).statistic / 40_000**2
    assert largest_area(loss) == pytest.approx(area, abs=0.01)  # its standard error is 0.002


def test_no_loss_is_no_epsilon():
    assert gaussian_delta(0.0, 0.0) == 0 and gaussian_epsilon(0.0, 1e-5) == 0


# ---- sensitivity -----------------------------------------------------------------------------------------------------


@st.composite
def neighbours(draw):
    """Draw rows of any size, with labels, and the place of the one that is removed."""
    dim, count = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
    rows = draw(st.lists(st.lists(numbers, min_size=dim, max_size=dim), min_size=count, max_size=count))
    labels = draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
    return np.array(rows), labels, draw(st.integers(0, count - 1))


@pytest.fixture
def exact(monkeypatch):
    """Return what a function that sees the data adds noise to, as integers: multiples of GRID²."""
    found = []
    with_noise = core._noisy
    monkeypatch.setattr(core, "_noisy", lambda values, *given: found.append(values) or with_noise(values, *given))

    def asked(ask, *given) -> list[int]:
        found.clear()
        ask(*given, 1.0, seeded(0))
        made = (found[0] / core.GRID**2).flatten().tolist()
        assert made == [int(number) for number in made]
        return [int(number) for number in made]

    return asked


ONE = int(1 / core.GRID**2)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(neighbours(), st.sampled_from([None, 0.1, 1.0, 1e4]), st.sampled_from([2, 256]))
def test_one_sample_changes_each_answer_by_at_most_one_and_only_that_of_its_class(exact, found, clip, directions):
    """In integers, so exactly: rounding is no excuse."""
    rows, labels, gone = found
    made = Privacy(1.0, clip=clip, directions=directions).rows(rows)
    place = torch.tensor(["abc".index(label) for label in labels])
    check_sensitivity(exact, 3 * made, place, gone)  # the functions limit rows themselves


def check_sensitivity(exact, rows: torch.Tensor, place: torch.Tensor, gone: int) -> None:
    keep, dim = [row for row in range(len(rows)) if row != gone], rows.shape[1]

    def differ(ask, *given) -> list[int]:
        whole, without = (exact(ask, *(one[chosen] if isinstance(one, torch.Tensor) else one for one in given))
                          for chosen in (slice(None), keep))  # fmt: skip
        return [one - other for one, other in zip(whole, without, strict=True)]

    count = differ(core.noisy_counts, place, 3)
    assert [number // ONE for number in count] == [int(label == place[gone]) for label in range(3)]
    total = differ(core.noisy_sums, rows, place, 3)
    assert sum(number**2 for number in total) <= ONE**2
    assert all(number == 0 for at, number in enumerate(total) if at // dim != int(place[gone]))
    second = differ(core.noisy_squares, rows)
    upper = torch.triu_indices(dim, dim)
    twice = [1 if one == other else 2 for one, other in upper.T.tolist()]
    assert sum(times * number**2 for times, number in zip(twice, second, strict=True)) <= ONE**2  # the Frobenius norm


@pytest.mark.parametrize("scale", [1e-300, 1e-16, 1.0, 1 + 1e-16, 1e16, 1e300])
@pytest.mark.parametrize("kind", ["one number", "all equal", "random", "3 and 4"])
def test_a_row_chosen_by_an_attacker_changes_no_sum_by_more_than_one(exact, scale, kind):
    """Beside ten thousand rows whose sum is long, so that floating-point numbers would lose the low bits of the row."""
    random = np.random.default_rng(0)
    rows = np.full((10_001, 5), 1 / 3) + 1e-9 * random.normal(size=(10_001, 5))
    chosen = {"one number": [1, 0, 0, 0, 0], "all equal": [1] * 5, "random": random.normal(size=5), "3 and 4": [3, 0, 4, 0, 0]}
    rows[5000] = scale * np.array(chosen[kind], dtype=float)
    check_sensitivity(exact, torch.from_numpy(rows), torch.arange(10_001) % 3, 5000)


def test_the_data_are_seen_by_the_three_noisy_functions_only_and_their_losses_add_up(monkeypatch):
    losses = []
    for name in ("noisy_counts", "noisy_sums", "noisy_squares"):
        asked = getattr(core, name)
        monkeypatch.setattr(core, name, lambda *given, asked=asked: losses.append(given[-2]) or asked(*given))
    rows, labels = drawn(300, 5)
    rows = Privacy(1.0).rows(rows)
    for count in (3, 300):
        losses.clear()
        release(rows[:count], labels[:count], 0.7, seeded(0))
        assert len(losses) == 4 + core.ROUNDS and sum(losses) == pytest.approx(0.7)


@pytest.mark.parametrize("narrow", [False, True])
def test_all_but_the_noisy_answers_is_computed_from_these_alone(monkeypatch, narrow):
    """Answers that were given to other data make the same lesson and the same statistics: all else is post-processing."""
    answers = []
    for name in ("noisy_counts", "noisy_sums", "noisy_squares"):
        asked = getattr(core, name)
        monkeypatch.setattr(core, name, lambda *given, asked=asked: answers.append(asked(*given)) or answers[-1])
    rows, labels = drawn(300, 400)
    how = narrowing(400) if narrow else None
    made = [release(Privacy(1.0).rows(rows), labels, 0.01, seeded(0), narrow=how)]
    assert (made[0].centre.shape == (400,)) != narrow
    for name in ("noisy_counts", "noisy_sums", "noisy_squares"):
        monkeypatch.setattr(core, name, lambda *given: answers.pop(0))
    made.append(release(Privacy(1.0).rows(7 - rows[::-1] ** 3), labels, 0.01, seeded(1), narrow=how))
    assert not answers
    first, second = (Sums.of(lesson, 0.01).statistics() for lesson in made)
    assert torch.equal(first.mean, second.mean) and torch.equal(first.pooled(), second.pooled())


def test_the_noise_of_totals_is_as_stated():
    found = [release(torch.zeros(3, 4), ["a", "b", "c"], 0.01, seeded(seed)) for seed in range(150)]
    total, stated = torch.stack([one.total for one in found]), torch.stack([one.total_noise for one in found])
    assert float((total.square().sum(2) / stated.diagonal(dim1=1, dim2=2).sum(1)[:, None]).mean()) == pytest.approx(1, rel=0.2)


def test_two_sums_of_squares_are_joined_without_bias_and_with_the_stated_noise():
    random = np.random.default_rng(0)
    vectors = torch.from_numpy(np.linalg.qr(random.normal(size=(5, 5)))[0])
    deviation, size = torch.tensor([0.1, 0.2, 0.5, 1.0, 1.0]).double(), 1.5
    rows = torch.from_numpy(random.normal(size=(50, 5))) / 100
    scaled = rows @ (vectors / (deviation * size))
    exact = rows.T @ rows
    made = []
    for seed in range(400):
        first, again = (core.noisy_squares(one, 50.0, seeded(seed + more)) for one, more in ((rows, 0), (scaled, 1000)))
        alike = math.sqrt(first.noise / 2) * torch.eye(5, dtype=torch.float64)
        joined, scale = core._joined(first.value, alike, again, vectors, deviation, size)
        stated = scale * scale.trace()
        made.append(joined - exact)
    noise = torch.stack(made)
    assert bool((noise.mean(0).abs() < 5 * noise.std(0) / 20).all())  # five standard errors
    torch.testing.assert_close((noise @ noise).mean(0), stated, rtol=0.25, atol=0.1 * float(stated.abs().max()))


def test_the_triangle_with_weighted_entries_has_noise_of_half_the_variance_off_the_diagonal():
    found = [core.noisy_squares(torch.zeros(1, 60), 0.5, seeded(seed)) for seed in range(40)]
    second = torch.stack([one.value for one in found])
    assert torch.equal(second, second.mT)
    diagonal, off = second.diagonal(dim1=1, dim2=2), second[:, torch.ones(60, 60).triu(1).bool()]
    assert float(diagonal.var()) == pytest.approx(2, rel=0.15)  # 2,400 numbers: 3 % standard error
    assert float(off.var()) == pytest.approx(1, rel=0.03)  # 70,800: 0.5 %
    assert found[0].noise == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("shape", [None, "steep"])
def test_the_spectrum_of_a_noisy_sum_is_found_beyond_the_noise(shape):
    dim, samples = 80, 100_000
    random = np.random.default_rng(0)
    turned = torch.from_numpy(np.linalg.qr(random.normal(size=(dim, dim)))[0])
    values = torch.cat([torch.full((76,), 0.001), torch.tensor([0.05, 0.1, 0.2, 0.4])]).double()
    exact = samples * (turned * values) @ turned.T
    wigner = torch.from_numpy(random.normal(size=(dim, dim)))
    wigner = (wigner + wigner.T) / math.sqrt(2)
    scale = 100.0 * torch.eye(dim).double() if shape is None else 100 * (turned * values.sqrt()) @ turned.T
    half = torch.linalg.cholesky(scale)
    noisy = exact + half @ wigner @ half.T
    found = core.spectrum(noisy, scale, samples)
    torch.testing.assert_close(found.values[-4:], values[-4:], rtol=0.05, atol=0.01)  # the noise has up to 0.018
    assert float(found.values.sum()) == pytest.approx(float(values.sum()), rel=0.1)
    assert bool((found.values > 0).all())


def test_more_rounds_find_more_directions():
    """Rows with variances from 1 to 1e-5: the noise of the first sum hides most of them."""
    random = np.random.default_rng(0)
    variances = torch.logspace(0, -5, 40).double()
    rows = torch.from_numpy(random.normal(size=(20_000, 40))) * variances.sqrt()
    rows = core.clipped(rows / (2 * float(variances.sum()) ** 0.5))
    exact = torch.linalg.eigvalsh(rows.T @ rows / len(rows))

    def error() -> float:
        lesson = release(rows, [0] * len(rows), 0.5, seeded(0))
        found = core.spectrum(lesson.second, core.noise_scale(lesson.second_noise), len(rows))
        return float((found.values.log() - exact.log()).abs().mean())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "ROUNDS", 1)
        once = error()
    assert error() < once / 2


def test_a_signal_is_found_by_direction_where_it_differs_and_on_average_where_chance_explains_it():
    random = np.random.default_rng(0)
    true = torch.from_numpy(np.repeat([0.3, 0.05, 0.001], 100))
    for noise, tolerance in ((0.01, 0.1), (20.0, None)):
        normal = torch.from_numpy(random.normal(size=(50, 300)))
        squares = (normal * (true + noise).sqrt()).square().sum(0) / 49
        found = estimates.signal(squares, torch.full((300,), noise).double(), 50)
        if tolerance is None:  # no more than one average is known
            assert float(found.max() - found.min()) < 0.5 and float(found.mean()) < 0.5
        else:
            assert bool(((found - true).abs() < tolerance * true + 0.01)[25:75].all())
            assert float(found[240:].mean()) < 0.005


def test_the_variances_are_those_of_rows_of_norm_one_if_noise_hides_them():
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(100, 100)))
    found = core.spectrum(1000 * (noise + noise.T), 1000 * torch.eye(100).double(), 50)
    assert float(found.values.sum()) <= 1


def test_the_common_mean_gets_more_of_the_loss_where_that_makes_a_difference():
    shares = [core.centre_share(samples, 0.3, 664) for samples in (40, 400, 4000, 40_000, 400_000)]
    assert shares[1] > 0.1 > shares[2] > 0.01
    assert [shares[0], *shares[3:]] == pytest.approx([core.CENTRE] * 3)  # nothing can be known of it; and it is known well


def test_counts_get_more_of_the_loss_if_rows_keep_much_in_common():
    left = core.COMMON * 0.4 / (core.COMMON + 0.4)
    shares = np.linspace(0.001, 0.9, 9000)
    best = shares[((1 + left**2 / shares) / (1 - shares)).argmin()]
    assert core.count_share(0.4) == pytest.approx(best, abs=1e-3)
    assert core.count_share(1e-9) == core.COUNT and core.count_share(1e9) < 0.5


def test_few_samples_with_a_common_mean_are_told_apart_as_far_as_the_noise_allows():
    """As photographs: rows have most of their norm in common, and there are more features than samples."""
    random = np.random.default_rng(0)
    means = 2 + random.normal(size=400) + 0.4 * random.normal(size=(5, 400))

    def photos(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.arange(5), count)
        return means[labels] + 0.7 * random.normal(size=(5 * count, 400)), labels

    test, truth = photos(50)
    found = []
    for _ in range(5):
        found.append(AMGCClassifier(epsilon=8.0).fit(*photos(20)).score(test, truth))
    assert np.mean(found) > 0.6


def test_few_samples_get_few_directions():
    assert [core.enough_directions(count, 0.25, 664) for count in (1, 20, 40, 100, 1e6)] == [32, 60, 120, 664, 664]


def many(count: int, seed: int = 0, dim: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Draw samples of three classes that are far apart."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), count)
    return np.random.default_rng(9).normal(size=(3, dim))[labels] + 0.5 * random.normal(size=(3 * count, dim)), labels


def test_few_directions_are_stored_learned_again_and_predicted_with(tmp_path):
    test, truth = many(30, 1)
    made = AMGCClassifier(epsilon=8.0, lessons=2).fit(*many(10))
    width = made.sums_.dim
    assert width < 200 and made.n_features_in_ == 600 and made.coef_.shape == (3, width)
    assert made.score(test, truth) > 0.8
    made.partial_fit(*many(400, 2))
    assert made.sums_.dim == width and made.score(test, truth) > 0.95
    made.save(tmp_path / "made.safetensors")
    np.testing.assert_allclose(AMGCClassifier.load(tmp_path / "made.safetensors").predict_proba(test), made.predict_proba(test))


@pytest.mark.parametrize("counts", [(10, 400), (400, 10), (10, 30)])
def test_classifiers_with_different_numbers_of_directions_are_merged_in_the_smaller_one(counts):
    test, truth = many(30, 1)
    one, other = (AMGCClassifier(epsilon=8.0).fit(*many(count, seed)) for seed, count in enumerate(counts))
    widths = one.sums_.dim, other.sums_.dim
    assert widths[0] != widths[1]
    merged = one.merge(other)
    assert merged.sums_.dim == min(widths) and merged.score(test, truth) > 0.9
    assert merged.spent_ == pytest.approx(dict.fromkeys(range(3), Privacy(8.0).epsilon_of(2 * Privacy(8.0).loss)))


def test_narrowed_sums_are_those_of_narrowed_rows():
    rows, labels = many(20)
    rows = Privacy(1.0).rows(rows)
    sums = Sums(600).add(rows, labels)
    for whole, directions in ((600, 90), (600, 40)):
        sums = sums.narrowed(narrowing(whole), directions)  # the second time, of sums that are narrow already
        reference = Sums(directions).add(rows @ narrowing(600)(directions), labels)
        torch.testing.assert_close(sums.total, reference.total)
        torch.testing.assert_close(sums.second, reference.second)


def test_the_noise_of_narrowed_sums_is_as_stated():
    found = [Sums.of(release(torch.zeros(3, 60), ["a", "b", "c"], 0.01, seeded(seed)), 0.01) for seed in range(60)]
    made = [sums.narrowed(narrowing(60), 20) for sums in found]
    total, stated = torch.stack([one.total for one in made]), torch.stack([one.total_noise for one in made])
    assert float((total.square().sum((1, 2)) / stated.diagonal(dim1=1, dim2=2).sum(1)).mean()) == pytest.approx(1, rel=0.2)
    assert float(made[0].noise[:, 1].sum() * 20 / made[0].total_noise.trace()) == pytest.approx(1)


# ---- noise -----------------------------------------------------------------------------------------------------------


def test_the_noise_is_standard_normal():
    found = core.standard_normal(50_000, seeded(0)).numpy()
    assert stats.kstest(found, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.02
    extreme = core.standard_normal(2, lambda count: b"\x00" * 16 + b"\x01" + b"\x00" * 15).numpy()
    assert np.isfinite(extreme).all() and extreme[0] == -extreme[1] == pytest.approx(-stats.norm.ppf(2.0**-107))


@pytest.mark.parametrize("size", [0.5, 3.0, 6.3, 7.0, 8.0])
def test_no_gap_between_possible_noise_is_wider_than_the_step_of_noisy_sums(size):
    """Else a noisy sum would tell which sums are impossible, and numbers beyond 6.2 had such gaps."""
    word = int(stats.norm.sf(size) * 2**53) << 12
    words = np.array([word, 2**64 - 1, word + (1 << 12), 0], dtype="<u8")  # the next ones that differ in the first half
    one, other = core.standard_normal(2, lambda count: words.tobytes()).tolist()
    assert one != 0 and abs(one - other) < 2.0 ** -(core.BITS + 14)  # noise is first rounded to multiples of GRID²


def test_the_noise_comes_from_the_operating_system_and_never_repeats():
    def released() -> Lesson:
        return release(torch.eye(2).double(), ["a", "b"], 1.0)

    one, other = released(), released()
    assert not torch.equal(one.total, other.total) and not torch.equal(one.second, other.second)
    torch.manual_seed(0), np.random.seed(0)
    again = released()
    torch.manual_seed(0), np.random.seed(0)
    assert not torch.equal(again.total, released().total)


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(-1, 1))
def test_noisy_sums_are_multiples_of_one_step_whatever_the_data(seed, value):
    noisy = core.noisy_sums(torch.tensor([[value]]), torch.tensor([0]), 1, 0.05, seeded(seed)).value
    step = 2.0 ** (math.floor(math.log2(0.05**-0.5)) - core.BITS)
    assert float(noisy / step) == round(float(noisy / step))


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_sums_without_noise_give_the_class_statistics():
    rows, labels = drawn(60, 5)
    rows = Privacy(1.0, clip=100.0).rows(rows)
    found = Sums(5).add(rows[:20], labels[:20]).merge(Sums(5).add(rows[20:], labels[20:])).statistics()
    reference = ClassStatistics(5, "shared", dtype=torch.float64).update(rows, labels)
    assert found.classes == reference.classes and torch.equal(found.count, reference.count)
    torch.testing.assert_close(found.mean, reference.mean)
    torch.testing.assert_close(found.pooled(), reference.pooled())


def test_little_noise_changes_little_and_much_noise_leaves_a_covariance():
    rows, labels = drawn(3000, 6)
    privacy = Privacy(100.0)
    made = privacy.rows(rows)
    reference = ClassStatistics(6, "shared", dtype=torch.float64).update(made, labels)
    found = Sums.of(release(made, labels, privacy.loss, seeded(0)), privacy.loss).statistics()
    # Centred rows that are longer than average are cut, which shortens means by a tenth or so.
    assert bool(((found.mean - reference.mean).norm(dim=1) < 0.1 * reference.mean.norm(dim=1)).all())
    torch.testing.assert_close(found.pooled(), reference.pooled(), rtol=0, atol=0.05)
    noisy = Sums.of(release(made[:9], labels[:9], Privacy(0.01).loss, seeded(0)), 0.1).statistics()
    assert bool((torch.linalg.eigvalsh(noisy.pooled()) > 0).all()) and int(noisy.count.min()) >= 1


def test_removing_a_class_leaves_the_others_and_what_varied_within_it():
    rows, labels = drawn(90, 4)
    rows = Privacy(1.0, clip=100.0).rows(rows)
    found = Sums(4).add(rows, labels).remove(1).statistics()
    every = ClassStatistics(4, "shared", dtype=torch.float64).update(rows, labels)
    assert 1 not in found
    torch.testing.assert_close(found.pooled(), every.pooled())
    torch.testing.assert_close(found.mean[found.index(0)], every.mean[every.index(0)])


def test_joined_classes_are_as_if_learned_as_one_and_their_losses_add_up():
    rows, labels = drawn(60, 4)
    rows = Privacy(1.0).rows(rows)
    one = Sums(4).add(rows, labels)
    one.spent = {0: 0.1, 1: 0.2, 2: 0.3}
    reference = Sums(4).add(rows, np.where(labels == 1, 0, labels)).statistics()
    found = one.rename(1, 0).statistics()
    assert one.spent == {0: pytest.approx(0.3), 2: 0.3}
    torch.testing.assert_close(found.mean[found.index(0)], reference.mean[reference.index(0)])
    torch.testing.assert_close(found.pooled(), reference.pooled())


def test_sums_about_two_centres_add_up_to_those_of_all_samples():
    rows, labels = drawn(60, 4)
    rows = Privacy(1.0, clip=100.0).rows(rows)
    reference = Sums(4).add(rows, labels).statistics()
    parts = []
    for half, centre in ((slice(30), 0.01), (slice(30, None), -0.02)):
        part = Sums(4).add(rows[half] - centre, labels[half])
        part.centre = torch.full((4,), centre, dtype=torch.float64)
        parts.append(part)
    found = parts[0].merge(parts[1]).statistics()
    order = [found.index(label) for label in reference.classes]
    torch.testing.assert_close(found.mean[order], reference.mean)
    torch.testing.assert_close(found.pooled(), reference.pooled())


# ---- settings and budget ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 0}, "epsilon must be a number above 0"),
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"epsilon": "1"}, "epsilon must be"),
        ({"epsilon": 1, "delta": 0}, "delta must be"),
        ({"epsilon": 1, "lessons": 0}, "lessons must be a whole number"),
        ({"epsilon": 1, "lessons": 1.5}, "lessons must be a whole number"),
        ({"epsilon": 1, "directions": 0}, "directions must be"),
        ({"epsilon": 1, "clip": -1}, "clip must be"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Privacy(**wrong)


def test_rows_do_not_depend_on_scale_or_offset_unless_there_is_a_clip():
    rows = drawn(8, 5)[0]
    privacy = Privacy(1.0)
    torch.testing.assert_close(privacy.rows(rows), privacy.rows(7 * rows + 3))
    torch.testing.assert_close(privacy.rows(rows).norm(dim=1), torch.ones(8).double())
    clipped = Privacy(1.0, clip=2.0).rows([[1.0, 0.0], [0.0, 4.0]])
    assert clipped.tolist() == [[0.5, 0.0], [0.0, 1.0]]
    assert privacy.rows(np.zeros((1, 5))).tolist() == [[0.0] * 5]


def test_a_class_can_be_learned_in_as_many_lessons_as_the_budget_has():
    X, y = drawn(90, 8)
    classifier = AMGCClassifier(epsilon=3.0, lessons=2)
    classifier.partial_fit(X, y).partial_fit(X[y == 1], y[y == 1])
    assert classifier.spent_ == {0: pytest.approx(1.96, abs=0.1), 1: pytest.approx(3.0), 2: classifier.spent_[0]}
    before = classifier.sums_.total.clone()
    with pytest.raises(BudgetError, match=r"budget of 1 is spent: epsilon = 3 of 3"):
        classifier.partial_fit(X, y)
    assert torch.equal(classifier.sums_.total, before) and classifier.spent_[0] < 2.1


def test_a_new_class_spends_nothing_of_the_others():
    X, y = drawn(90, 8)
    classifier = AMGCClassifier(epsilon=1.0)
    for label in range(3):
        classifier.partial_fit(X[y == label], y[y == label])
    assert classifier.spent_ == {label: pytest.approx(1.0) for label in range(3)}


def test_forgetting_and_learning_again_does_not_refund_the_budget():
    X, y = drawn(90, 8)
    classifier = AMGCClassifier(epsilon=1.0).fit(X, y)
    classifier.forget(2)
    assert classifier.classes_.tolist() == [0, 1] and classifier.spent_[2] == pytest.approx(1.0)
    with pytest.raises(BudgetError):
        classifier.partial_fit(X[y == 2], y[y == 2])
    classifier.rename(1, 5)
    assert classifier.spent_[5] == pytest.approx(1.0) and classifier.classes_.tolist() == [0, 5]
    classifier.forget(0)
    with pytest.raises(ValueError, match="last class of a private classifier"):
        classifier.forget(5)


def test_merged_classifiers_add_their_noisy_sums_and_losses():
    X, y = drawn(90, 8)
    one, other = (AMGCClassifier(epsilon=1.0).fit(X[half], y[half]) for half in (slice(45), slice(45, None)))
    total, loss = (
        one.sums_.total + other.sums_.total[[other.sums_.classes.index(k) for k in one.sums_.classes]],
        Privacy(1.0).loss,
    )
    own = [other.sums_.classes.index(k) for k in one.sums_.classes]
    total = total + other.sums_.count[own, None] * (other.sums_.centre - one.sums_.centre)  # about the centre of `one`
    one.merge(other)
    torch.testing.assert_close(one.sums_.total, total)
    assert one.sums_.spent == {label: pytest.approx(2 * loss) for label in range(3)}
    with pytest.raises(ValueError, match="both classifiers must be private"):
        one.merge(AMGCClassifier().fit(X, y))
    with pytest.raises(ValueError, match="both classifiers must be private"):
        AMGCClassifier().fit(X, y).merge(one)


def test_a_saved_private_classifier_goes_on_where_it_was(tmp_path):
    X, y = drawn(200, 300)
    classifier = AMGCClassifier(epsilon=8.0, directions=20).fit(X, y)
    classifier.save(tmp_path / "a.safetensors")
    again = AMGCClassifier.load(tmp_path / "a.safetensors")
    assert again.spent_ == classifier.spent_ and again.n_features_in_ == 300
    assert again.predict_proba(X).tolist() == classifier.predict_proba(X).tolist()
    assert torch.equal(again.sums_.second, classifier.sums_.second)
    with pytest.raises(BudgetError):
        again.partial_fit(X, y)


def test_a_file_of_an_earlier_version_is_refused_by_name():
    made = AMGCClassifier(epsilon=8.0).fit(*drawn(60, 4))
    header, tensors = made.packed()
    del tensors["sums.centre"]  # as of the first versions
    with pytest.raises(ValueError, match="private classes of an earlier version, without 'centre', cannot be read; learn them"):
        AMGCClassifier.from_packed(header, tensors)


def test_rows_that_wait_for_their_noise_are_not_pickled_or_copied():
    made = AMGCClassifier(epsilon=1.0)
    made.collect(*drawn(9, 4))
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(ValueError, match="its rows have no noise yet"):
            write(made)
    pickle.dumps(made.finish())


def test_batches_of_one_lesson_get_noise_once(monkeypatch):
    X, y = drawn(90, 8)
    calls = []
    monkeypatch.setattr("amgc.core.learning.release", lambda *given, **more: calls.append(given[0]) or release(*given, **more))
    classifier = AMGCClassifier(epsilon=1.0)
    for start in range(0, 90, 30):
        classifier.collect(X[start : start + 30], y[start : start + 30])
    classifier.finish()
    assert len(calls) == 1 and len(calls[0]) == 90 and classifier.spent_[0] == pytest.approx(1.0)


def test_a_lesson_beyond_the_budget_is_dropped_and_not_added_to_the_next():
    X, y = drawn(90, 8)
    classifier = AMGCClassifier(epsilon=1.0, directions=8).fit(X, y)
    before = classifier.predict_proba(X)
    classifier.collect(X, y)
    with pytest.raises(BudgetError):
        classifier.finish()
    classifier.collect(X, y + 10).finish()  # other classes, whose budget is whole
    assert sorted(classifier.spent_) == sorted({*y.tolist(), *(y + 10).tolist()})
    assert before.shape[1] * 2 == classifier.predict_proba(X).shape[1]


def test_private_classes_are_told_apart_if_there_are_enough_samples():
    X, y = drawn(3000, 8)
    classifier = AMGCClassifier(epsilon=2.0, clip=6.0).fit(X[:2000], y[:2000])
    assert classifier.score(X[2000:], y[2000:]) > 0.9 * AMGCClassifier().fit(X[:2000], y[:2000]).score(X[2000:], y[2000:])
    assert 0 <= classifier.typicality(X[2000:]).min() <= classifier.typicality(X[2000:]).max() <= 1


def test_statistics_that_take_noise_into_account_are_not_shrunk_once_more():
    X, y = drawn(30, 8)
    classifier = AMGCClassifier(epsilon=20.0).fit(X, y)
    found = classifier.predict_proba(X)
    assert np.array_equal(classifier.set_params(shrinkage=0.0).predict_proba(X), found)
    assert not np.allclose(classifier.set_params(shrinkage=(0.0, 0.9)).predict_proba(X), found)  # what is chosen is obeyed


@pytest.mark.parametrize(("first", "later"), [(None, 1.0), (1.0, None), (1.0, 9.0)])
def test_epsilon_cannot_change_after_classes_were_learned(first, later):
    X, y = drawn(90, 8)
    classifier = AMGCClassifier(epsilon=first).fit(X, y)
    before = classifier.predict(X)
    classifier.set_params(epsilon=later)
    assert classifier.predict(X).tolist() == before.tolist()
    with pytest.raises(ValueError, match="which cannot change to"):
        classifier.partial_fit(X, y)
    assert (classifier.fit(X, y).spent_ == {}) == (later is None)


def test_a_centre_is_subtracted_first():
    rows = drawn(8, 5)[0]
    centre = rows.mean(0)
    found = Privacy(1.0, clip=1e6, centre=centre).rows(rows)
    np.testing.assert_allclose(found, (rows - centre) / 1e6, rtol=1e-9)
    with pytest.raises(ValueError, match="centre has 5 numbers, but rows have 4 features"):
        Privacy(1.0, centre=centre).rows(rows[:, :4])
    with pytest.raises(ValueError, match="centre holds NaN"):
        Privacy(1.0, centre=[math.nan])


def test_a_classifier_with_a_centre_is_saved(tmp_path):
    X, y = drawn(200, 6)
    classifier = AMGCClassifier(epsilon=8.0, centre=X.mean(0)).fit(X, y)
    classifier.save(tmp_path / "a.safetensors")
    again = AMGCClassifier.load(tmp_path / "a.safetensors")
    assert again.predict_proba(X).tolist() == classifier.predict_proba(X).tolist()
    assert again.merge(classifier).sums_.spent[0] == pytest.approx(2 * Privacy(8.0).loss)


@pytest.mark.parametrize(("count", "epsilon"), [(40, 8.0), (40, 50.0), (400, 1.0)])
def test_probabilities_are_neither_those_of_a_guess_nor_certain(count, epsilon):
    """Leaving samples out tells nothing of noisy sums: it took all classes for equally likely."""
    random = np.random.default_rng(0)
    means = random.normal(size=(5, 300)) * 0.3
    labels, truth = np.repeat(np.arange(5), count), np.repeat(np.arange(5), 40)
    rows, test = (means[y] + random.normal(size=(len(y), 300)) for y in (labels, truth))
    made = AMGCClassifier(epsilon=epsilon).fit(rows, labels)
    sure, right = made.predict_proba(test).max(1).mean(), made.score(test, truth)
    assert right > 0.4 and right - 0.35 < sure < right + 0.3
    assert made.expected_accuracy() is None
