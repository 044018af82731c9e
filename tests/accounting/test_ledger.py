"""The ledger: immutable, answers like a process, and survives being written down."""

import json
import math

import jax
import pytest

import opake_jax.accounting as acc
from opake_jax.accounting import Accountant, NeighboringRelation, gaussian, poisson

STEP = poisson(gaussian(1.1), 0.013)
EVERYTHING = [
    gaussian(0.1) * 3,
    STEP * 1000,
    poisson(acc.adaclip(1.05, 5.0), 0.1, truncated_batch_size=30, dataset_size=100) * 2**40,
    acc.parallel_poisson(gaussian(2.0), 0.25, 3),
    acc.mixture_of_gaussians(2.0, [1.0, 2.5], [0.1, 0.2]),
    acc.eps_delta(0.1, 1e-9) * 2,
    acc.laplace(3.0),
    acc.k_out_of_t(gaussian(2.0), k=2, t=9) * 4,
    acc.nonprivate(),
]
REPLACED = [
    acc.fixed_size(gaussian(1.5), batch_size=10, dataset_size=1000) * 7,
    acc.shuffled(gaussian(2.0, relation=NeighboringRelation.REPLACE_ONE)),
]


def test_a_ledger_is_immutable_and_answers_like_a_process():
    empty = Accountant(acc.epsilon_budget(2.0, 1e-5))
    first = empty | gaussian(4.0)
    second = first | gaussian(4.0) * 15
    assert empty.process.parts == ()
    assert empty.spent == 0.0
    assert first.epsilon_at(1e-5) == gaussian(4.0).epsilon_at(1e-5)
    assert second.process.parts == ((gaussian(4.0), 16.0),)
    assert [first.budget_exceeded, second.budget_exceeded] == [False, True]
    assert second.relation is NeighboringRelation.ADD_REMOVE
    assert not Accountant().budget_exceeded
    with pytest.raises(AttributeError):
        first.process = second.process
    with pytest.raises(ValueError, match="no budget"):
        _ = (Accountant() | gaussian(1.0)).spent
    with pytest.raises(TypeError):
        first | 3
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        first | gaussian(1.0, relation=NeighboringRelation.REPLACE_ONE)


@pytest.mark.parametrize("processes", [EVERYTHING, REPLACED])
def test_json_both_ways(processes):
    ledger = Accountant(acc.delta_budget(1e-6, 2.0))
    for process in processes:
        ledger = ledger | process
    text = ledger.to_json()
    again = Accountant.from_json(text)
    assert again == ledger
    assert again.to_json() == text


@pytest.mark.parametrize(
    "budget",
    [
        None,
        acc.epsilon_budget(1.0, 0.0),
        acc.advantage_budget(0.1),
        acc.beta_budget(0.1, 0.2),
        acc.risk_budget(0.1, 0.2),
    ],
)
def test_budgets_are_written_down(budget):
    assert Accountant.from_json(Accountant(budget).to_json()).budget == budget


def changed(path, value):
    """Returns the JSON of a small ledger with one entry replaced."""
    tree = json.loads((Accountant(acc.epsilon_budget(1.0, 1e-5)) | STEP).to_json())
    node = tree
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return json.dumps(tree)


MECHANISM = ["process", 0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"format": "opake_jax.accounting/1"}',
        changed(["format"], "other/1"),
        changed(MECHANISM, {"unheard_of": {}}),
        changed(MECHANISM, {"Poisson": {}}),
        changed(MECHANISM, {"poisson": {"sample_rate": 0.1}}),
        changed(MECHANISM, {"poisson": {}, "gaussian": {}}),
        changed([*MECHANISM, "poisson", "sample_rate"], 1.5),
        changed([*MECHANISM, "poisson", "sample_rate"], math.nan),
        changed([*MECHANISM, "poisson", "extra"], 1.0),
        changed([*MECHANISM, "poisson", "relation"], "neighbours"),
        changed([*MECHANISM, "poisson", "inner"], {"laplace": {"noise_multiplier": 1.0}}),
        changed(["process", 0, 0], -1),
        changed(["process", 0], 7),
        changed(["budget"], {"no_budget": {}}),
        changed(["budget"], {"epsilon_budget": {"epsilon": -1, "delta": 1e-5}}),
        '{"format": 1, "format": 2}',
    ],
)
def test_what_is_not_understood_is_an_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 - each says something else
        Accountant.from_json(text)


def test_a_traced_process_cannot_be_written_down():
    def write(sigma):
        return (Accountant() | gaussian(sigma)).to_json()

    with pytest.raises(TypeError, match="concrete"):
        jax.jit(write)(1.0)


def test_a_traced_ledger_says_that_a_program_cannot_branch_on_it():
    def within(noise_multiplier):
        ledger = acc.Accountant(acc.epsilon_budget(3.0, delta=1e-5))
        return (ledger | acc.gaussian(noise_multiplier)).budget_exceeded

    assert within(0.5)
    with pytest.raises(TypeError, match="compare spent"):
        jax.jit(within)(0.5)
