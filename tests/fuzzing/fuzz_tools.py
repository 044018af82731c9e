"""What the fuzz tests share: odd values, and the promises that every public call keeps.

A call gives an answer or raises ValueError or TypeError with our own message, and it does not hang. Every
run draws the same examples (`derandomize`), so that a failure can be seen again.
"""

import contextlib
import decimal
import fractions
import math
import pathlib
import signal
import traceback

import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import opake_jax

PACKAGE = pathlib.Path(opake_jax.__file__).parent
# User seconds of this process, so that a busy machine is not taken for a hang.
LIMIT = 5.0


def fuzz(examples):
    """Returns the settings of a fuzz test."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


NO_NUMBERS = (
    *(True, False, None, "1", "", b"1", 1j, [], [1.0], (2,), {}, object(), len),
    *(
        np.bool_(True),
        np.ones(2),
        np.zeros(0),
        np.array("x"),
        np.complex64(1),
        np.datetime64("NaT", "s"),
    ),
    *(jnp.ones(1), jnp.array(True)),
)
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 0.0, -0.0, 0.5, 1e-3, 1.5, 2.0, 1 + 2**-40, 1 - 2**-53),
    *(5e-324, 1e-320, 1e-45, 1e-30, 1e30, 3.4e38, 1e300, 1.7e308, math.inf, -math.inf, math.nan),
    *(2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, 10**400, -(10**400), 1e6, 1e15),
    *(np.float32(0.5), np.float16(0.1), np.float64("nan"), np.longdouble(0.25), np.int8(-1)),
    *(np.uint64(2**64 - 1), np.array(0.5), jnp.float32(0.25), jnp.bfloat16(1.0), jnp.int32(3)),
    *(fractions.Fraction(1, 3), decimal.Decimal("0.5"), decimal.Decimal("NaN")),
)
# Strings and the like are one kind of fault: a sixth of the values is enough.
ODD = st.one_of(*[st.sampled_from(NUMBERS)] * 4, st.floats(), st.sampled_from(NO_NUMBERS))


def arguments(usual, rare=ODD):
    """Returns dictionaries with a usual or, for a third of the arguments, an odd value under each name."""
    either = {
        name: st.one_of(st.sampled_from(values), st.sampled_from(values), rare)
        for name, values in usual.items()
    }
    return st.fixed_dictionaries(either)


class Hang(BaseException):
    """A call that took more than its seconds; nothing catches it on the way."""


@contextlib.contextmanager
def time_limit(seconds=LIMIT):
    """Raises Hang in the block once this process has computed so long."""

    def ring(number, frame):
        raise Hang(f"more than {seconds} s")

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def answer(call, seconds=LIMIT):
    """Returns (what the call gave, None), or (None, the error) if it was refused as it should be."""
    with time_limit(seconds):
        try:
            return call(), None
        except (ValueError, TypeError) as error:
            refusal = error
    where = traceback.extract_tb(refusal.__traceback__)[-1]
    ours = PACKAGE in pathlib.Path(where.filename).parents and where.line.startswith("raise")
    assert ours, f"not our message: {refusal!r} from {where.filename}: {where.line}"
    assert len(str(refusal)) > 20, refusal
    return None, refusal
