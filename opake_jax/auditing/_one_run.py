"""Lower bounds from one run with many canaries, each in or out by its own fair coin."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, ndtr, ndtri

from opake_jax._checks import check_real, require
from opake_jax.auditing._binomial import check_confidence, check_counts, elementwise

__all__ = ["check_game", "least_mass", "one_run_epsilon", "one_run_gdp"]

# An epsilon (or mu) beyond these is reported as the end of the interval, which is a bound as well.
_MAX_EPSILON, _MAX_MU = 64.0, 64.0
# 64 * 2^-46 = 1e-12: finer than any use.
_HALVINGS = 46
# More guesses than any one run will see; log-gamma values then reach 6e7 and are exact to 1e-7 (2.7e-15
# relative, measured against scipy), which is the error of each term of a binomial tail.
_MAX_GUESSES = 1 << 22
_TAIL_ERROR = 4e-7


def one_run_epsilon(
    num_canaries: Any,
    num_guesses: Any,
    num_correct: Any,
    *,
    delta: float,
    confidence: float = 0.95,
) -> np.ndarray:
    """Returns a lower bound on epsilon at `delta` from one run with many canaries.

    The game: each of m canaries is put in with probability 1/2, independently; the attacker sees the
    output and guesses for r of them (the rest are abstentions); v guesses are right. If the
    mechanism is (epsilon, delta)-DP for adding or removing one unit, then with W ~ Binomial(r,
    e^epsilon / (1 + e^epsilon)),

        P[correct >= v] <= P[W >= v] + 2 m delta max_{1 <= i <= v} P[v - i <= W < v] / i.

    The bound is the largest epsilon at which the right side is at most 1 - confidence.

    Args:
      num_canaries: m, counts; all three broadcast against one another.
      num_guesses: r <= m. Fixed before the scores are seen (or divide 1 - confidence by the number
        of values tried).
      num_correct: v <= r.
      delta: in [0, 1].
      confidence: in (0, 1).

    Returns:
      Float64 array in [0, 64], rounded down: an epsilon above it was not refuted.

    Reference: Steinke, Nasr and Jagielski, 2023, 2305.08846, theorem 5.2 and its corollary.

    >>> round(float(one_run_epsilon(1000, 100, 95, delta=1e-5)), 4)
    2.1652
    """
    level = check_confidence(confidence)
    check_real("delta", delta, high=1.0, high_open=False)
    m, r, v = check_game(num_canaries, num_guesses, num_correct)
    function = functools.partial(_one_run_epsilon, size=_padded(r))
    return elementwise(function, m, r, v, delta, level, block=1)


def one_run_gdp(
    num_canaries: Any, num_guesses: Any, num_correct: Any, *, confidence: float = 0.95
) -> np.ndarray:
    """Returns a lower bound on mu from one run, for a mechanism that is mu-GDP.

    The game of `one_run_epsilon`. With f the trade-off function, g(x) = 1 - f(x), and p_j the
    probability of j right guesses out of exactly r, concavity of g gives for each c

        sum_{j >= c} (j / m) p_j <= g( sum_{j >= c-1} ((r - j) / m) p_j ),

    since a guess that is right when the canary is in is wrong, with the same output, when it is out.
    Among all p with P[correct >= v] = tau, the least total mass is that of the recursion which puts
    tau on v and then meets each inequality with equality; once it exceeds 1, tau is impossible.
    (The curve may be spent on all canaries at once, in a run of probability tau, so that many mediocre
    guesses prove less than a few confident ones: let the attacker abstain.)

    Args:
      num_canaries: m, counts; all three broadcast against one another.
      num_guesses: r <= m, fixed before the scores are seen.
      num_correct: v <= r.
      confidence: in (0, 1).

    Returns:
      Float64 array in [0, 64], rounded down. `gdp_epsilon` makes an epsilon of it.

    Reference: Mahloujifar, Melis and Chaudhuri, 2024, 2410.22235, theorem 9 and algorithm 3.

    >>> round(float(one_run_gdp(1000, 100, 100)), 4)
    1.2255
    """
    level = check_confidence(confidence)
    m, r, v = check_game(num_canaries, num_guesses, num_correct)
    return elementwise(_one_run_gdp, m, r, v, level)


def check_game(num_canaries: Any, num_guesses: Any, num_correct: Any) -> list[np.ndarray]:
    counts = check_counts(
        num_canaries=num_canaries, num_guesses=num_guesses, num_correct=num_correct
    )
    m, r, v = counts
    require(bool(np.all(m >= 1)), "num_canaries must be at least 1")
    require(
        bool(np.all(r <= np.minimum(m, _MAX_GUESSES))),
        f"num_guesses must be at most num_canaries and at most {_MAX_GUESSES}",
    )
    require(bool(np.all(v <= r)), "num_correct must be at most num_guesses")
    return counts


def _padded(counts: np.ndarray) -> int:
    """Returns a power of two above every count, so that few sizes are compiled."""
    return 1 << max(int(np.max(counts)), 1000).bit_length()


def _largest_refuted(refuted: Any, end: float, like: jax.Array) -> jax.Array:
    """Returns the largest parameter in [0, end] found to be refuted, 0 if there is none.

    What is refuted at one parameter is refuted below it as well (a smaller epsilon claims more), so
    every point that the bisection accepts is a valid bound, whatever lies between.
    """

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        yes = refuted(middle)
        return jnp.where(yes, middle, low), jnp.where(yes, high, middle)

    low, _ = jax.lax.fori_loop(
        0, _HALVINGS, halve, (jnp.zeros_like(like), jnp.full_like(like, end))
    )
    return low


def _one_run_p_value(
    m: jax.Array, r: jax.Array, v: jax.Array, epsilon: jax.Array, delta: jax.Array, *, size: int
) -> jax.Array:
    """Returns an upper bound on P[correct >= v], of scalars; `size` exceeds r."""
    j = jnp.arange(size, dtype=jnp.float64)
    log_choose = gammaln(r + 1) - gammaln(j + 1) - gammaln(jnp.maximum(r - j, 0) + 1)
    log_mass = log_choose - j * jax.nn.softplus(-epsilon) - (r - j) * jax.nn.softplus(epsilon)
    mass = jnp.where(j <= r, jnp.exp(log_mass), 0.0)
    beta = jnp.sum(jnp.where(j >= v, mass, 0.0))
    # P[v - i <= W < v] for i = v - j, as sums from v - 1 downwards: no difference of tails.
    below = jax.lax.cumsum(jnp.where(j < v, mass, 0.0), reverse=True)
    steepest = jnp.max(jnp.where(j < v, below / jnp.maximum(v - j, 1.0), 0.0))
    return (beta + 2.0 * m * delta * steepest) * (1.0 + _TAIL_ERROR)


@jax.jit(static_argnames="size")
def _one_run_epsilon(
    m: jax.Array, r: jax.Array, v: jax.Array, delta: jax.Array, level: jax.Array, *, size: int
) -> jax.Array:
    def one(row: tuple[jax.Array, ...]) -> jax.Array:
        m, r, v, delta, level = row
        return _largest_refuted(
            lambda epsilon: _one_run_p_value(m, r, v, epsilon, delta, size=size) <= level,
            _MAX_EPSILON,
            level,
        )

    return jax.lax.map(one, (m, r, v, delta, level))


@jax.jit
def _one_run_gdp(m: jax.Array, r: jax.Array, v: jax.Array, level: jax.Array) -> jax.Array:
    def refuted(mu: jax.Array) -> jax.Array:
        return least_mass(lambda x: ndtr(ndtri(x) - mu), (m, r, v), level) > 1.0 + 1e-9

    return _largest_refuted(refuted, _MAX_MU, m)


def least_mass(
    inverse: Any, counts: tuple[jax.Array, jax.Array, jax.Array], tail: jax.Array
) -> jax.Array:
    """Returns the least total probability that P[correct >= v] = tail needs under a trade-off curve.

    Above 1 the tail is impossible. Arrays of one shape are answered side by side.

    Args:
      inverse: the inverse of 1 - f, elementwise on [0, 1]; from below where it is not exact.
      counts: m, r, v.
      tail: tau in (0, 1).
    """
    m, r, v = counts
    # right: sum_{j >= i} (j / m) p_j; wrong: sum_{j >= i} ((r - j) / m) p_j.

    def more(state: Any) -> jax.Array:
        i, _, _, moved = state
        return jnp.any((i > 0) & moved)

    def step(state: Any) -> Any:
        i, right, wrong, _ = state
        i = i - 1.0
        needed = jnp.maximum(inverse(jnp.minimum(right, 1.0)), wrong)
        moved = (i >= 0) & (needed > wrong)  # where nothing is needed now, nothing is needed later
        added = jnp.where(moved, i / jnp.maximum(r - i, 1.0) * (needed - wrong), 0.0)
        return i, right + added, jnp.where(moved, needed, wrong), moved

    start = (v, tail * v / m, tail * (r - v) / m, v > 0)
    _, right, wrong, _ = jax.lax.while_loop(more, step, start)
    return (right + wrong) * m / jnp.maximum(r, 1.0)
