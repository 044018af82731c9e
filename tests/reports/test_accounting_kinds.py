"""The kinds of fault that the accounting reports stand for, beyond their inputs; see also tests/fuzzing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opake_jax.accounting as acc
from opake_jax.types import NeighboringRelation as Relation


def few(examples):
    return settings(max_examples=examples, derandomize=True, database=None, deadline=None)


ORDERS = [1.0001, 1.01, 1.5, 2.0, 3.0, 4.5, 8.0, 16.0, 33.3, 64.0, 256.0]


@few(30)
@given(
    orders=st.lists(st.sampled_from(ORDERS), min_size=1, max_size=6, unique=True),
    extra=st.lists(st.sampled_from(ORDERS), max_size=3),
    log_sigma=st.floats(-1, 2), log_q=st.floats(-5, 0), log_steps=st.floats(0, 5), log_delta=st.floats(-12, -1),
)  # fmt: skip
def test_any_orders_bound_and_more_never_raise(
    orders, extra, log_sigma, log_q, log_steps, log_delta
):
    """R28: adding orders never raises epsilon, and no set of orders goes below the certified lower bound."""
    step = acc.poisson(acc.gaussian(10**log_sigma), 10**log_q)
    process, delta = step * round(10**log_steps), 10**log_delta
    few_, many = (
        process.epsilon_at(delta, accountant=acc.RDP(orders=o)) for o in (orders, [*orders, *extra])
    )
    assert many <= few_
    assert many >= process.epsilon_bounds(delta)[0] * (1 - 1e-9)


MECHANISMS = {
    "gaussian": lambda r, s: acc.gaussian(s, relation=r),
    "laplace": lambda r, s: acc.laplace(s, relation=r),
    "poisson": lambda r, s: acc.poisson(acc.gaussian(s, relation=r), 0.1),
    "parallel": lambda r, s: acc.parallel_poisson(acc.gaussian(s, relation=r), 0.05, 3),
    "adaclip": lambda r, s: acc.adaclip(s, 5 * s, relation=r),
}


@pytest.mark.parametrize("name", MECHANISMS)
@few(8)
@given(log_sigma=st.floats(-0.5, 1.5), steps=st.integers(1, 50))
def test_replacing_costs_more_than_leaving_under_both_accountants(name, log_sigma, steps):
    """R34: at every noise, by PLD and by RDP, and RDP is above PLD under each relation."""
    sigma = 10**log_sigma
    rates = {}
    for relation in (Relation.ADD_REMOVE, Relation.ZERO_OUT, Relation.REPLACE_ONE):
        process = MECHANISMS[name](relation, sigma) * steps
        assert process.relation is relation
        lower, upper, _ = process.epsilon_bounds(1e-5)
        try:
            renyi = process.epsilon_at(1e-5, accountant=acc.RDP())
        except NotImplementedError:
            renyi = np.inf
        assert renyi >= lower * (1 - 1e-9)
        rates[relation] = lower, upper, renyi
    add, replace = rates[Relation.ADD_REMOVE], rates[Relation.REPLACE_ONE]
    assert replace[1] >= add[0]
    assert replace[2] >= add[0]
    if name in ("gaussian", "adaclip") and replace[0] > 0:
        # The distance doubles: as half of the noise would do.
        half = (MECHANISMS[name](Relation.ADD_REMOVE, sigma / 2) * steps).epsilon_bounds(1e-5)
        assert half[0] <= replace[1]
        assert replace[0] <= half[1]
        assert replace[0] > add[1]


@few(15)
@given(
    settings_=st.lists(
        st.tuples(st.floats(0.7, 4), st.sampled_from([0.005, 0.01, 0.05]), st.integers(0, 60)), min_size=2, max_size=3
    ),
    order=st.randoms(use_true_random=False),
)  # fmt: skip
def test_phases_in_any_order_and_cut_anywhere_cost_the_same(settings_, order):
    """R39: and no phase makes the whole cheaper than any part."""
    phases = [acc.poisson(acc.gaussian(s), q) * n for s, q, n in settings_]
    whole = acc.compose(*phases).epsilon_bounds(1e-5)
    shuffled = list(settings_)
    order.shuffle(shuffled)
    pieces = []
    for s, q, n in shuffled:
        cut = order.randint(0, n)
        pieces += [
            acc.poisson(acc.gaussian(s), q) * cut,
            acc.poisson(acc.gaussian(s), q) * (n - cut),
        ]
    again = acc.compose(*pieces).epsilon_bounds(1e-5)
    assert whole[0] <= again[1] * (1 + 1e-12)
    assert again[0] <= whole[1] * (1 + 1e-12)
    assert all(phase.epsilon_bounds(1e-5)[0] <= whole[1] for phase in phases)
