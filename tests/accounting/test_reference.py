"""Every tabulated value (tests/reference/README.md says where they come from)."""

import functools
import json
import math
import pathlib

import numpy as np
import pytest
from one_direction import one_direction

import opake_jax.accounting as acc
import opake_jax.dpsgd.accounting as dpsgd
from opake_jax.types import NeighboringRelation

TABLE = pathlib.Path(__file__).parent.parent / "reference" / "accounting_reference.json"
ROWS = json.loads(TABLE.read_text())[1:]
RENYI = [row for row in ROWS if row["query"]["type"] == "rdp"]
OTHERS = [row for row in ROWS if row["query"]["type"] != "rdp"]

# Bracket the truth to 1e-4; absolute floor of epsilon and advantage 1e-9 (accounting.md).
SLACK, FLOOR = 1e-4, 1e-9
# The tables' own brackets are certified up to float64 rounding.
ROUNDING = 1e-9


def poisson(p):
    return dpsgd.poisson(dpsgd.gaussian(p["sigma"]), p["q"])


def parallel_poisson(p):
    return dpsgd.parallel_poisson(
        dpsgd.gaussian(p["sigma"]), sample_rate=p["q"], num_workers=p["W"]
    )


def truncated_poisson(p):
    return dpsgd.poisson(
        dpsgd.gaussian(p["sigma"]),
        p["q"],
        truncated_batch_size=p["truncated_batch_size"],
        dataset_size=p["dataset_size"],
        relation=NeighboringRelation.ZERO_OUT,
    )


def fixed_size(p):
    assert p["adjacency"] == "replace_one"
    return dpsgd.fixed_size(
        dpsgd.gaussian(p["sigma"]), batch_size=p["sample_size"], dataset_size=p["dataset_size"]
    )


STEPS = {
    "gaussian": lambda p: dpsgd.gaussian(p["sigma"]),
    "laplace": lambda p: acc.laplace(p["b"]),
    "poisson_gaussian": poisson,
    "parallel_poisson": parallel_poisson,
    "truncated_poisson_dpacc_formula": truncated_poisson,
    "fixed_size_wor": fixed_size,
}


def process(row):
    params = row["params"]
    if row["kind"] == "heterogeneous_poisson_gaussian":
        return acc.compose(*(poisson(phase) * phase["T"] for phase in params["phases"]))
    step = STEPS[row["kind"]](params)
    if "direction" in params:
        step = one_direction(step, params["direction"])
    return step * params["T"]


def bounds(row):
    query = row["query"]
    match query["type"]:
        case "epsilon":
            return process(row).epsilon_bounds(query["delta"])
        case "delta":
            return process(row).delta_bounds(query["epsilon"])
        case "advantage":
            return process(row).delta_bounds(0.0)
        case "beta":
            return process(row).beta_bounds(query["alpha"])
        case "risk":
            return process(row).risk_at(query["prior"]), math.inf, True


@pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in OTHERS])
def test_the_answer_is_on_the_private_side_and_tight(row):
    lower, upper, _ = bounds(row)
    kind, low, high = row["query"]["type"], row["low"], row["high"]
    # A delta that is positive for the mechanism, and 0 in one direction, is at least the smallest number.
    floor = FLOOR if kind in ("epsilon", "advantage") else math.ulp(0.0)
    if kind in ("beta", "risk"):
        assert lower <= high * (1 + ROUNDING)
        assert lower >= low * (1 - SLACK)
    else:
        assert upper >= low
        assert upper <= high * (1 + SLACK) + floor
    # The other end is a bound as well, or the width of the bracket means nothing.
    assert lower <= high * (1 + ROUNDING)
    assert upper >= low * (1 - ROUNDING)
    assert lower <= upper


def test_the_answer_is_what_the_query_gives():
    row = next(row for row in OTHERS if row["id"] == "poisson_gaussian_1")
    made = process(row)
    assert made.epsilon_at(1e-5) == made.epsilon_bounds(1e-5)[1]
    assert made.delta_at(3.0) == made.delta_bounds(3.0)[1]
    assert made.advantage() == made.delta_bounds(0.0)[1]
    assert made.beta_at(0.1) == made.beta_bounds(0.1)[0]


ORDERS = sorted({row["params"]["order"] for row in RENYI})


@functools.cache
def renyi(sigma, q):
    # Always the same orders: one shape, one compilation.
    values = acc.rdp.poisson_gaussian(sigma, q, np.array(ORDERS))
    return dict(zip(ORDERS, np.asarray(values, np.float64), strict=True))


@pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in RENYI])
def test_renyi_divergences(row):
    params = row["params"]
    value = renyi(params["sigma"], params["q"])[params["order"]]
    assert row["low"] * (1 - 1e-8) <= value <= row["high"] * (1 + 1e-8)
