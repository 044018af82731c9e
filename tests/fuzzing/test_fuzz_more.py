"""More examples of what the other files draw a few of: about a minute in all."""

import pytest
from fuzz_tools import arguments, fuzz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_fuzz_accounting import FACTORIES, check, poisson, settings_of_dp_sgd
from test_fuzz_accounting import examine as examine_process
from test_fuzz_cli import command_lines, judge
from test_fuzz_plan import examine

import opake_jax.accounting as acc

pytestmark = pytest.mark.slow


@fuzz(25)
@given(n=settings_of_dp_sgd())
def test_many_extreme_settings(n):
    check(poisson(n), n["delta"])


@fuzz(150)
@given(data=st.data())
def test_many_plans(data):
    examine(data)


@settings(
    fuzz(250), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(argv=command_lines())
def test_many_commands(argv, capsys):
    judge(argv, capsys)


@fuzz(120)
@given(
    data=st.data(),
    factory=st.sampled_from(
        [acc.gaussian, acc.laplace, acc.eps_delta, acc.poisson, acc.fixed_size, acc.adaclip]
    ),
)
def test_many_processes(data, factory):
    examine_process(factory, data.draw(arguments(FACTORIES[factory])))
