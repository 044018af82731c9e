"""One object from which sampler, clipped gradient, noise and accounting come, so that they agree."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from opake_jax import accounting, clipping, noise, sampling
from opake_jax._checks import check_count, check_key, check_real, is_traced, require
from opake_jax.accounting import Budget, Process
from opake_jax.clipping._rules import NORM_RANGE
from opake_jax.dpsgd._adaptive import AdaptiveClipping, PlannedAdaptiveGradFn
from opake_jax.dpsgd._grad_fn import PlannedGradFn
from opake_jax.dpsgd._report import Report, round_down
from opake_jax.random import key_data
from opake_jax.types import NeighboringRelation

__all__ = ["Plan", "plan"]

# The cap of a Poisson batch is raised until it costs less than this share of epsilon ...
_CAP_COST = 0.01
# ... starting at this many standard deviations above the expected batch size.
_CAP_SIGMAS = 6.0
# A plan holds one noise multiplier for each step.
_MOST_STEPS = 10**7
# Noise multipliers where calibration starts to look; `calibrate` widens the bracket by itself.
_SEARCH = (0.1, 20.0)
# An index that the sampler draws is one of these, unless the caller says what else it is.
_UNIT = "one record of the dataset"
# The delta of a plan that was given a noise multiplier and no delta is nobody's to choose.
_DELTA_REMEDY = "pass delta=, for example 1 / dataset_size**1.1"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A whole DP-SGD mechanism, decided once: made by `plan`.

    Attributes:
      sampler: chooses the units of each step; its accounting is in `process`.
      num_steps: the horizon that `process` and `report` cover.
      clipping_norm: bound on each unit's L2 norm; with adaptive clipping, that of the first step.
      noise_multipliers: one for each step; with adaptive clipping, of gradient and count together.
      expected_batch_size: the public denominator.
      delta: the delta of the report.
      unit: whose data the report protects, in words.
      adaptive: None, or how the clipping norm follows a quantile of the norms.
    """

    sampler: Any
    num_steps: int
    clipping_norm: float
    noise_multipliers: tuple[float, ...]
    expected_batch_size: float
    delta: float
    unit: str = _UNIT
    adaptive: AdaptiveClipping | None = None
    # What kinds of key this plan has handed on: seeded or not. Filled as the plan is used.
    _keys: dict[str, bool | None] = dataclasses.field(
        default_factory=lambda: {"noise": None, "sampling": None}, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        require(
            len(self.noise_multipliers) == self.num_steps,
            f"noise_multipliers must be one for each of the {self.num_steps} steps, got "
            f"{len(self.noise_multipliers)}: make another horizon with plan(), which accounts for it",
        )

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of every step; ValueError if it changes over the run."""
        first = self.noise_multipliers[0]
        require(
            all(m == first for m in self.noise_multipliers),
            "the noise multiplier changes over the run: see noise_multipliers",
        )
        return first

    @property
    def process(self) -> Process:
        """The accounting of the whole horizon."""
        return self._process_after(self.num_steps)

    def _process_after(self, steps: int) -> Process:
        pieces = []
        for multiplier, count in _runs(self.noise_multipliers[:steps]):
            pieces.append(_steps(self.sampler, self._mechanism(multiplier), count))
        return accounting.compose(*pieces)

    def _mechanism(self, multiplier: float) -> Process:
        """Returns what one step releases."""
        relation = NeighboringRelation.ZERO_OUT
        if self.adaptive is None:
            return accounting.gaussian(multiplier, relation=relation)
        count_std = self.adaptive.count_std(self.expected_batch_size)
        own = accounting.gradient_noise_multiplier(multiplier, count_std)
        return accounting.adaclip(own, count_std, relation=relation)

    def clipped_grad(self, loss_fn: Callable[..., Any], **options: Any) -> PlannedGradFn:
        """Returns `clipping.clipped_grad` of the loss with this plan's norm and denominator; it needs the batch's mask.

        Args:
          loss_fn: `loss_fn(params, example) -> scalar`, no batch axis.
          **options: further options of `clipping.clipped_grad` (engine, has_aux, ...).
        """
        require(
            self.adaptive is None, "this plan clips adaptively: use adaptive_clipped_grad instead"
        )
        _keep_own(options)
        return PlannedGradFn(
            clipping.clipped_grad(
                loss_fn, self.clipping_norm, denominator=self.expected_batch_size, **options
            )
        )

    def adaptive_clipped_grad(
        self, loss_fn: Callable[..., Any], **options: Any
    ) -> PlannedAdaptiveGradFn:
        """Returns the gradient function of a plan that was made with `adaptive=`.

        The noise step turns its sum into the pair (gradient, count):

            clipped, private_aux = grad_fn(params, batch, clip_state, mask=mask)
            (gradient, count), noise_state = noise.update(clipped, noise_state)
            clip_state = grad_fn.update(clip_state, count)
            updates, opt_state = tx.update(gradient, opt_state, params)

        Args:
          loss_fn: `loss_fn(params, example) -> scalar`, no batch axis.
          **options: further options of `clipping.clipped_grad`.
        """
        adaptive = self.adaptive
        if adaptive is None:
            raise ValueError("this plan has a fixed clipping norm: pass adaptive= to plan()")
        _keep_own(options)
        multiplier = self.noise_multiplier
        count_std = adaptive.count_std(self.expected_batch_size)
        # std of the count's noise = multiplier * (1/2) / sqrt(share).
        share = (multiplier / (2 * count_std)) ** 2
        inner = clipping.adaptive_clipped_grad(
            loss_fn,
            self.clipping_norm,
            quantile=adaptive.quantile,
            learning_rate=adaptive.learning_rate,
            bounds=adaptive.bounds,
            denominator=self.expected_batch_size,
            **options,
        )
        return PlannedAdaptiveGradFn(inner, (1 - share, share))

    def gaussian_noise(self, key: jax.Array) -> optax.GradientTransformation:
        """Returns the noise step with this plan's noise multipliers: first in an `optax.chain`.

        A step past the horizon is in no report: its update is NaN.

        Args:
          key: a typed key; `opake_jax.random.key()` for anything that is released.
        """
        self._note("noise", key)
        base = noise.gaussian_noise(1.0, key=key)
        table = np.asarray(self.noise_multipliers, np.float32)

        @jax.jit  # a multiplier that is traced may be NaN, and then so is the update
        def update(
            clipped: Any, state: noise.GaussianNoiseState, params: Any = None
        ) -> tuple[Any, noise.GaussianNoiseState]:
            now = jnp.asarray(table).at[state.count].get(mode="fill", fill_value=jnp.nan)
            return noise.gaussian_noise(now, key=key).update(clipped, state, params)

        return optax.GradientTransformation(base.init, update)

    def optimizer(
        self, tx: optax.GradientTransformation, key: jax.Array
    ) -> optax.GradientTransformation:
        """Returns `optax.chain(self.gaussian_noise(key), tx)`: the noise always comes first."""
        return optax.chain(self.gaussian_noise(key), tx)

    def batches(self, key: jax.Array, start: int = 0) -> Iterator[tuple[jax.Array, jax.Array]]:
        """Yields `(indices, mask)` for the steps start, start + 1, ... of the horizon.

        Args:
          key: a typed key.
          start: the first step; a resumed run passes the number of steps already done.
        """
        start = check_count("start", start, maximum=self.num_steps)
        self._note("sampling", key)
        return self.sampler.batches(key, self.num_steps - start, start=start)

    def epsilon_after(self, step: int) -> float:
        """Returns an upper bound of epsilon at the plan's delta after so many steps."""
        step = check_count("step", step, maximum=self.num_steps)
        return self._process_after(step).epsilon_at(self.delta)

    def report(self, *, stopped_at: int | None = None) -> Report:
        """Returns the privacy statement of the run.

        Args:
          stopped_at: None gives the horizon's epsilon, which also covers a run that was stopped
            after looking at its noisy results. A step that was fixed in advance gives the epsilon
            after that step.
        """
        steps = (
            self.num_steps
            if stopped_at is None
            else check_count("stopped_at", stopped_at, maximum=self.num_steps)
        )
        process = self._process_after(steps)
        lower, upper, tight = process.epsilon_bounds(self.delta)
        return Report(
            epsilon=upper,
            epsilon_lower=lower,
            pair_is_tight=tight,
            delta=self.delta,
            unit=self.unit,
            relation=_RELATIONS[self.process.relation],  # no steps have none of their own
            sampler=str(self.sampler),
            noise_multiplier=", then ".join(
                f"{round_down(m)} for {count} steps"
                for m, count in _runs(self.noise_multipliers[:steps])
            )
            or "none",
            clipping_norm=self._clipping_text(),
            denominator=self.expected_batch_size,
            steps=steps,
            accountant="PLD by certified Fourier inversion, float64",
            assumptions=_ASSUMPTIONS,
            seeded=dict(self._keys),
        )

    def _clipping_text(self) -> str:
        if self.adaptive is None:
            return f"{self.clipping_norm:g}"
        count_std = self.adaptive.count_std(self.expected_batch_size)
        return (
            f"adaptive, from {self.clipping_norm:g}, quantile {self.adaptive.quantile:g}, noise std "
            f"{count_std:g} on the count"
        )

    def _note(self, purpose: str, key: jax.Array) -> None:
        """Remembers whether a key for this purpose is a bare seed's.

        jax gives the seed s the words (0, s); a key from the operating system has a zero first
        word with probability 2^-32. What was folded or split from a seed cannot be told from it.
        """
        check_key("key", key)
        if is_traced(key):
            return
        seeded = bool(key_data(key)[0] == 0)
        self._keys[purpose] = bool(self._keys[purpose]) or seeded


_RELATIONS = {
    NeighboringRelation.ADD_REMOVE: "add or remove one unit",
    NeighboringRelation.ZERO_OUT: (
        "zero-out: datasets of the same public size, one unit's contribution replaced by nothing"
    ),
    NeighboringRelation.REPLACE_ONE: "replace one unit by another",
}

_ASSUMPTIONS = (
    "dataset size, sampling rate, cap, denominator and number of steps are public",
    "each sampled index is one whole unit; choosing hyper-parameters on the same data is not accounted for",
    "preprocessing does not look at the data, or is accounted for elsewhere",
    "only the noisy updates are released: no per-example loss, norm or metric of the training data",
)


def plan(
    *,
    dataset_size: int,
    expected_batch_size: float,
    num_steps: int,
    clipping_norm: float,
    budget: Budget | None = None,
    noise_multiplier: float | Sequence[float] | None = None,
    delta: float | None = None,
    sampler: Any = None,
    capacity: int | None = None,
    unit: str = _UNIT,
    adaptive: AdaptiveClipping | None = None,
) -> Plan:
    """Returns a Plan: sampler, clipping, noise and accounting of one DP-SGD run.

    Args:
      dataset_size: number of records, public, in [1, 2^31].
      expected_batch_size: expected number of records of a step, in (0, dataset_size]; the sum is
        divided by it.
      num_steps: number of steps, in [1, 10^7].
      clipping_norm: bound on the L2 norm of each record's gradient, in [1e-8, 1e18].
      budget: what the whole run may cost (`accounting.epsilon_budget(3.0, delta=1e-5)`): the noise
        multiplier is calibrated to it. Exactly one of `budget` and `noise_multiplier` is given.
      noise_multiplier: noise std on the sum over the clipping norm, at least 0; or one for each
        step, a schedule fixed in advance.
      delta: delta of the report, in (0, 1); the budget's where that names one, else required.
      sampler: how records are chosen; None: `PoissonSampler` with rate
        expected_batch_size / dataset_size and a cap that costs less than 1 % of epsilon.
      capacity: the cap of the default sampler (rows of a batch); None: chosen. Below the expected
        batch size it is legal, expensive and warned about.
      adaptive: None, or `AdaptiveClipping(...)`: `clipping_norm` is then the first step's, and the
        count of unclipped gradients takes its share of the noise; the price is the same.
      unit: for the report: what one index of the dataset holds, such as "one client with all its
        images". Nobody's data may lie in two units.

    Raises:
      ValueError, TypeError: an argument out of range, a missing one of a pair, a budget that no
        noise multiplier can meet.
    """
    dataset_size = check_count("dataset_size", dataset_size, minimum=1, maximum=2**31)
    check_real(
        "expected_batch_size",
        expected_batch_size,
        high=dataset_size,
        low_open=True,
        high_open=False,
    )
    num_steps = check_count("num_steps", num_steps, minimum=1, maximum=_MOST_STEPS)
    check_real("clipping_norm", clipping_norm, low=NORM_RANGE[0], high=NORM_RANGE[1])
    require(
        (budget is None) != (noise_multiplier is None),
        "pass exactly one of budget= (the noise is calibrated) and noise_multiplier=",
    )
    require(
        sampler is None or capacity is None,
        "capacity= belongs to the default sampler: give it to your sampler instead",
    )
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(
            f"budget must be a Budget such as epsilon_budget(3.0, delta=1e-5), got {budget!r}"
        )
    if sampler is not None and not isinstance(sampler, sampling.Sampler):
        raise TypeError(f"sampler must be one of opake_jax.sampling, got {sampler!r}")
    if adaptive is not None and not isinstance(adaptive, AdaptiveClipping):
        raise TypeError(f"adaptive must be AdaptiveClipping(...) or None, got {adaptive!r}")
    if not isinstance(unit, str):
        raise TypeError(f"unit must say in words whose data is protected, got {unit!r}")
    delta = _delta(budget, delta)
    rate = float(expected_batch_size) / dataset_size
    if capacity is not None:
        capacity = check_count("capacity", capacity, minimum=1, maximum=dataset_size)
        if capacity < expected_batch_size:
            warnings.warn(
                f"capacity {capacity} is below the expected batch size {expected_batch_size:g}: most "
                "batches are cut, which costs much privacy (see the report)",
                stacklevel=2,
            )

    def steps_of(chosen: Any, multiplier: float) -> Process:
        mechanism = accounting.gaussian(multiplier, relation=NeighboringRelation.ZERO_OUT)
        return _steps(chosen, mechanism, num_steps)

    def calibrated(make: Callable[[float], Process]) -> float:
        assert budget is not None
        return float(accounting.calibrate(budget, make, *_SEARCH).param)

    if sampler is None:
        if capacity is None:

            def uncapped(multiplier: float) -> Process:
                mechanism = accounting.gaussian(multiplier, relation=NeighboringRelation.ZERO_OUT)
                return accounting.poisson(mechanism, rate) * num_steps

            if budget is not None:
                typical = calibrated(uncapped)
            else:
                typical = float(np.min(np.asarray(noise_multiplier, np.float64)))
            capacity = _choose_capacity(
                dataset_size,
                rate,
                lambda cap: steps_of(_poisson(dataset_size, rate, cap), typical),
                uncapped(typical),
                delta,
            )
        sampler = _poisson(dataset_size, rate, capacity)
    else:
        require(
            sampler.dataset_size == dataset_size,
            f"the sampler is for {sampler.dataset_size} records, the plan for {dataset_size}",
        )
    if noise_multiplier is None:
        chosen = sampler
        multipliers = (calibrated(lambda nm: steps_of(chosen, nm)),) * num_steps
    else:
        multipliers = _schedule(noise_multiplier, num_steps)
    if adaptive is not None:
        for multiplier in set(multipliers):  # the count may not cost the whole budget
            accounting.gradient_noise_multiplier(
                multiplier, adaptive.count_std(float(expected_batch_size))
            )
    return Plan(
        sampler=sampler,
        num_steps=num_steps,
        clipping_norm=float(clipping_norm),
        noise_multipliers=multipliers,
        expected_batch_size=float(expected_batch_size),
        delta=delta,
        unit=unit,
        adaptive=adaptive,
    )


def _keep_own(options: dict[str, Any]) -> None:
    for name in ("clipping_norm", "denominator"):
        require(name not in options, f"{name} is the plan's: make another plan to change it")


def _steps(sampler: Any, mechanism: Process, count: int) -> Process:
    """Returns the accounting of `count` steps: whole periods of the sampler, a begun one in full."""
    return sampler.process(mechanism) * -(-count // sampler.period)


def _poisson(dataset_size: int, rate: float, capacity: int) -> Any:
    return sampling.PoissonSampler(dataset_size, rate, capacity=capacity)


def _delta(budget: Budget | None, delta: float | None) -> float:
    """Returns the report's delta: the argument, else the budget's."""
    own = getattr(budget, "delta", None)
    if delta is None:
        require(own is not None, f"delta is needed for the report: {_DELTA_REMEDY}")
        return float(own)  # type: ignore[arg-type]
    check_real("delta", delta, high=1.0, low_open=True, remedy=_DELTA_REMEDY)
    return float(delta)


def _schedule(noise_multiplier: float | Sequence[float], num_steps: int) -> tuple[float, ...]:
    """Returns one noise multiplier for each step, checked."""
    several = isinstance(noise_multiplier, (list, tuple)) or np.ndim(noise_multiplier) == 1
    values: list[Any] = list(noise_multiplier) if several else [noise_multiplier]  # type: ignore[arg-type]
    if several:
        require(
            len(values) == num_steps,
            f"noise_multiplier has {len(values)} entries for {num_steps} steps: give one for each",
        )
    for value in values:
        if is_traced(value):
            raise TypeError("noise_multiplier must be concrete: a plan is decided before it runs")
        check_real("noise_multiplier", value)
    return tuple(float(v) for v in values) * (1 if several else num_steps)


def _choose_capacity(
    dataset_size: int,
    rate: float,
    capped: Callable[[int], Process],
    uncapped: Process,
    delta: float,
) -> int:
    """Returns the smallest cap of a growing series that costs less than 1 % of epsilon.

    Each try adds one standard deviation; a cap of the whole dataset truncates nothing. Rounded up
    to a multiple of the device count, so that a sharded batch divides.
    """
    mean = rate * dataset_size
    deviation = max(1.0, math.sqrt(mean))
    allowed = (1 + _CAP_COST) * uncapped.epsilon_at(delta)
    devices = jax.device_count()
    sigmas = _CAP_SIGMAS
    while True:
        capacity = math.ceil((mean + sigmas * deviation) / devices) * devices
        if capacity >= dataset_size:
            return dataset_size
        if not math.isfinite(allowed) or capped(capacity).epsilon_at(delta) <= allowed:
            return capacity
        sigmas += 1.0


def _runs(values: Sequence[float]) -> list[tuple[float, int]]:
    """Returns the values that follow one another unchanged, with how often."""
    runs: list[tuple[float, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    return runs
