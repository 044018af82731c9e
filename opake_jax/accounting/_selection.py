"""What does it cost to train many times and to release the best run?

Each of K runs draws its candidate (a learning rate, a model) at random, trains under differential privacy and gives
itself a score; the best run alone is released. K is drawn as well, and stays secret, as the losers do: were it fixed, a
run that can only win where all others fail would show that they failed.

Proof of the bound. Let Q be the law of one run's outcome, ordered by score, Q' the same on a neighbouring data set, and u(y) the
probability Q(> y) of a better outcome. With f(x) = E x^K the released outcome has the law

    A(y) = f(Q(<= y)) - f(Q(< y)) = mean over u from Q(> y) to Q(>= y) of  Q(y) f'(1 - u),
    f'(1 - u) = E[K] (1 + kappa u)^-(1 + eta),    kappa = 1/gamma - 1,

for the truncated negative binomial law of shape eta. A better outcome is an event, so that with any epsilon_1 >= 0
u' <= a u + delta_Q(epsilon_1), a = e^epsilon_1, and likewise for means of such events. Therefore, u being in [0, 1],

    f'(1 - u) / f'(1 - u') = ((1 + kappa u') / (1 + kappa u))^(1 + eta) <= b^(1 + eta),
    b = max of (1 + kappa (a u + delta_Q)) / (1 + kappa u) over u = 0 and u = 1, as it is monotone in u.

Its two ends are equal, and b is least, where a = 1 + kappa delta_Q(epsilon_1) = b. As f'(1 - u) <= E[K],

    delta_A(epsilon) = sum over y of (A - e^epsilon A')_+ <= E[K] sum over y of (Q - e^(epsilon - penalty) Q')_+
                     <= E[K] delta_Q(epsilon - penalty),    penalty = (1 + eta) log b.

The laws of K are those of Papernot and Steinke 2022 (arXiv:2110.03620), who bound Renyi divergences; profiles in their place
are from Koskela, Redberg and Wang 2024 (arXiv:2402.06701), whose b is a + kappa delta_Q: at the best a it is 2a - 1 here.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_key, check_real, require
from opake_jax.accounting._evaluate import any_traced
from opake_jax.accounting._process import Process
from opake_jax.accounting._rounding import outward
from opake_jax.random import tagged

__all__ = ["Selection", "private_selection"]

_MOST_RUNS = 1e4
_LARGEST_LOG = 700.0  # of 1/gamma, in float64
_HALVINGS = 26  # to 1e-7; the penalty is flat at its best, and any epsilon_1 gives a bound
_BLOCK = 4096
_NO_MORE = -60.0  # log of a probability: all later runs together are then rarer than 1e-15
_ROUNDING = 1e-13  # relative, of the few operations on top of certified answers


@dataclasses.dataclass(frozen=True)
class Selection:
    """The best of a random number of private runs; build it with `private_selection`.

    Attributes:
      candidates: the processes of which each run is one.
      shape: eta of the truncated negative binomial law of K.
      log_inverse_gamma: log(1/gamma) of that law.
    """

    candidates: tuple[Process, ...]
    shape: float
    log_inverse_gamma: float

    @property
    def mean_runs(self) -> float:
        """Returns E[K]."""
        return _mean(self.shape, self.log_inverse_gamma)

    def epsilon_at(self, delta: Any, *, accountant: Any = None, group_size: int = 1) -> float:
        """Returns an upper bound on the epsilon at `delta` of releasing the best run.

        Args:
          delta: a number in [0, 1). At 0 it is inf, unless the candidates are pure.
          accountant: `PLD(...)` (None) or `RDP(...)`, by which the candidates are accounted for.
          group_size: of the privacy unit, a whole number of at least 1.

        Raises:
          ValueError: delta outside [0, 1). TypeError: delta is traced.
        """
        _check_known(delta)
        check_real("delta", delta, high=1.0)
        options = {"accountant": accountant, "group_size": group_size}
        each = float(delta) / (self.mean_runs * (1 + _ROUNDING))
        largest = max(float(p.epsilon_at(each, **options)) for p in self.candidates)
        return outward((largest + self._penalty(options)) * (1 + _ROUNDING), +1)

    def delta_at(self, epsilon: Any, *, accountant: Any = None, group_size: int = 1) -> float:
        """Returns an upper bound on the delta at `epsilon` of releasing the best run.

        It is 1 where epsilon is smaller than what the choice alone is charged.

        Args:
          epsilon: a number of at least 0.
          accountant: `PLD(...)` (None) or `RDP(...)`, by which the candidates are accounted for.
          group_size: of the privacy unit, a whole number of at least 1.

        Raises:
          ValueError: epsilon is negative, infinite or NaN. TypeError: epsilon is traced.
        """
        _check_known(epsilon)
        check_real("epsilon", epsilon)
        options = {"accountant": accountant, "group_size": group_size}
        rest = float(epsilon) * (1 - _ROUNDING) - self._penalty(options)
        if rest < 0:
            return 1.0
        delta = self.mean_runs * (1 + _ROUNDING) * self._delta(rest, options)
        return min(outward(delta, +1), 1.0)

    def draw_num_runs(self, key: jax.Array) -> int:
        """Returns K, the number of runs to make, at least 1. Nobody may learn it.

        Args:
          key: typed threefry key, a fresh one for each search: whoever knows it knows K.

        Guarantee: the law of K is within 1e-11 of the stated one in total variation.
        """
        check_key("key", key)
        high, low = jax.random.bits(tagged(key, "number of runs"), (2,), jnp.uint32)
        uniform = ((int(high) << 32) + int(low) + 0.5) / 2.0**64
        eta, log_decay = self.shape, math.log(-math.expm1(-self.log_inverse_gamma))
        log_p, total = log_decay - _log_grown(eta, self.log_inverse_gamma), 0.0
        for first in itertools.count(1, _BLOCK):
            k = np.arange(first, first + _BLOCK, dtype=np.float64)
            steps = log_decay + np.log((k + eta) / (k + 1))  # of log P[K = k] to the next
            log_each = np.concatenate([[log_p], log_p + np.cumsum(steps)])
            reached = total + np.cumsum(np.exp(log_each[:-1]))
            log_p, total = float(log_each[-1]), float(reached[-1])
            if total >= uniform or (log_p < _NO_MORE and steps[-1] < 0):  # past the mode
                break
        return first + min(int(np.searchsorted(reached, uniform)), _BLOCK - 1)

    def _penalty(self, options: dict[str, Any]) -> float:
        """Returns (1 + eta) log b at the best epsilon_1 found: every one gives an upper bound."""
        kappa = math.expm1(self.log_inverse_gamma) * (1 + _ROUNDING)

        def ends(epsilon: float) -> tuple[float, float]:
            extra = kappa * self._delta(epsilon, options)
            return 1 + extra, (1 + extra + kappa * math.exp(epsilon)) / (1 + kappa)

        low, high = 0.0, self.log_inverse_gamma
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            none_better, all_better = ends(middle)
            low, high = (middle, high) if none_better > all_better else (low, middle)
        b = min(max(ends(low)), max(ends(high)))
        return (1 + self.shape) * (math.log(b) + _ROUNDING)

    def _delta(self, epsilon: float, options: dict[str, Any]) -> float:
        return max(float(p.delta_at(epsilon, **options)) for p in self.candidates)


def private_selection(
    candidates: Process | Sequence[Process], mean_runs: Any, *, shape: Any = 1.0
) -> Selection:
    """Returns the cost of making K private runs and releasing the best one: a search for hyper-parameters.

    `search.draw_num_runs(key)` draws K. Each of the K runs, with noise and samples of its own, takes one
    candidate (say a learning rate) at random, from a law that does not look at the data or at other runs, and may
    take it again. It is scored by something that its process pays for as well (`training | gaussian(...)` for
    a noisy accuracy), or by public data. The best run's model, candidate and score are released; K, and all that is known of
    the others, stay secret.

    Ten runs on average of a training at epsilon 1.83 cost 2.88 together at delta 1e-5; were ten released, it would be 6.19.

    Args:
      candidates: the process of one run, score included; several if candidates cost differently, and each
        question takes the worst of them.
      mean_runs: E[K], in [1, 10000].
      shape: eta > -1 of the truncated negative binomial law of K. 1 is the geometric law; smaller costs less, with an
        average that is made up more by a few very long searches (0: the logarithmic law).

    Returns:
      A `Selection` with `epsilon_at`, `delta_at` and `draw_num_runs`; `calibrate` takes it
      with an epsilon or a delta budget. To compose it with more,
      enter `eps_delta(search.epsilon_at(delta), delta)`.

    Raises:
      TypeError: no processes, or their numbers are traced.
      ValueError: a number out of range, or candidates stated under different neighbouring relations.

    Guarantee: an upper bound, proved in this module; not tight, but for pure candidates at delta 0. Neighbours as the candidates have them.

    Reference: Papernot and Steinke 2022, arXiv:2110.03620; Koskela, Redberg and Wang 2024, arXiv:2402.06701, whose
    bound on profiles is a little larger.

    >>> from opake_jax.accounting import gaussian, poisson
    >>> training = poisson(gaussian(1.0), 0.01) * 1000
    >>> search = private_selection(training, mean_runs=10)
    >>> round(training.epsilon_at(1e-5), 3), round(search.epsilon_at(1e-5), 3)
    (1.828, 2.871)
    """
    several = tuple(candidates) if isinstance(candidates, (list, tuple)) else (candidates,)
    for process in several:
        if not isinstance(process, Process):
            raise TypeError(f"candidates must be a process or several, got {process!r}")
    require(len(several) > 0, "candidates must be at least one process")
    check_real("mean_runs", mean_runs, low=1.0, high=_MOST_RUNS, high_open=False)
    check_real("shape", shape, low=-1.0, low_open=True)
    _check_known((several, mean_runs, shape))
    relations = {process.relation for process in several} - {None}
    require(len(relations) <= 1, f"candidates are stated under different relations: {several!r}")
    low, high = 1e-16, _LARGEST_LOG
    require(
        _mean(float(shape), high) >= mean_runs,
        f"no law of shape {shape!r} has the mean {mean_runs!r}: take a larger shape",
    )
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _mean(float(shape), middle) < mean_runs else (low, middle)
    return Selection(several, float(shape), high)


def _check_known(numbers: Any) -> None:
    if any_traced(numbers):
        raise TypeError(
            "private_selection needs concrete numbers: call it outside jit, vmap and grad"
        )


def _log_grown(eta: float, log_inverse_gamma: float) -> float:
    """Returns log((gamma^-eta - 1) / eta); the quotient is log(1/gamma) at 0."""
    product = eta * log_inverse_gamma
    if abs(product) < 1e-300:
        return math.log(log_inverse_gamma)
    if product > 30:
        return product + math.log1p(-math.exp(-product)) - math.log(eta)
    return math.log(math.expm1(product) / eta)


def _mean(eta: float, log_inverse_gamma: float) -> float:
    """Returns the mean of the law of K: (1/gamma - 1) / ((1 - gamma^eta) / eta)."""
    return math.expm1(log_inverse_gamma) / math.exp(_log_grown(-eta, log_inverse_gamma))
