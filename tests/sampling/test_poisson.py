"""PoissonSampler: who is chosen, in which shape, and what it says it costs.

Statistical tests have fixed keys; the false-alarm rate stated is that of a correct sampler under a random key.
"""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from opake_jax import accounting
from opake_jax.random import key
from opake_jax.sampling import PoissonSampler
from opake_jax.types import NeighboringRelation

ROOT = key(9)


@functools.partial(jax.jit, static_argnames="count")
def many(sampler, count):
    """Returns the draws of the first `count` steps."""
    return jax.vmap(lambda step: sampler.sample(ROOT, step))(jnp.arange(count, dtype=jnp.uint32))


def draws(sampler, count):
    return map(np.asarray, many(sampler, count))


def subset_codes(indices, mask):
    return np.where(mask, 1 << indices, 0).sum(axis=1)


# -- the law


def subsets_p_value(sampler_rate, assumed_rate):
    """Returns the chi-squared p-value of all 64 subsets of 6 records."""
    count = 100_000
    observed = np.bincount(
        subset_codes(*draws(PoissonSampler(6, sampler_rate), count)), minlength=64
    )
    sizes = np.array([code.bit_count() for code in range(64)])
    expected = count * assumed_rate**sizes * (1 - assumed_rate) ** (6 - sizes)
    return stats.chisquare(observed, expected).pvalue


def test_every_subset_of_six_has_its_probability():
    assert subsets_p_value(0.3, 0.3) > 1e-4  # false-alarm rate
    assert subsets_p_value(0.3, 0.31) < 1e-4  # power: a rate off by 3 %


def test_inclusion_pairs_and_counts():
    # 2,000 records, 4,000 steps. Independent source: the binomial law. False-alarm rate 8e-5 in all.
    size, rate, steps = 2000, 0.02, 4000
    indices, mask = draws(PoissonSampler(size, rate), steps)
    chosen = np.zeros((steps, size), bool)
    np.logical_or.at(
        chosen, (np.repeat(np.arange(steps), mask.shape[1]), indices.ravel()), mask.ravel()
    )
    counts = mask.sum(axis=1)
    assert (chosen.sum(axis=1) == counts).all()  # no index twice
    frequency = chosen.sum(axis=0)
    score = ((frequency - steps * rate) ** 2 / (steps * rate * (1 - rate))).sum()
    assert stats.chi2.sf(score, size) > 1e-5
    assert stats.chi2.cdf(score, size) > 1e-5  # as spread out as independent draws are
    edges = np.unique(stats.binom.ppf(np.linspace(0.05, 0.95, 12), size, rate)).astype(int)
    cells = np.diff(np.concatenate([[0], stats.binom.cdf(edges, size, rate), [1]]))
    observed = np.histogram(counts, np.concatenate([[-1], edges, [size]]) + 0.5)[0]
    assert stats.chisquare(observed, cells * steps).pvalue > 1e-5
    for lag in (1, 2, 3, 64, 1000):
        pairs = int((chosen[:, :-lag] & chosen[:, lag:]).sum())
        mean = steps * (size - lag) * rate**2
        assert abs(pairs - mean) < 4.5 * mean**0.5, lag
    repeats = int((chosen[:-1] & chosen[1:]).sum())  # steps are independent of each other
    assert abs(repeats - steps * size * rate**2) < 4.5 * (steps * size * rate**2) ** 0.5


def test_a_hundred_million_records_in_the_graph():
    sampler = PoissonSampler(10**8, 512 / 10**8, capacity=640)
    indices, mask = draws(sampler, 200)
    counts, chosen = mask.sum(axis=1), indices[mask]
    assert abs(counts.mean() - 512) < 4.5 * np.sqrt(512 / 200)
    assert stats.kstest(chosen / 1e8, "uniform").pvalue > 1e-4
    assert chosen.max() < 10**8
    assert (np.diff(indices, axis=1)[mask[:, 1:]] > 0).all()  # ascending, so distinct


def test_two_to_the_31_records():
    sampler = PoissonSampler(2**31, 100 / 2**31)
    indices, mask = draws(sampler, 100)
    assert abs(mask.sum() - 10_000) < 4.5 * 100
    assert (indices >= 0).all()
    assert stats.kstest(indices[mask] / 2.0**31, "uniform").pvalue > 1e-4


# -- over the cap


def test_over_the_cap_a_uniformly_random_subset_is_kept():
    # The same step without a cap draws the same records: the kept ones are a uniform pair of the four.
    steps = 60_000
    full, full_mask = draws(PoissonSampler(6, 0.5), steps)
    kept, kept_mask = draws(PoissonSampler(6, 0.5, capacity=2), steps)
    over = full_mask.sum(axis=1) == 4
    ranks = (full[over][:, None, :4] < kept[over][:, :, None]).sum(axis=2)
    assert kept_mask[over].all()
    assert all((np.isin(k, f)).all() for k, f in zip(kept[over], full[over, :4], strict=True))
    pairs = [
        ((ranks[:, 0] == a) & (ranks[:, 1] == b)).sum()
        for a, b in itertools.combinations(range(4), 2)
    ]
    assert sum(pairs) == over.sum() > 10_000
    assert stats.chisquare(pairs).pvalue > 1e-4
    under = full_mask.sum(axis=1) <= 2
    assert (subset_codes(full, full_mask)[under] == subset_codes(kept, kept_mask)[under]).all()


def test_a_cap_favours_no_index():  # report R03
    indices, mask = draws(PoissonSampler(100, 0.5, capacity=20), 5000)
    assert mask.all()
    rate = np.bincount(indices.ravel(), minlength=100) / 5000
    assert (np.abs(rate - 0.20) < 0.025).all()
    slope = stats.linregress(np.arange(100), rate)
    assert slope.pvalue > 1e-3  # no trend; keeping the first 20 has p = 0
    first_twenty = np.where(np.arange(100) < 41, 0.49, 0.0)
    assert stats.linregress(np.arange(100), first_twenty).pvalue < 1e-3


# -- shapes, streams, steps


@pytest.mark.parametrize(
    ("sampler", "count"),
    [(PoissonSampler(10, 0.0), 0), (PoissonSampler(10, 1.0), 10), (PoissonSampler(10, 1.0, capacity=4), 4),
     (PoissonSampler(10, 0.0, capacity=3), 0), (PoissonSampler(1, 1.0), 1)],
)  # fmt: skip
def test_rates_zero_and_one(sampler, count):
    for step in range(3):
        indices, mask = sampler.sample(ROOT, step)
        assert mask.sum() == count
        assert (indices[~mask] == 0).all()
        assert len(set(indices[mask].tolist())) == count


def test_padding_has_index_zero_and_mask_false():
    sampler = PoissonSampler(1000, 0.05, capacity=200)
    indices, mask = sampler.sample(ROOT, 0)
    assert indices.shape == mask.shape == (200,)
    assert (indices.dtype, mask.dtype) == (np.int32, np.bool_)
    count = int(mask.sum())
    assert mask[:count].all()
    assert (indices[count:] == 0).all()


def test_the_host_iterator_gives_what_sample_gives_and_resumes_anywhere():
    sampler = PoissonSampler(1000, 0.05, capacity=128)
    whole = list(sampler.batches(ROOT, 10))
    assert len(whole) == 10
    assert len({indices.tobytes() for indices, _ in whole}) == 10
    for step, (indices, mask) in enumerate(whole):
        again = sampler.sample(ROOT, step)
        assert (indices == again[0]).all()
        assert (mask == again[1]).all()
    resumed = list(sampler.batches(ROOT, 4, start=6))
    assert all((a[0] == b[0]).all() for a, b in zip(resumed, whole[6:], strict=True))
    far = sampler.batches(ROOT, 1, start=2**32 - 1)  # O(1): nothing is drawn on the way
    assert next(far)[1].any()


def test_one_compile_serves_all_steps_and_samplers_of_one_shape():  # report R40
    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(sampler, root, number):
        indices, mask = sampler.sample(root, number)
        return jnp.sum(jnp.where(mask, jnp.arange(1000.0)[indices], 0.0))

    for number in range(200):
        # The rate is a number, not a part of the program.
        step(PoissonSampler(1000, 0.05 + 1e-9 * number, capacity=128), ROOT, np.uint32(number))
    _ = step(PoissonSampler(1000, 0.05, capacity=128), key(1), np.uint32(0))


def test_draws_are_the_same_eager_jitted_scanned_and_with_64_bit_types():
    sampler = PoissonSampler(1000, 0.05, capacity=128)
    expected = sampler.sample(ROOT, 2)
    chex.assert_trees_all_equal(expected, jax.jit(lambda s, t: s.sample(ROOT, t))(sampler, 2))
    _, scanned = jax.lax.scan(lambda c, t: (c, sampler.sample(ROOT, t)), 0, jnp.arange(3))
    chex.assert_trees_all_equal(expected, jax.tree.map(lambda x: x[2], scanned))
    with jax.enable_x64(True):
        chex.assert_trees_all_equal(expected, sampler.sample(ROOT, 2))


def test_a_sampler_is_a_value():
    one, same = PoissonSampler(1000, 0.05, capacity=64), PoissonSampler(1000, 0.05, capacity=64)
    assert one == same
    assert hash(one) == hash(same)
    assert one != PoissonSampler(1000, 0.05, capacity=65)
    assert repr(one) == "PoissonSampler(dataset_size=1000, sample_rate=0.05, capacity=64)"
    with pytest.raises(AttributeError):
        one.capacity = 3


# -- what it costs


def test_its_accounting_is_truncated_poisson_with_its_cap():
    mechanism = accounting.gaussian(1.0, relation=NeighboringRelation.ZERO_OUT)
    sampler = PoissonSampler(1000, 0.1, capacity=110)
    # Report R03: 16.67 under ZERO_OUT to 1 %, by dp_accounting.
    assert (sampler.process(mechanism) * 100).epsilon_at(1e-5) == pytest.approx(16.67, rel=0.01)
    uncut = PoissonSampler(1000, 0.1, capacity=1000).process(mechanism) * 100
    assert uncut.epsilon_at(1e-5) == pytest.approx(7.0466, rel=0.01)  # R03, no cap
    buffered = PoissonSampler(1000, 0.1).process(mechanism) * 100
    assert uncut.epsilon_at(1e-5) <= buffered.epsilon_at(1e-5) * (1 + 1e-4) < 7.0466 * 1.001


# -- bad input


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ((0, 0.5), ValueError, "dataset_size"), ((-3, 0.5), ValueError, "dataset_size"),
        ((2**31 + 1, 0.5), ValueError, "dataset_size"), ((10.5, 0.5), ValueError, "dataset_size"),
        ((True, 0.5), TypeError, "dataset_size"), (("10", 0.5), TypeError, "dataset_size"),
        ((10, -0.1), ValueError, "sample_rate"), ((10, 1.1), ValueError, "sample_rate"),
        ((10, float("nan")), ValueError, "sample_rate"), ((10, float("inf")), ValueError, "sample_rate"),
        ((10, True), TypeError, "sample_rate"), ((10, "0.5"), TypeError, "sample_rate"), ((10, None), TypeError, "sample_rate"),
        ((10, 0.5, 0), ValueError, "capacity"), ((10, 0.5, -1), ValueError, "capacity"),
        ((10, 0.5, 2.5), ValueError, "capacity"), ((10, 0.5, True), TypeError, "capacity"),
        ((2**31, 0.5), ValueError, "sample_rate"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(arguments, error, name):
    with pytest.raises(error, match=name):
        PoissonSampler(*arguments)


def test_traced_rates_are_refused():
    with pytest.raises(TypeError, match="sample_rate must be a concrete number"):
        jax.jit(lambda q: PoissonSampler(10, q, capacity=5).sample_rate)(0.5)


@pytest.mark.parametrize("step", [-1, 2**32, 1.5, True, "1", None])
def test_bad_steps_are_refused(step):
    with pytest.raises((ValueError, TypeError), match="step"):
        PoissonSampler(10, 0.5).sample(ROOT, step)


def test_bad_keys_and_ranges_are_refused_before_the_first_batch():
    sampler = PoissonSampler(10, 0.5)
    for call in (
        lambda: sampler.sample(0, 1),
        lambda: sampler.batches(jax.random.key_data(ROOT), 3),
    ):
        with pytest.raises(TypeError, match="typed threefry key"):
            call()
    for arguments in (
        {"num_steps": -1},
        {"num_steps": 2, "start": -1},
        {"num_steps": 1.5},
        {"num_steps": 2, "start": 2**32 - 1},
    ):
        with pytest.raises(ValueError, match=r"num_steps|start"):
            sampler.batches(ROOT, **arguments)
