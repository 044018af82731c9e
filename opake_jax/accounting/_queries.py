"""What does a process cost? The questions, and which method answers them.

Every answer is on the private side: epsilon, delta and advantage from above, beta and risk from below;
also after a cast to float32. Compositions of Gaussians alone are answered in closed form; everything
else is asked of the accountant, which brackets the dominating pairs.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_count, check_probability, check_real, is_traced
from opake_jax._numerics import xp
from opake_jax.accounting import _discrete, _mu_gdp
from opake_jax.accounting._evaluate import (
    Grouped,
    any_traced,
    ask_each,
    evaluate_each,
    evaluate_traced,
    or_trivial,
    quietly,
)
from opake_jax.accounting._pld import PLD
from opake_jax.accounting._rounding import delta_above, outward
from opake_jax.accounting._trade_off import (
    LINES,
    GaussianSummary,
    TradeOff,
    covering_mu,
    default_alphas,
)

__all__ = ["Queries", "ask_trajectory"]

Bounds = Any  # a pair (lower, upper)
_SMALLEST = math.ulp(0.0)
_TINY_MU = 1e-140  # below, it may have been rounded up (`Gaussian.squared_mu`): only one end holds
_OUT = (-1, +1)  # a lower bound is rounded down, an upper one up


class Queries:
    """The questions that every process answers.

    `accountant`: None is `PLD()`, certified numerics of the dominating pair; `RDP()` is looser and
    quicker. `group_size`: the answer for a group of so many units that join or leave together.
    `delta`, `epsilon`, `alpha`, `prior` may be arrays; the answer then has their shape. Concrete
    numbers give floats (or numpy arrays), traced ones give tracers.
    """

    parts: Any

    def epsilon_at(self, delta: Any, *, accountant: Any = None, group_size: int = 1) -> Any:
        """Returns the smallest epsilon that is certified at `delta`: an upper bound.

        | delta | answer |
        |---|---|
        | 0 | inf, unless the process is pure (then its epsilon) |
        | tiny, 1e-300 | as any other |
        | above the delta at epsilon 0 | 0 |

        Args:
          delta: in [0, 1); a number or an array.
          accountant: `PLD(...)` (None) or `RDP(...)`.
          group_size: of the privacy unit, a whole number of at least 1.

        Raises:
          ValueError: delta outside [0, 1) or NaN. A traced one below 0, or NaN, gives inf.

        Reference: Balle and Wang 2018, arXiv:1805.06530 (Gaussian); otherwise see `PLD`, `RDP`.

        >>> from opake_jax.accounting import gaussian
        >>> round(gaussian(1.0).epsilon_at(1e-5), 8)
        4.3771781
        """
        return self.epsilon_bounds(delta, accountant=accountant, group_size=group_size)[1]

    def epsilon_bounds(
        self, delta: Any, *, accountant: Any = None, group_size: int = 1
    ) -> tuple[Any, Any, bool]:
        """Returns (lower, upper, pair_is_tight): the truth about the dominating pair lies between.

        The bracket certifies the numerics. `pair_is_tight` says whether the pair is exact for the
        mechanism, so that the bracket holds for the mechanism as well. Arguments as `epsilon_at`.
        """
        _check_entries("delta", delta, lambda n, v: check_real(n, v, low=0.0, high=1.0))
        return self._answer(_epsilon, delta, accountant, group_size)

    def delta_at(self, epsilon: Any, *, accountant: Any = None, group_size: int = 1) -> Any:
        """Returns the smallest delta that is certified at `epsilon`: an upper bound.

        Args:
          epsilon: at least 0; a number or an array.
          accountant: `PLD(...)` (None) or `RDP(...)`.
          group_size: of the privacy unit, a whole number of at least 1.

        Raises:
          ValueError: epsilon is negative or NaN. A traced NaN gives 1.
        """
        return self.delta_bounds(epsilon, accountant=accountant, group_size=group_size)[1]

    def delta_bounds(
        self, epsilon: Any, *, accountant: Any = None, group_size: int = 1
    ) -> tuple[Any, Any, bool]:
        """Returns (lower, upper, pair_is_tight) around delta; see `epsilon_bounds`."""
        _check_entries("epsilon", epsilon, check_real)
        return self._answer(_delta, epsilon, accountant, group_size)

    def advantage(self, *, accountant: Any = None, group_size: int = 1) -> Any:
        """Returns an upper bound on the membership advantage TPR - FPR of any attack: delta(0)."""
        return self.delta_at(0.0, accountant=accountant, group_size=group_size)

    def beta_at(self, alpha: Any, *, accountant: Any = None, group_size: int = 1) -> Any:
        """Returns a lower bound on the false negative rate of any attack of false positive rate alpha.

        The trade-off function, symmetrised over the two directions of neighbouring (Dong, Roth, Su
        2019, arXiv:1905.02383).

        Args:
          alpha: in [0, 1]; a number or an array.
          accountant: `PLD(...)` (None) or `RDP(...)`.
          group_size: of the privacy unit, a whole number of at least 1.
        """
        return self.beta_bounds(alpha, accountant=accountant, group_size=group_size)[0]

    def beta_bounds(
        self, alpha: Any, *, accountant: Any = None, group_size: int = 1
    ) -> tuple[Any, Any, bool]:
        """Returns (lower, upper, pair_is_tight) around the trade-off function at alpha."""
        _check_entries("alpha", alpha, check_probability)
        return self._answer(_beta, alpha, accountant, group_size)

    def risk_at(self, prior: Any, *, accountant: Any = None, group_size: int = 1) -> Any:
        """Returns a lower bound on the Bayes error of guessing membership with this prior.

        min over alpha of prior * alpha + (1 - prior) * beta(alpha). By the Neyman-Pearson lemma that is
        min(prior, 1 - prior) * (1 - delta(|log(prior / (1 - prior))|)); at 1/2, (1 - advantage)/2.

        Args:
          prior: probability that the unit is absent, in [0, 1]; a number or an array.
          accountant: `PLD(...)` (None) or `RDP(...)`.
          group_size: of the privacy unit, a whole number of at least 1.
        """
        _check_entries("prior", prior, check_probability)
        return self._answer(_risk, prior, accountant, group_size)[0]

    def gdp(
        self, min_delta: Any = 1e-10, *, accountant: Any = None, group_size: int = 1
    ) -> GaussianSummary:
        """Returns the smallest mu-Gaussian DP that covers the process where delta >= min_delta.

        An upper bound: delta of a Gaussian of noise multiplier 1/mu is at least the process's at every epsilon at which
        the latter is at least `min_delta`. The central limit gives a smaller figure, which is no bound.

        Args:
          min_delta: in (0, 1), concrete.
          accountant: `PLD(...)` (None) or `RDP(...)`.
          group_size: of the privacy unit, a whole number of at least 1.

        Returns:
          `(mu, min_delta)`; mu is inf if delta never falls that low.

        Raises:
          ValueError: min_delta outside (0, 1). TypeError: numbers are traced.

        Reference: Dong, Roth, Su 2019, arXiv:1905.02383.
        """
        if any_traced((self.parts, min_delta)):
            raise TypeError("gdp needs concrete numbers: call it outside jit, vmap and grad")
        check_real("min_delta", min_delta, low_open=True, high=1.0)
        known = _concrete(self._parts_of(group_size))
        if _all_gaussian(known.parts, accountant or PLD()):
            return GaussianSummary(known.mu * (1 + 1e-14), float(min_delta))
        options = {"accountant": accountant, "group_size": group_size}
        last = self.epsilon_at(min_delta, **options)
        if not math.isfinite(last):
            return GaussianSummary(math.inf, float(min_delta))
        epsilons = np.linspace(0.0, max(last, 1e-6), LINES + 1)
        deltas = self.delta_at(epsilons, **options)
        return GaussianSummary(covering_mu(epsilons, deltas), float(min_delta))

    def trade_off_curve(
        self, alpha: Any = None, *, accountant: Any = None, group_size: int = 1
    ) -> TradeOff:
        """Returns (alpha, beta): the trade-off function at these false positive rates.

        Args:
          alpha: in [0, 1], an array; None takes 58 values, dense near 0.
          accountant: `PLD(...)` (None) or `RDP(...)`.
          group_size: of the privacy unit, a whole number of at least 1.
        """
        alpha = default_alphas() if alpha is None else alpha
        if any_traced(self.parts) and not any_traced(alpha):
            # They leave the program in its own float: beta must be that of what leaves it.
            alpha = np.asarray(alpha).astype(jnp.result_type(float)).astype(np.float64)
        return TradeOff(alpha, self.beta_at(alpha, accountant=accountant, group_size=group_size))

    def _parts_of(self, group_size: int) -> Any:
        """Returns the parts as a group of so many units sees them."""
        size = check_count("group_size", group_size, minimum=1)
        if size == 1:
            return self.parts
        if any_traced(self.parts):
            return tuple((Grouped(mechanism, size), count) for mechanism, count in self.parts)
        return tuple((mechanism.grouped(size), count) for mechanism, count in self.parts)

    def _answer(
        self,
        question: Callable[[Any, Any, Any], Bounds],
        at: Any,
        accountant: Any,
        group_size: int,
    ) -> tuple[Any, Any, bool]:
        """Returns (lower, upper, pair_is_tight) of the question at a number or at each of an array."""
        parts = self._parts_of(group_size)
        accountant = PLD() if accountant is None else _check_accountant(accountant)
        tight = all(mechanism.pair_is_tight for mechanism, _ in parts)
        if any_traced((parts, at)):
            lower, upper = ask_each(lambda x: question(parts, x, accountant), at)
        elif np.ndim(at) == 0:
            lower, upper = question(parts, float(at), accountant)
        else:
            entries = np.asarray(at, np.float64)
            pairs = [question(parts, float(x), accountant) for x in entries.ravel()]
            lower, upper = (
                np.asarray(side, np.float64).reshape(entries.shape)
                for side in (zip(*pairs, strict=True) if pairs else ((), ()))
            )
        return lower, upper, tight


def _check_accountant(accountant: Any) -> Any:
    if isinstance(accountant, type) or not hasattr(accountant, "epsilon_bounds"):
        raise TypeError(f"accountant must be PLD(...) or RDP(...), an object, got {accountant!r}")
    if isinstance(accountant, PLD):
        check_real("rtol", accountant.rtol, low_open=True)
    return accountant


def _check_entries(name: str, value: Any, check: Callable[[str, Any], Any]) -> None:
    """Checks a number, or every entry of a concrete array or list."""
    if any_traced(value):
        return
    if np.ndim(value) == 0:
        check(name, value)
        return
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be real numbers, got an array of {array.dtype}")
    for entry in array.ravel():
        check(name, entry)


def _epsilon(parts: Any, delta: Any, accountant: Any) -> Bounds:
    lower: Any
    upper: Any
    if any_traced((parts, delta)):
        if _all_gaussian(parts, accountant):
            lower, upper = evaluate_each(
                lambda a: _mu_gdp.epsilon(_mu(a[0]), jnp.log(a[1])), parts, delta, _OUT
            )
        else:
            lower, upper = accountant.epsilon_bounds(parts, delta)
        valid = _traced_validity(parts) & (delta >= 0) & (delta < 1)
        return _valid_ends(valid, lower, upper, jnp.inf)
    known = _concrete(parts)
    if delta < known.infinite_mass:
        return math.inf, math.inf
    if delta == 0 or not known.parts:
        return known.largest_loss, known.largest_loss
    if _all_gaussian(known.parts, accountant):
        ends = _run(_mu_gdp.epsilon, known.mu, math.log(delta))
        ends = (0.0 if known.mu < _TINY_MU else ends[0]), ends[1]
    elif (law := _law(known, accountant)) is not None:
        ends = _discrete.epsilon_of(law, known.infinite_mass, delta)
    else:
        ends = accountant.epsilon_bounds(known.parts, delta)
    # A NaN is no bound: the largest loss is what remains certain.
    upper = min(ends[1], known.largest_loss) if ends[1] >= 0 else known.largest_loss
    lower = ends[0] if ends[0] >= 0 else 0.0
    return _outward(min(lower, upper), upper)


def _delta(parts: Any, epsilon: Any, accountant: Any) -> Bounds:
    lower: Any
    upper: Any
    if any_traced((parts, epsilon)):
        if _all_gaussian(parts, accountant):
            lower, upper = evaluate_each(
                lambda a: _gaussian_delta(_mu(a[0]), a[1]), parts, epsilon, _OUT
            )
        else:
            lower, upper = accountant.delta_bounds(parts, epsilon)
        valid = _traced_validity(parts) & (epsilon >= 0)
        return _valid_ends(valid, lower, upper, 1.0)
    known = _concrete(parts)
    if epsilon >= known.largest_loss or known.infinite_mass == 1:
        return known.infinite_mass, known.infinite_mass
    if _all_gaussian(known.parts, accountant):
        ends = _run(_gaussian_delta, known.mu, epsilon)
        ends = (0.0 if known.mu < _TINY_MU else ends[0]), ends[1]
    elif (law := _law(known, accountant)) is not None:
        ends = _discrete.delta_of(law, known.infinite_mass, epsilon)
    else:
        ends = accountant.delta_bounds(known.parts, epsilon)
    upper = ends[1] if ends[1] <= 1.0 else 1.0  # a NaN is no bound
    lower = ends[0] if ends[0] >= 0 else 0.0
    # Below the largest loss delta is positive, however small: 0 would claim pure DP.
    return _outward(min(lower, upper), max(upper, _SMALLEST))


def _beta(parts: Any, alpha: Any, accountant: Any) -> Bounds:
    lower: Any
    upper: Any
    if any_traced((parts, alpha)):
        if _all_gaussian(parts, accountant):
            lower, upper = evaluate_each(
                lambda a: _mu_gdp.beta(_mu(a[0]), a[1]), parts, alpha, _OUT
            )
        else:
            lower, upper = accountant.beta_bounds(parts, alpha)
        valid = _traced_validity(parts) & (alpha >= 0) & (alpha <= 1)
        return _valid_ends(valid, lower, upper, 1.0)
    known = _concrete(parts)
    if alpha == 1 or known.infinite_mass == 1:
        return 0.0, 0.0
    if alpha == 0:  # what the attacker finds out without ever accusing wrongly
        return _outward(1 - known.infinite_mass, 1 - known.infinite_mass)
    if not known.parts:
        return _outward(1 - alpha, 1 - alpha)
    if _all_gaussian(known.parts, accountant):
        ends = _run(_mu_gdp.beta, known.mu, alpha)
        ends = ends[0], (1 - alpha if known.mu < _TINY_MU else ends[1])
    elif (law := _law(known, accountant)) is not None:
        ends = _discrete.beta_of(law, known.infinite_mass, alpha)
    else:
        ends = accountant.beta_bounds(known.parts, alpha)
    lower = ends[0] if ends[0] >= 0 else 0.0  # a NaN is no bound
    return _outward(lower, max(min(ends[1], 1 - alpha), lower))


def _risk(parts: Any, prior: Any, accountant: Any) -> Bounds:
    if any_traced((parts, prior)):
        # Each step in float64 and rounded to the private side: a smaller epsilon, a larger delta, a smaller error.
        if is_traced(prior):
            odds = evaluate_traced(lambda p: (_log_odds(p),), prior, (-1,))[0]
        else:
            with quietly():
                odds = _log_odds(np.asarray(prior, np.float64))
        upper = _delta(parts, odds, accountant)[1]
        risk = evaluate_traced(lambda a: (_bayes_error(*a),), (prior, upper), (-1,))[0]
        smaller = jnp.minimum(prior, 1 - jnp.asarray(prior))
        possible = (smaller > 0) & ~jnp.isnan(risk)
        return or_trivial(possible, risk, 0.0), smaller
    smaller = min(prior, 1 - prior)
    if smaller == 0:
        return 0.0, 0.0
    lower, upper = _delta(parts, math.log1p(-smaller) - math.log(smaller), accountant)
    return _outward(smaller * (1 - upper), smaller * (1 - lower))


def _log_odds(prior: Any) -> Any:
    """Returns |log(prior / (1 - prior))|, at most."""
    smaller = xp.minimum(prior, 1 - prior)
    return (xp.log1p(-smaller) - xp.log(smaller)) * (1 - 1e-15)


def _bayes_error(prior: Any, delta: Any) -> Any:
    return xp.minimum(prior, 1 - prior) * (1 - delta) * (1 - 1e-15)


def _valid_ends(valid: Any, lower: Any, upper: Any, most: Any) -> Bounds:
    """Returns both ends, or the trivial ones where numbers are out of range or an end is no number."""
    return (
        or_trivial(valid & ~jnp.isnan(lower), lower, 0.0),
        or_trivial(valid & ~jnp.isnan(upper), upper, most),
    )


def _outward(lower: Any, upper: Any) -> tuple[float, float]:
    return outward(float(lower), -1), outward(float(upper), +1)


def _all_gaussian(parts: Any, accountant: Any) -> bool:
    """Returns True if the closed form answers: Gaussians alone, and nobody asked for another method."""
    return isinstance(accountant, PLD) and all(m.squared_mu() is not None for m, _ in parts)


def _law(known: "_Known", accountant: Any) -> Any:
    """Returns the exact law where there is one, unless somebody asked for another method."""
    return _discrete.law_of(known.parts) if isinstance(accountant, PLD) else None


def ask_trajectory(parts: Any, counts: Any, delta: Any, accountant: Any) -> Any:
    """Returns epsilon at delta after `counts` repetitions of the parts, [counts]."""
    accountant = PLD() if accountant is None else _check_accountant(accountant)
    if any_traced((parts, counts, delta)):
        upper: Any
        if _all_gaussian(parts, accountant):

            def closed(arguments: Any) -> Any:
                (parts, delta), count = arguments
                some = tuple((mechanism, times * count) for mechanism, times in parts)
                return _mu_gdp.epsilon(_mu(some), jnp.log(delta))

            upper = evaluate_each(closed, (parts, delta), counts, _OUT)[1]
        else:
            upper = accountant.epsilon_trajectory(parts, counts, delta)[1]
        valid = _traced_validity(parts) & (counts >= 0) & (jnp.floor(counts) == counts)
        valid &= (delta >= 0) & (delta < 1)
        upper = jnp.where(counts == 0, 0.0, upper)
        return or_trivial(valid & ~jnp.isnan(upper), upper, jnp.inf)
    known = _concrete(parts)
    easy = _all_gaussian(known.parts, accountant) or _law(known, accountant) is not None
    if easy or delta == 0 or known.infinite_mass > 0:
        each = [
            _epsilon(tuple((m, times * count) for m, times in parts), float(delta), accountant)[1]
            for count in counts
        ]
        return np.array(each, np.float64)
    upper = np.zeros(len(counts), np.float64)
    some = counts > 0
    if np.any(some):
        found = accountant.epsilon_trajectory(known.parts, counts[some], float(delta))[1]
        ends = [min(e, n * known.largest_loss) for e, n in zip(found, counts[some], strict=True)]
        upper[some] = [outward(float(e), +1) for e in ends]
    return upper


class _Known(NamedTuple):
    """What a composition of known numbers says without numerics."""

    parts: tuple[Any, ...]  # those that cost anything
    mu: float  # of the Gaussian ones
    largest_loss: float  # of all, finite for pure DP
    infinite_mass: float  # probability that the output gives it all away


def _concrete(parts: Any) -> _Known:
    kept, squared_mu, largest, log_rest = [], 0.0, 0.0, 0.0
    for mechanism, count in parts:
        if not (count >= 0 and math.floor(count) == count and mechanism.is_valid()):
            raise ValueError(
                f"{mechanism.name}: a number lies outside the range that its factory allows, in {mechanism!r}, "
                f"{count} times; was the process changed past its factory?"
            )
        square = mechanism.squared_mu()
        if count == 0 or square == 0:
            continue
        count, leak = float(count), float(mechanism.infinite_mass())
        kept.append((mechanism, count))
        squared_mu += float(square or 0.0) * count
        largest += count * float(mechanism.largest_loss())
        log_rest += count * math.log1p(-leak) if leak < 1 else -math.inf
    leak = 1.0 if squared_mu == math.inf else 0.0 - math.expm1(log_rest)
    return _Known(tuple(kept), math.sqrt(squared_mu), largest, leak)


def _mu(parts: Any) -> Any:
    """Returns mu of a composition of Gaussians as a float64 scalar; NaN if a number is out of range."""
    total = jnp.zeros((), jnp.float64)
    for mechanism, count in parts:
        square = mechanism.squared_mu()
        total = total + jnp.where(count == 0, 0.0, square * count)
    valid = _traced_validity(parts)
    return jnp.where(valid, jnp.sqrt(jnp.where(total > 0, total, 1.0)) * (total > 0), jnp.nan)


def _traced_validity(parts: Any) -> Any:
    """Returns a boolean: every number lies where its factory wants it."""
    valid = jnp.asarray(True)
    for mechanism, count in parts:
        valid = valid & mechanism.is_valid()
        count = jnp.asarray(count)
        valid = valid & (count >= 0) & (jnp.floor(count) == count)
    return valid


def _gaussian_delta(mu: Any, epsilon: Any) -> tuple[xp.Array, xp.Array]:
    lower, upper = _mu_gdp.log_delta(mu, epsilon)
    return xp.exp(lower) * (1 - 1e-15), delta_above(upper)


def _run(question: Any, *arguments: float) -> tuple[float, float]:
    with quietly():
        lower, upper = question(*(np.float64(a) for a in arguments))
    return float(lower), float(upper)
