"""Samplers under odd arguments: refused by name, or draws of the promised shape."""

import itertools

import jax
import numpy as np
import pytest
from fuzz_tools import ODD, answer, arguments, fuzz
from hypothesis import given
from hypothesis import strategies as st

from opake_jax import accounting
from opake_jax.random import key
from opake_jax.sampling import (
    FixedSizeSampler,
    KOutOfTSampler,
    ParallelPoissonSampler,
    PoissonSampler,
    ShuffleSampler,
    UserSampler,
)
from opake_jax.types import NeighboringRelation

SIZES = (1, 2, 100, 2**31)
RATES = (0.0, 1e-9, 0.01, 0.5, 1.0)
FACTORIES = {
    PoissonSampler: {"dataset_size": SIZES, "sample_rate": RATES, "capacity": (None, 1, 64)},
    ParallelPoissonSampler: {
        "dataset_size": SIZES, "sample_rate": RATES, "num_workers": (1, 3), "capacity": (None, 500)
    },
    FixedSizeSampler: {"dataset_size": SIZES, "batch_size": (1, 50, 100)},
    KOutOfTSampler: {
        "dataset_size": SIZES, "k": (1, 2, 5), "t": (1, 5, 100), "epochs_per_draw": (1, 4), "capacity": (None, 100)
    },
    ShuffleSampler: {"dataset_size": SIZES, "batch_size": (1, 33, 100)},
    UserSampler: {
        "user_ids": ([1], [1, 1, 2], np.arange(50) % 7), "sample_rate": RATES, "capacity": (None, 4),
        "records_per_user": (None, 1, 3),
    },
}  # fmt: skip
MECHANISMS = [accounting.gaussian(1.0, relation=relation) for relation in NeighboringRelation]


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda f: f.__name__)
@fuzz(60)
@given(data=st.data())
def test_a_sampler_is_refused_by_name_or_has_an_accounting(factory, data):
    chosen = data.draw(arguments(FACTORIES[factory]))
    sampler, error = answer(lambda: factory(**chosen))
    if error is not None:
        names = [*chosen, "probability", "a batch of about"]
        assert any(name in str(error) for name in names), error
        return
    assert sampler.capacity >= 1
    assert sampler.period >= 1
    shape = jax.eval_shape(lambda: sampler.sample(key(0), 1))
    assert shape[0].shape == shape[1].shape
    assert shape[0].shape[0] >= min(sampler.capacity, sampler.dataset_size)
    assert (shape[0].dtype, shape[1].dtype) == (np.int32, np.bool_)
    processes = [answer(lambda m=m: sampler.process(m))[0] for m in MECHANISMS]
    assert any(process is not None for process in processes)
    again = jax.tree.unflatten(jax.tree.structure(sampler), jax.tree.leaves(sampler))
    assert again.capacity == sampler.capacity


@fuzz(80)
@given(
    step=ODD,
    start=ODD,
    steps=st.one_of(st.integers(0, 3), ODD),
    root=st.one_of(st.just(key(0)), ODD),
)
def test_steps_and_keys_are_checked_before_anything_is_drawn(step, start, steps, root):
    sampler = PoissonSampler(10, 0.5)
    drawn, _ = answer(lambda: sampler.sample(root, step))
    if drawn is not None:
        assert drawn[0].shape == (10,)
    batches, _ = answer(lambda: sampler.batches(root, steps, start=start))
    for indices, mask in itertools.islice(batches or (), 2):
        assert (indices < 10).all()
        assert (indices[~mask] == 0).all()


@fuzz(20)
@given(
    size=st.sampled_from([1, 2, 3, 64, 1000, 2**31]),
    rate=st.sampled_from([0.0, 1e-12, 0.3, 1 - 1e-12, 1.0]),
    capacity=st.sampled_from([1, 8]),
    step=st.sampled_from([0, 1, 2**32 - 1]),
)
def test_a_poisson_draw_lies_in_the_dataset_and_repeats_nothing(size, rate, capacity, step):
    sampler, error = answer(lambda: PoissonSampler(size, rate, capacity=capacity))
    if error is not None:
        assert size * rate > 2**20
        return
    indices, mask = map(np.asarray, sampler.sample(key(1), step))
    drawn = indices[mask]
    assert ((indices >= 0) & (indices < size)).all()
    assert (indices[~mask] == 0).all()
    assert len(set(drawn.tolist())) == len(drawn) <= capacity
    if rate == 1.0:
        assert len(drawn) == min(size, capacity)
    if rate == 0.0:
        assert not mask.any()


# (arguments, what the message names): each product fits no int32 array, or its step numbers no uint32.
TOO_LARGE = [
    (lambda: PoissonSampler(2**31, 1e-9, capacity=2**31), "capacity"),
    (lambda: ParallelPoissonSampler(100, 0.1, 4097), "num_workers"),
    (lambda: FixedSizeSampler(2**31, 2**31), "batch_size"),
    (lambda: ShuffleSampler(2**31, 5), "dataset_size"),
    (lambda: KOutOfTSampler(2**31, 1, 5), "dataset_size"),
    (lambda: KOutOfTSampler(2**20, 4000, 10_000), "dataset_size"),
    (lambda: KOutOfTSampler(100, 1, 2**16, epochs_per_draw=2**16), "epochs_per_draw"),
    (lambda: UserSampler(np.arange(2**16), 1.0, records_per_user=2**16), "records_per_user"),
]


@pytest.mark.parametrize(("make", "name"), TOO_LARGE)
def test_sizes_that_no_array_holds_are_refused(make, name):
    with pytest.raises(ValueError, match=name):
        make()


def test_many_choices_among_many_steps_compile_as_one_loop():
    """k = 1,000 places of t = 10,000 for 50 records: traced at once, and nothing taken twice."""
    sampler = KOutOfTSampler(50, 1000, 10_000)
    (plan, _), _ = answer(lambda: (np.asarray(sampler._plan(np.zeros(2, np.uint32))), None))
    assert plan.shape == (50, 1000)
    assert plan.max() < 10_000
    assert all(len(set(row.tolist())) == 1000 for row in plan)
