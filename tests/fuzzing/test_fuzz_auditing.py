"""Auditing under odd arguments: refused by name, or bounds on the sound side of what the counts say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz_tools import ODD, answer, arguments, fuzz
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from opake_jax import accounting, auditing
from opake_jax.random import key

COUNTS = (0, 1, 50, 100, np.array([3, 50]))
CONFIDENCES = (0.95, 0.5, 1e-6, 1 - 1e-9)
SCORES = (
    [0.0], np.arange(40), np.linspace(0, 3, 60), np.array([-np.inf, 0.0, np.inf]), np.zeros(20), np.ones((2, 30)),
    np.arange(5, dtype=np.int8), jnp.arange(6.0), np.array([1e308, -1e308, 5e-324]),
)  # fmt: skip


@fuzz(150)
@given(
    chosen=arguments(
        {
            "true_positives": COUNTS, "num_in": (100, 1000), "false_positives": COUNTS, "num_out": (100, 1000),
            "confidence": CONFIDENCES,
        }
    )
)  # fmt: skip
def test_points_from_counts_lie_above_the_clopper_pearson_bounds(chosen):
    points, _ = answer(lambda: auditing.points_from_counts(**chosen))
    if points is None:
        return
    tp, n_in, fp, n_out = (
        np.atleast_1d(np.asarray(chosen[n], float))
        for n in ("true_positives", "num_in", "false_positives", "num_out")
    )
    width = np.broadcast_shapes(*(x.shape for x in (tp, n_in, fp, n_out)))[-1]
    level = (1 - float(chosen["confidence"])) / (2 * width)
    with np.errstate(all="ignore"):
        fnr = np.where(tp == 0, 1.0, stats.beta.isf(level, n_in - tp + 1, tp))
        fpr = np.where(fp == n_out, 1.0, stats.beta.isf(level, fp + 1, n_out - fp))
    assert (points.false_negative_rate >= np.nan_to_num(fnr) * (1 - 1e-9)).all()
    assert (points.false_positive_rate >= np.nan_to_num(fpr) * (1 - 1e-9)).all()
    assert (np.maximum(*points) <= 1).all()


@fuzz(100)
@given(
    ins=st.one_of(st.sampled_from(SCORES), ODD), outs=st.one_of(st.sampled_from(SCORES), ODD),
    rest=arguments({"confidence": CONFIDENCES, "num_thresholds": (1, 5, 24)}), delta=st.one_of(st.just(1e-5), ODD),
)  # fmt: skip
def test_scores_of_any_kind_give_bounds_that_the_counts_allow(ins, outs, rest, delta):
    points, _ = answer(lambda: auditing.points_from_scores(ins, outs, **rest))
    if points is None:
        return
    mu = auditing.gdp_lower_bound(points)
    assert (mu >= 0).all()
    assert np.isfinite(mu).all()
    epsilon, _ = answer(lambda: auditing.epsilon_lower_bound(points, delta))
    if epsilon is not None:
        # No more than log(power / level) can be learnt from n scores; far below it here.
        assert ((epsilon >= 0) & (epsilon < 100)).all()


@fuzz(100)
@given(
    ins=st.one_of(st.sampled_from(SCORES), ODD), outs=st.one_of(st.sampled_from(SCORES), ODD),
    fpr=st.one_of(st.sampled_from([1e-9, 0.01, 0.5, 1 - 1e-12]), ODD), confidence=st.one_of(st.sampled_from(CONFIDENCES), ODD),
)  # fmt: skip
def test_intervals_are_ordered_and_within_0_and_1(ins, outs, fpr, confidence):
    for call in (
        lambda: auditing.auroc(ins, outs, confidence=confidence),
        lambda: auditing.tpr_at_fpr(ins, outs, fpr, confidence=confidence),
    ):
        found, _ = answer(call)
        if found is not None:
            assert 0 <= found.lower <= 1
            assert 0 <= found.upper <= 1
            assert 0 <= found.estimate <= 1
            if confidence >= 0.5:
                assert found.lower <= found.upper
        one, _ = answer(lambda: auditing.auroc(ins, outs, confidence=confidence))
        assert one is None or one.lower <= one.estimate <= one.upper


GAME = {
    "num_canaries": (1, 100, 1000, 10**6), "num_guesses": (0, 1, 100, 1000), "num_correct": (0, 1, 90, 100),
    "confidence": CONFIDENCES,
}  # fmt: skip


@fuzz(60)
@given(chosen=arguments(GAME), delta=st.one_of(st.sampled_from([0.0, 1e-5]), ODD))
def test_one_run_bounds_prove_no_more_than_perfect_guesses_could(chosen, delta):
    counts = [chosen[n] for n in ("num_canaries", "num_guesses", "num_correct")]
    confidence = chosen["confidence"]
    epsilon, _ = answer(
        lambda: auditing.one_run_epsilon(*counts, delta=delta, confidence=confidence)
    )
    mu, _ = answer(lambda: auditing.one_run_gdp(*counts, confidence=confidence))
    if epsilon is not None:
        # All guesses right refute e^eps / (1 + e^eps) <= level^(1/r) at the most.
        r, level = float(chosen["num_guesses"]), 1 - float(confidence)
        best = -np.log(np.expm1(-np.log(level) / r)) if r > 0 and level > 0 else 0.0
        assert 0 <= epsilon <= max(best, 0.0) * (1 + 1e-9) + 1e-9
    if mu is not None:
        assert 0 <= mu <= 64


@fuzz(60)
@given(draws=st.one_of(ODD, st.lists(st.floats(), max_size=5), st.sampled_from(SCORES)))
def test_a_p_value_is_a_probability(draws):
    p, _ = answer(lambda: auditing.normal_p_value(draws))
    assert p is None or 0 <= p <= 1


@fuzz(80)
@given(
    start=st.one_of(st.sampled_from([1.0, 1e-3, 1e3]), ODD), tolerance=st.one_of(st.sampled_from([0.01, 1e-17, 10.0]), ODD)
)  # fmt: skip
def test_the_search_for_a_noise_multiplier_ends(start, tolerance):
    points = auditing.points_from_counts(
        true_positives=900, num_in=1000, false_positives=100, num_out=1000
    )
    bound, _ = answer(
        lambda: auditing.noise_multiplier_bound(
            points, lambda s: accounting.gaussian(min(s, 1e300)), start, tolerance=tolerance
        )
    )
    # The rates prove mu >= 2.3; a bound that is a search's end lies within 1024 times the start.
    assert bound is None or bound >= 0.4 or bound >= float(start) / 2048


@fuzz(100)
@given(mu=ODD, delta=st.one_of(st.sampled_from([0.0, 1e-5, 1e-300]), ODD))
def test_the_epsilon_of_a_shift_is_a_lower_bound(mu, delta):
    epsilon, _ = answer(lambda: auditing.gdp_epsilon(mu, delta))
    if epsilon is not None:
        assert epsilon >= 0
        assert not epsilon > 0 or float(mu) > 0


@fuzz(80)
@given(
    coordinates=st.one_of(st.sampled_from([[0], [0, 5], np.arange(3)]), ODD),
    scale=st.one_of(st.just(1e4), ODD),
)
def test_canaries_are_distinct_coordinates(coordinates, scale):
    made, _ = answer(lambda: auditing.DiracCanaries(coordinates, scale=scale))
    if made is not None:
        params = {"w": jnp.zeros((2, 3))}
        read, _ = answer(lambda: made.read(params))
        assert read is None or read.shape == (made.count,)


@fuzz(60)
@given(
    chosen=arguments({"num_runs": (2, 3), "chunk": (1, 2), "num_thresholds": (1, 3)}), root=st.one_of(st.just(key(0)), ODD)
)  # fmt: skip
def test_runs_are_counted_and_keyed(chosen, root):
    if chosen["num_runs"] == 10**6:
        return  # legal and long
    run = lambda k, member: jnp.ones((1, 1)) * member + jax.random.normal(k, (1, 1))  # noqa: E731
    points, _ = answer(
        lambda: auditing.points_from_runs(run, key=root, statistic=auditing.total, **chosen)
    )
    assert points is None or (np.maximum(*points) <= 1).all()


@fuzz(60)
@given(
    noise=ODD,
    participation=st.one_of(st.sampled_from([0.1, [0.5, 0.5], [1.0]]), ODD),
    unit=st.one_of(st.just(1.0), ODD),
)
def test_a_likelihood_ratio_is_refused_or_finite(noise, participation, unit):
    statistic, _ = answer(lambda: auditing.likelihood_ratio(noise, participation, unit=unit))
    if statistic is not None:
        assert statistic(jnp.zeros((2, 3))).shape == (3,)


@pytest.mark.parametrize("counts", [(2_000_000, 2_000_000, 1_995_000)])
@pytest.mark.slow  # much computing, little compiling
def test_large_games_end(counts):
    epsilon, error = answer(lambda: auditing.one_run_epsilon(*counts, delta=1e-5), seconds=30)
    assert error is None
    assert epsilon > 0
