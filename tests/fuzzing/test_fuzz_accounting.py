"""Accounting under odd arguments and extreme numbers: refused by name, or an answer on the private side."""

import decimal

import numpy as np
import pytest
from fuzz_tools import NO_NUMBERS, ODD, answer, arguments, fuzz
from hypothesis import assume, given
from hypothesis import strategies as st

import opake_jax.accounting as acc
from opake_jax.types import NeighboringRelation as Relation

GAUSSIAN = acc.gaussian(1.0)
REPLACE = acc.gaussian(1.0, relation=Relation.REPLACE_ONE)
RELATIONS = (Relation.ADD_REMOVE, Relation.ZERO_OUT, Relation.REPLACE_ONE, None)
INNER = (GAUSSIAN, REPLACE, acc.gaussian(0.0), acc.gaussian(30.0))
FACTORIES = {
    acc.gaussian: {"noise_multiplier": (0.0, 0.5, 1.0, 1e6), "relation": RELATIONS[:3]},
    acc.laplace: {"noise_multiplier": (0.0, 0.5, 1.0, 1e6), "relation": RELATIONS[:3]},
    acc.eps_delta: {"epsilon": (0.0, 1.0, 50.0), "delta": (0.0, 1e-6, 1.0)},
    acc.poisson: {
        "inner": INNER, "sample_rate": (0.0, 1e-6, 0.1, 1.0), "truncated_batch_size": (None, 5), "dataset_size": (None, 100),
        "relation": RELATIONS,
    },
    acc.parallel_poisson: {"inner": INNER, "sample_rate": (0.0, 0.01, 1.0), "num_workers": (1, 4), "relation": RELATIONS},
    acc.fixed_size: {"inner": INNER, "batch_size": (1, 10), "dataset_size": (10, 1000)},
    acc.k_out_of_t: {"inner": INNER, "k": (1, 2), "t": (2, 10), "relation": RELATIONS},
    acc.one_out_of_t: {"inner": INNER, "t": (1, 10), "relation": RELATIONS},
    acc.shuffled: {"inner": INNER},
    acc.adaclip: {"gradient_noise_multiplier": (1.0, 2.0), "count_noise_std": (5.0, 0.6), "relation": RELATIONS[:3]},
    acc.gradient_noise_multiplier: {"noise_multiplier": (1.0, 2.0), "count_noise_std": (5.0, 1.6)},
    acc.mixture_of_gaussians: {
        "noise_multiplier": (1.0,), "sensitivities": ([1.0], [1.0, 2.0]), "probabilities": ([0.1], [0.1, 0.01]),
        "relation": RELATIONS[:2],
    },
    acc.epsilon_budget: {"epsilon": (1.0, 100.0), "delta": (0.0, 1e-5)},
    acc.delta_budget: {"delta": (1e-5,), "epsilon": (0.0, 1.0)},
    acc.advantage_budget: {"advantage": (0.1,)},
    acc.beta_budget: {"beta": (0.5,), "alpha": (0.1,)},
    acc.risk_budget: {"risk": (0.1,), "prior": (0.4,)},
    acc.RDP: {"orders": ([2.0, 8.0], 3.0)},
}  # fmt: skip


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda f: f.__name__)
@fuzz(40)
@given(data=st.data())
def test_a_factory_refuses_by_name_or_its_process_answers(factory, data):
    chosen = data.draw(arguments(FACTORIES[factory]))
    examine(factory, chosen)


def examine(factory, chosen):
    """Makes the process, and asks it everything if it is small enough; large ones are left out for their time."""
    assume(not any(isinstance(v, int) and abs(v) > 2**64 for v in chosen.values()))
    assume(
        all(
            isinstance(chosen.get(n, []), (list, tuple)) for n in ("sensitivities", "probabilities")
        )
    )
    made, _ = answer(lambda: factory(**chosen))
    if not isinstance(made, acc.Process) or any(
        chosen.get(n, 0) > 12 for n in ("t", "num_workers")
    ):
        return
    if factory in (acc.k_out_of_t, acc.one_out_of_t) and chosen["inner"].noise_multiplier < 0.5:
        return
    check(made, 1e-5)


# What fuzzing once found: an answer or an error of ours is wanted.
FOUND = {
    "counts beyond float64": lambda: acc.poisson(
        GAUSSIAN, 0.01, truncated_batch_size=10**400, dataset_size=9
    ),
    "one batch of two, little noise": lambda: acc.one_out_of_t(acc.gaussian(0.01), t=2).epsilon_at(
        1e-5
    ),
    "no sequence": lambda: acc.mixture_of_gaussians(1.0, 3, [0.1]),
    "no counts": lambda: acc.epsilon_trajectory(GAUSSIAN, [[], 3], 1e-5),
    "almost no noise": lambda: (
        acc.poisson(acc.gaussian(0.01652282323330086), 0.2954705990222025) * 2
    ).advantage(),
    "epsilon beyond squares": lambda: 0 / (acc.gaussian(1.0).delta_bounds(1e308)[0] == 0),
    "count without noise": lambda: 0 / (acc.adaclip(1.7e308, 0.0).epsilon_bounds(1e-5)[0] >= 0),
    "repeated beyond float64": lambda: GAUSSIAN * 10**400,
    "twice beyond float64": lambda: (GAUSSIAN * 1.7e308 | GAUSSIAN * 1.7e308).epsilon_at(1e-5),
    "a decimal": lambda: acc.classical.advanced_composition(
        decimal.Decimal("0.5"), 0.0, 1, slack=0.1
    ),
    "an error beyond float64": lambda: acc.classical.expected_squared_error(10, 2e248),
    "no dimension": lambda: acc.classical.expected_squared_error(10**400, 0.0),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name):
    answer(FOUND[name])


def test_a_ledger_takes_no_budget_that_is_none():
    assert answer(lambda: acc.Accountant(0))[1] is not None


ALPHAS = np.array([0.0, 1e-9, 0.01, 0.5, 0.99, 1.0])


def check(process, delta):
    """Every question has an answer within 5 s, every bracket is ordered, and no two brackets contradict."""
    lower, upper, tight = ask(lambda: process.epsilon_bounds(delta))
    assert 0 <= lower <= upper
    assert tight in (True, False)
    for epsilon, side in ((lower, "lower"), (upper, "upper")):
        if epsilon < 1e100:
            low, high, _ = ask(lambda e=epsilon: process.delta_bounds(e))
            assert 0 <= low <= high <= 1
            # Below the lower end delta is not met, at the upper end it is.
            assert low <= delta * (1 + 1e-9) or side == "lower"
            assert high >= delta * (1 - 1e-6) or side == "upper" or lower == 0
    advantage = ask(process.advantage)
    below, above, _ = ask(lambda: process.beta_bounds(ALPHAS))
    assert (below >= 0).all()
    assert (below <= above).all()
    assert (above <= 1 - ALPHAS + 1e-6).all()  # rounded outward in float32
    assert (below[1:] <= above[:-1]).all()  # a trade-off curve falls
    assert (1 - above - ALPHAS <= advantage + 1e-6).all()  # TPR - FPR of any attack
    assert 0 <= ask(lambda: process.risk_at(0.5)) <= 0.5
    renyi, error = answer(lambda: rdp_epsilon(process, delta))
    if error is None and renyi is not None:
        assert renyi >= lower * (1 - 1e-9)


def ask(call):
    value, error = answer(call)
    assert error is None, error
    return value


def rdp_epsilon(process, delta):
    try:
        return process.epsilon_at(delta, accountant=acc.RDP())
    except NotImplementedError:
        return None


LOG = {"sigma": (-1.0, 6.0), "q": (-9.0, 0.0), "count": (0.0, 7.0), "delta": (-30.0, -0.5)}


@st.composite
def settings_of_dp_sgd(draw):
    """Noise multiplier, rate, count and delta, evenly in their logarithms, with the ends now and then."""
    numbers = {name: 10.0 ** draw(st.floats(*ends)) for name, ends in LOG.items()}
    numbers["count"] = round(numbers["count"])
    numbers["q"] = draw(st.sampled_from([min(numbers["q"], 1.0)] * 4 + [1.0, 1 - 2**-40, 0.5]))
    return numbers


def poisson(n):
    return acc.poisson(acc.gaussian(n["sigma"]), n["q"]) * n["count"]


@fuzz(25)
@given(n=settings_of_dp_sgd())
def test_answers_about_extreme_settings_agree(n):
    check(poisson(n), n["delta"])


@fuzz(40)
@given(
    n=settings_of_dp_sgd(),
    more=st.sampled_from(["sigma", "q", "count", "delta"]),
    factor=st.floats(1.001, 30),
)
def test_epsilon_is_monotone(n, more, factor):
    """More noise or delta: no more; more steps or a higher rate: no less. Lower ends against upper ends."""
    other = dict(n, **{more: n[more] * factor})
    other["count"], other["q"] = round(other["count"]), min(other["q"], 1.0)
    assume(other["delta"] < 1)
    one, two = (ask(lambda m=m: poisson(m).epsilon_bounds(m["delta"])) for m in (n, other))
    if more in ("sigma", "delta"):
        one, two = two, one
    assert one[0] <= two[1] * (1 + 1e-12)


@pytest.mark.slow
@fuzz(15)
@given(
    n=settings_of_dp_sgd(), cap=st.integers(1, 200), size=st.integers(1, 200), workers=st.integers(1, 5), k=st.integers(1, 4),
    relation=st.sampled_from(RELATIONS[:3]),
)  # fmt: skip
def test_every_kind_of_sampling_answers_in_order(n, cap, size, workers, k, relation):
    inner = acc.gaussian(n["sigma"], relation=relation)
    steps = min(n["count"], 1000)
    plain = acc.poisson(inner, n["q"])
    delta = n["delta"]
    kinds = [(acc.parallel_poisson(inner, n["q"], workers), plain)]
    if relation is not Relation.REPLACE_ONE:
        capped = acc.poisson(inner, n["q"], truncated_batch_size=cap, dataset_size=size)
        kinds.append((capped, capped))
        kinds.append((inner, acc.k_out_of_t(inner, k=1, t=k + 1)))
    if relation is Relation.REPLACE_ONE:
        kinds.append((inner, acc.fixed_size(inner, batch_size=min(cap, size), dataset_size=size)))
    kinds.append((inner, plain))
    for worse, better in kinds:
        _, upper, _ = ask(lambda p=worse: (p * steps).epsilon_bounds(delta))
        lower, above, _ = ask(lambda p=better: (p * steps).epsilon_bounds(delta))
        assert lower <= upper * (1 + 1e-12)
        assert lower <= above


@fuzz(60)
@given(
    value=ODD,
    which=st.sampled_from(
        ["epsilon", "delta", "beta", "risk", "gdp", "count", "group", "trajectory", "orders"]
    ),
)
def test_odd_questions_are_refused_by_name_or_answered_in_range(value, which):
    process = acc.poisson(GAUSSIAN, 0.01) * 100
    questions = {
        "epsilon": lambda: process.epsilon_at(value), "delta": lambda: process.delta_at(value),
        "beta": lambda: process.beta_at(value), "risk": lambda: process.risk_at(value), "gdp": lambda: process.gdp(value).mu,
        "count": lambda: (process * value).epsilon_at(1e-5),
        "group": lambda: process.epsilon_at(1e-5, group_size=value if not isinstance(value, (int, float)) or value < 9 else 9),
        "trajectory": lambda: acc.epsilon_trajectory(acc.poisson(GAUSSIAN, 0.01), [3, value if np.ndim(value) == 0 else 1], 1e-5),
        "orders": lambda: acc.rdp.poisson_gaussian(1.0, 0.01, value),
    }  # fmt: skip
    # A summary asks 65 questions.
    found, _ = answer(questions[which], seconds=30 if which == "gdp" else 5)
    if found is not None:
        found = np.asarray(found)
        assert (found >= 0).all()
        if which in ("delta", "beta", "risk"):
            assert (found <= 1).all()


BUDGETS = (
    acc.epsilon_budget(1.0, 1e-5), acc.epsilon_budget(1e-3, 1e-9), acc.epsilon_budget(90.0, 1e-5), acc.delta_budget(1e-5, 1.0),
    acc.advantage_budget(0.1), acc.beta_budget(0.8, 0.1), acc.risk_budget(0.4, 0.5),
)  # fmt: skip


@fuzz(40)
@given(
    budget=st.one_of(st.sampled_from(BUDGETS), st.sampled_from(BUDGETS), ODD), low=st.one_of(st.just(0.1), ODD), high=st.one_of(st.just(20.0), ODD),
    tolerance=st.one_of(st.just(1e-4), ODD), q=st.sampled_from([1.0, 0.01]), steps=st.sampled_from([1, 100]),
)  # fmt: skip
def test_what_is_calibrated_keeps_the_budget(budget, low, high, tolerance, q, steps):
    make = lambda sigma: acc.poisson(acc.gaussian(sigma), q) * steps  # noqa: E731
    found, _ = answer(lambda: acc.calibrate(budget, make, low, high, tolerance=tolerance))
    if found is None:
        return
    process = make(found.param)
    kept = {
        "EpsilonBudget": lambda: process.epsilon_at(budget.delta) <= budget.epsilon,
        "DeltaBudget": lambda: process.delta_at(budget.epsilon) <= budget.delta,
        "AdvantageBudget": lambda: process.advantage() <= budget.advantage,
        "BetaBudget": lambda: process.beta_at(budget.alpha) >= budget.beta,
        "RiskBudget": lambda: process.risk_at(budget.prior) >= budget.risk,
    }
    assert kept[type(budget).__name__]()


@fuzz(15)
@given(
    counts=st.lists(st.one_of(st.integers(0, 500), st.sampled_from([-1, 0.5, 1e6, np.int8(3), True])), max_size=4), delta=st.one_of(st.just(1e-5), ODD)
)  # fmt: skip
def test_a_ledger_only_grows(counts, delta):
    assume(
        not any(isinstance(c, int) and abs(c) > 2**64 for c in counts)
    )  # refused at once, see FOUND
    ledger, spent = acc.Accountant(), 0.0
    for count in counts:
        longer, _ = answer(lambda c=count, book=ledger: book | acc.poisson(GAUSSIAN, 0.01) * c)
        if longer is None:
            continue
        ledger = longer
        epsilon, _ = answer(lambda book=ledger: book.epsilon_at(1e-5))
        assert epsilon >= spent * (1 - 2e-4)
        spent = epsilon
    answer(lambda: ledger.epsilon_at(delta))
    assert acc.Accountant.from_json(ledger.to_json()).epsilon_at(1e-5) == ledger.epsilon_at(1e-5)


CLASSICAL = {
    "classical_sigma": {"epsilon": (0.5, 1.0), "delta": (1e-5,), "sensitivity": (1.0,)},
    "basic_composition": {"epsilon": (0.1,), "delta": (0.0, 1e-6), "count": (0, 100)},
    "advanced_composition": {
        "epsilon": (0.1,),
        "delta": (0.0, 1e-6),
        "count": (0, 100),
        "slack": (1e-5,),
    },
    "mean_sensitivity": {"bound": (1.0,), "size": (10,)},
    "sum_sensitivity": {"bound": (1.0,)},
    "expected_squared_error": {"dimension": (10,), "sigma": (0.0, 1.0)},
}


@pytest.mark.parametrize("name", CLASSICAL)
@fuzz(60)
@given(data=st.data())
def test_classical_formulas_refuse_or_answer_without_nan(name, data):
    rare = st.one_of(
        st.floats(max_value=1e100), st.sampled_from(NO_NUMBERS)
    )  # refused at once, see FOUND
    chosen = data.draw(arguments(CLASSICAL[name], rare))
    found, _ = answer(lambda: getattr(acc.classical, name)(**chosen))
    if found is not None:
        assert (np.asarray(found, float) >= 0).all()
