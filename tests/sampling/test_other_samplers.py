"""Parallel Poisson, fixed size, k out of t, shuffle and users: their laws, one contract, nothing cut.

Statistical tests have fixed keys; the false-alarm rate of each is 1e-4 under a random key.
"""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from opake_jax import accounting
from opake_jax.random import key
from opake_jax.sampling import (
    FixedSizeSampler,
    KOutOfTSampler,
    ParallelPoissonSampler,
    PoissonSampler,
    ShuffleSampler,
    UserSampler,
    _epochs,
)
from opake_jax.types import NeighboringRelation

ROOT = key(9)
USERS = np.array([7, 3, 7, 7, 1, 3, 9, 7, 9, 9, 9, 9])

SAMPLERS = [
    ParallelPoissonSampler(50, 0.1, 3),
    FixedSizeSampler(50, 12),
    FixedSizeSampler(50, 40),
    KOutOfTSampler(50, 2, 7),
    KOutOfTSampler(50, 1, 4, epochs_per_draw=2),
    ShuffleSampler(50, 12),
    UserSampler(USERS, 0.5, records_per_user=3),
]


@functools.partial(jax.jit, static_argnames="count")
def many(sampler, count):
    return jax.vmap(lambda step: sampler.sample(ROOT, step))(jnp.arange(count, dtype=jnp.uint32))


def draws(sampler, count):
    return map(np.asarray, many(sampler, count))


def memberships(sampler, count):
    """Returns how often each record takes part in each step, shape (count, N)."""
    indices, mask = draws(sampler, count)
    out = np.zeros((count, sampler.dataset_size), int)
    np.add.at(out, (np.repeat(np.arange(count), mask.shape[1]), indices.ravel()), mask.ravel())
    return out


# -- one contract


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_contract(sampler):
    whole = list(sampler.batches(ROOT, 9))
    for step in (0, 5):
        indices, mask = sampler.sample(ROOT, step)
        assert (indices.dtype, mask.dtype) == (np.int32, np.bool_)
        assert indices.shape == mask.shape == whole[0][0].shape
        assert (np.asarray(indices)[~np.asarray(mask)] == 0).all()
        assert (indices == whole[step][0]).all()
        assert (mask == whole[step][1]).all()
    assert len({i.tobytes() + m.tobytes() for i, m in whole}) == (9 if sampler.period != 8 else 5)
    for a, b in zip(sampler.batches(ROOT, 3, start=6), whole[6:], strict=True):
        assert (a[0] == b[0]).all()
        assert (a[1] == b[1]).all()
    again = jax.tree.unflatten(jax.tree.structure(sampler), jax.tree.leaves(sampler))
    assert (again.sample(ROOT, 3)[0] == whole[3][0]).all()


def test_kinds_of_samplers_share_no_stream():
    assert len({type(s)._tag for s in SAMPLERS}) == 5


# -- parallel Poisson


def test_workers_draw_from_distinct_streams_and_multiplicity_is_binomial():  # report R04
    # Small enough to count all multiplicities: 4 workers, rate 0.2. Independent source: the binomial law.
    sampler = ParallelPoissonSampler(20, 0.2, 4)
    times = memberships(sampler, 5000)
    observed = np.bincount(times.ravel(), minlength=5)
    expected = stats.binom.pmf(np.arange(5), 4, 0.2) * times.size
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    same = np.bincount(
        4 * memberships(ParallelPoissonSampler(20, 0.2, 1), 5000).ravel(), minlength=5
    )
    assert stats.chisquare(same, expected).pvalue < 1e-4  # power: one stream for all four
    blocks = np.asarray(sampler.sample(ROOT, 0)[0]).reshape(4, sampler.capacity)
    assert len({b.tobytes() for b in blocks}) == 4


def test_a_worker_draws_its_part():
    sampler = ParallelPoissonSampler(50, 0.1, 3)
    indices, mask = sampler.sample(ROOT, 4)
    for worker in range(3):
        rows = slice(worker * sampler.capacity, (worker + 1) * sampler.capacity)
        own, own_mask = jax.jit(lambda w: sampler.sample_worker(ROOT, 4, w))(worker)
        assert (own == indices[rows]).all()
        assert (own_mask == mask[rows]).all()
    with pytest.raises(ValueError, match="worker"):
        sampler.sample_worker(ROOT, 4, 3)


# -- fixed size


@pytest.mark.parametrize(("size", "batch"), [(6, 2), (6, 3), (5, 4)])
def test_every_subset_of_the_size_is_alike(size, batch):
    count = 5_000
    indices, mask = draws(FixedSizeSampler(size, batch), count)
    assert mask.all()
    assert (np.diff(indices, axis=1) > 0).all()
    codes = np.bincount((1 << indices).sum(axis=1), minlength=2**size)
    subsets = [sum(1 << i for i in s) for s in itertools.combinations(range(size), batch)]
    assert codes[subsets].sum() == count
    assert stats.chisquare(codes[subsets]).pvalue > 1e-4


def test_fixed_size_of_a_large_dataset():
    indices, mask = draws(FixedSizeSampler(2**31 - 5, 500), 40)
    assert mask.all()
    assert (np.diff(indices, axis=1) > 0).all()
    assert stats.kstest(indices.ravel() / 2.0**31, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(("size", "batch"), [(1, 1), (7, 7), (8, 4)])
def test_fixed_sizes_at_the_edges(size, batch):
    indices, mask = FixedSizeSampler(size, batch).sample(ROOT, 0)
    assert mask.all()
    assert len(set(indices.tolist())) == batch


# -- k out of t


@pytest.mark.parametrize(("k", "t"), [(1, 3), (2, 4), (3, 3)])
def test_each_record_takes_part_in_k_of_t_steps_all_subsets_alike(k, t):
    size, epochs = 300, 40
    taken = memberships(KOutOfTSampler(size, k, t), epochs * t).reshape(epochs, t, size)
    assert (taken.sum(axis=1) == k).all()  # nothing is cut
    codes = np.bincount((taken << np.arange(t)[:, None]).sum(axis=1).ravel(), minlength=2**t)
    subsets = [sum(1 << i for i in s) for s in itertools.combinations(range(t), k)]
    assert codes[subsets].sum() == size * epochs
    if len(subsets) > 1:
        assert stats.chisquare(codes[subsets]).pvalue > 1e-4
        first, second = taken[:-1].argmax(axis=1).ravel(), taken[1:].argmax(axis=1).ravel()
        table = np.zeros((t, t))
        np.add.at(table, (first, second), 1)
        table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
        assert stats.chi2_contingency(table).pvalue > 1e-4  # redrawn, independently


def test_kept_bins_repeat_and_then_change():
    sampler = KOutOfTSampler(200, 1, 5, epochs_per_draw=3)
    taken = memberships(sampler, 30).reshape(2, 3, 5, 200)
    assert (taken[:, 0] == taken[:, 1]).all()
    assert (taken[:, 0] == taken[:, 2]).all()
    assert (taken[0] != taken[1]).any()


def test_uniform_numbers_below_a_bound():
    # Independent source: Python's integers, floor(bound * u / 2^64).
    rng = np.random.default_rng(0)
    for bound in (1, 3, 1000, 2**31 - 1):
        high, low = rng.integers(0, 2**32, (2, 500)).astype(np.uint32)
        high[:3], low[:3] = 2**32 - 1, (2**32 - 1, 0, 1)
        found = jax.jit(lambda h, l, b=bound: _epochs._uniform_below(h, l, b))(high, low)
        exact = [bound * (int(h) * 2**32 + int(l)) >> 64 for h, l in zip(high, low, strict=True)]
        assert found.tolist() == exact


# -- shuffle


def test_a_shuffled_epoch_has_every_record_once():
    sampler = ShuffleSampler(50, 12)
    assert sampler.period == sampler.steps_per_epoch == 5
    taken = memberships(sampler, 15).reshape(3, 5, 50)
    assert (taken.sum(axis=1) == 1).all()
    assert taken.sum(axis=2).tolist() == [[12, 12, 12, 12, 2]] * 3
    assert (taken[0] != taken[1]).any()
    place = taken.argmax(axis=1)
    assert (np.abs(np.corrcoef(place)[np.triu_indices(3, 1)]) < 4 / math.sqrt(50)).all()


# -- users


def test_a_user_takes_part_with_all_of_its_records():
    sampler = UserSampler(USERS, 0.5)
    assert sampler.dataset_size == 4
    assert sampler.records_per_user == 5
    seen = set()
    for indices, mask in sampler.batches(ROOT, 20):
        assert indices.shape == mask.shape == (sampler.capacity, 5)
        for row, present in zip(indices, mask, strict=True):
            users = set(USERS[row[present]].tolist())
            assert len(users) == present.any()
            for user in users:
                assert sorted(row[present].tolist()) == np.flatnonzero(user == USERS).tolist()
            seen |= users
    assert seen == {1, 3, 7, 9}


def test_users_are_a_poisson_sample_and_large_users_are_cut_at_random():
    indices, mask = draws(UserSampler(USERS, 0.5, records_per_user=3), 4000)
    who = np.where(mask[:, :, 0], USERS[indices[:, :, 0]], 0)
    for user in (1, 3, 7, 9):
        rate = (who == user).any(axis=1).mean()
        assert abs(rate - 0.5) < 4 * math.sqrt(0.25 / 4000)
    nine = (who == 9)[:, :, None] & mask
    kept = np.bincount(indices[nine], minlength=12)[USERS == 9]  # 3 of 5 records, uniformly
    assert mask[who == 9].all()
    assert stats.chisquare(kept).pvalue > 1e-4
    assert (mask[who == 3].sum(axis=1) == 2).all()


# -- accounting


@pytest.mark.parametrize(
    ("sampler", "relation", "expected"),
    [
        (ParallelPoissonSampler(50, 0.01, 4), "ADD_REMOVE", lambda m: accounting.parallel_poisson(m, 0.01, 4)),
        (FixedSizeSampler(50, 12), "REPLACE_ONE", lambda m: accounting.fixed_size(m, batch_size=12, dataset_size=50)),
        (KOutOfTSampler(50, 1, 10), "ADD_REMOVE", lambda m: accounting.k_out_of_t(m, k=1, t=10)),
        (KOutOfTSampler(50, 1, 10, epochs_per_draw=4), "ADD_REMOVE",
         lambda m: accounting.k_out_of_t(accounting.gaussian(0.5), k=1, t=10)),
        (ShuffleSampler(50, 12), "ZERO_OUT", lambda m: m),
        (UserSampler(USERS, 0.5, capacity=3), "ADD_REMOVE",
         lambda m: accounting.poisson(m, 0.5, truncated_batch_size=3, dataset_size=4)),
    ],
    ids=lambda v: repr(v) if not callable(v) else "",
)  # fmt: skip
def test_each_sampler_hands_over_its_own_accounting(sampler, relation, expected):  # report R01
    mechanism = accounting.gaussian(1.0, relation=NeighboringRelation[relation])
    process = sampler.process(mechanism)
    assert process == expected(mechanism)
    assert process.relation is NeighboringRelation[relation]


def test_shuffling_has_no_amplification_and_no_add_remove_statement():  # report R01
    zero_out = accounting.gaussian(1.0, relation=NeighboringRelation.ZERO_OUT)
    # Ten epochs of shuffled batches cost ten whole releases, whatever the batch size.
    run = ShuffleSampler(1000, 100).process(zero_out) * 10
    assert run.epsilon_at(1e-5) == (zero_out * 10).epsilon_at(1e-5)
    with pytest.raises(ValueError, match="ZERO_OUT or REPLACE_ONE"):
        ShuffleSampler(1000, 100).process(accounting.gaussian(1.0))


# -- bad input


@pytest.mark.parametrize(
    ("make", "error", "name"),
    [
        (lambda: ParallelPoissonSampler(50, 0.1, 0), ValueError, "num_workers"),
        (lambda: ParallelPoissonSampler(50, 0.1, 2.5), ValueError, "num_workers"),
        (lambda: ParallelPoissonSampler(50, float("nan"), 2), ValueError, "sample_rate"),
        (lambda: ParallelPoissonSampler(5000, 0.1, 2, capacity=600), ValueError, "capacity must be at least"),
        (lambda: FixedSizeSampler(50, 51), ValueError, "batch_size"),
        (lambda: FixedSizeSampler(50, 0), ValueError, "batch_size"),
        (lambda: FixedSizeSampler(0, 1), ValueError, "dataset_size"),
        (lambda: KOutOfTSampler(50, 5, 4), ValueError, "k must be"),
        (lambda: KOutOfTSampler(50, 0, 4), ValueError, "k must be"),
        (lambda: KOutOfTSampler(50, 1, 0), ValueError, "t must be"),
        (lambda: KOutOfTSampler(50, 1, 4, epochs_per_draw=0), ValueError, "epochs_per_draw"),
        (lambda: KOutOfTSampler(5000, 1, 10, capacity=510), ValueError, "capacity must be at least"),
        (lambda: ShuffleSampler(50, 51), ValueError, "batch_size"),
        (lambda: ShuffleSampler(50, True), TypeError, "batch_size"),
        (lambda: UserSampler([], 0.5), ValueError, "user_ids"),
        (lambda: UserSampler(["a"], 0.5), ValueError, "user_ids"),
        (lambda: UserSampler([[1]], 0.5), ValueError, "user_ids"),
        (lambda: UserSampler([1, 2], 1.5), ValueError, "sample_rate"),
        (lambda: UserSampler([1, 2], 0.5, records_per_user=0), ValueError, "records_per_user"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(make, error, name):
    with pytest.raises(error, match=name):
        make()


@pytest.mark.parametrize(
    "sampler",
    [
        PoissonSampler(200, 0.5, 150),
        ParallelPoissonSampler(200, 0.1, 2),
        FixedSizeSampler(200, 10),
    ],
)
@pytest.mark.parametrize(
    "change", [lambda x: x * 0.1, lambda x: x * 0.1 if isinstance(x, float) else x]
)
def test_a_sampler_whose_leaves_were_mapped_is_not_accounted_for(sampler, change):
    """Its draws and its sample rate would disagree."""
    changed = jax.tree.map(change, sampler)
    if not jax.tree.leaves(sampler):
        assert changed == sampler
        return
    with pytest.raises(ValueError, match="changed after it was made"):
        changed.process(accounting.gaussian(1.0))


def test_a_field_of_a_sampler_is_replaced_by_making_another():
    sampler = dataclasses.replace(PoissonSampler(200, 0.5, 150), sample_rate=0.1)
    assert sampler == PoissonSampler(200, 0.1, 150)
    sampler.process(accounting.gaussian(1.0))
