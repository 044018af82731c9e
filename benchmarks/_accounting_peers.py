"""The accountant's questions, asked of the peers that can be imported.

Each function returns {peer: call}; a peer is imported when it is first called. opake has our names, so that its calls
are ours with the modules exchanged.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

Calls = Mapping[str, Callable[[], Any]]


def _known(**calls: Callable[[], Any]) -> Calls:
    """Returns the calls whose peer is installed."""
    return {name: call for name, call in calls.items() if importlib.util.find_spec(name)}


def _opake() -> tuple[Any, Any]:
    return importlib.import_module("opake.accounting"), importlib.import_module(
        "opake.dpsgd.accounting"
    )


def _dp_event(sigma: float, q: float) -> Any:
    import dp_accounting

    return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))


def _dp_pld(event: Any, steps: int, **options: Any) -> Any:
    from dp_accounting import pld

    return pld.PLDAccountant(**options).compose(event, steps)


def _dp_rdp(sigma: float, q: float, steps: int, delta: float) -> float:
    from dp_accounting import rdp

    return rdp.RdpAccountant().compose(_dp_event(sigma, q), steps).get_epsilon(delta)


def _opacus(kind: str, sigma: float, q: float, steps: int, delta: float) -> float:
    import opacus.accountants

    accountant = getattr(opacus.accountants, kind)()
    accountant.history = [(sigma, q, steps)]
    return accountant.get_epsilon(delta)


def epsilon(sigma: float, q: float, steps: int, delta: float) -> Calls:
    """Returns epsilon of a Poisson-sampled Gaussian by each peer's tight accountant."""

    def opake() -> float:
        _, names = _opake()
        return (names.poisson(names.gaussian(sigma), q) * steps).epsilon_at(delta)

    return _known(
        opake=opake,
        dp_accounting=lambda: _dp_pld(_dp_event(sigma, q), steps).get_epsilon(delta),
        opacus=lambda: _opacus("PRVAccountant", sigma, q, steps, delta),
    )


def delta(sigma: float, q: float, steps: int, at: float) -> Calls:
    """Returns delta at an epsilon."""

    def opake() -> float:
        _, names = _opake()
        return (names.poisson(names.gaussian(sigma), q) * steps).delta_at(at)

    return _known(
        opake=opake, dp_accounting=lambda: _dp_pld(_dp_event(sigma, q), steps).get_delta(at)
    )


def calibration(epsilon: float, delta: float, q: float, steps: int) -> Calls:
    """Returns the noise multiplier for a target epsilon."""

    def opake() -> float:
        accounting, names = _opake()
        return accounting.calibrate(
            accounting.epsilon_budget(epsilon, delta=delta),
            lambda sigma: names.poisson(names.gaussian(sigma), q) * steps,
            param_min=0.1,
            param_max=10.0,
        ).param

    def dp_accounting() -> float:
        import dp_accounting
        from dp_accounting import pld

        return dp_accounting.calibrate_dp_mechanism(
            pld.PLDAccountant,
            lambda sigma: dp_accounting.SelfComposedDpEvent(_dp_event(sigma, q), steps),
            epsilon,
            delta,
            dp_accounting.ExplicitBracketInterval(0.1, 10.0),
            tol=1e-6,
        )

    def opacus() -> float:
        from opacus.accountants.utils import get_noise_multiplier

        return get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=q,
            steps=steps,
            accountant="prv",
        )

    return _known(opake=opake, dp_accounting=dp_accounting, opacus=opacus)


def renyi_epsilon(sigma: float, q: float, steps: int, delta: float) -> Calls:
    """Returns epsilon by Renyi divergences at each peer's own orders."""
    return _known(
        dp_accounting=lambda: _dp_rdp(sigma, q, steps, delta),
        opacus=lambda: _opacus("RDPAccountant", sigma, q, steps, delta),
    )


def renyi_grid(sigmas: Any, rates: Any, steps: int, delta: float) -> Calls:
    """Returns the mean epsilon by Renyi divergences over a grid."""

    def mean(one: Callable[[float, float], float]) -> float:
        return sum(one(float(s), float(q)) for s in sigmas for q in rates) / (
            len(sigmas) * len(rates)
        )

    return _known(
        dp_accounting=lambda: mean(lambda s, q: _dp_rdp(s, q, steps, delta)),
        opacus=lambda: mean(lambda s, q: _opacus("RDPAccountant", s, q, steps, delta)),
    )


def trajectory(sigma: float, q: float, counts: Any, delta: float) -> Calls:
    """Returns epsilon at each of the counts, one accountant after another; the last is handed back."""

    def opake() -> float:
        _, names = _opake()
        step = names.poisson(names.gaussian(sigma), q)
        return [(step * int(n)).epsilon_at(delta) for n in counts][-1]

    def dp_accounting() -> float:
        event = _dp_event(sigma, q)
        return [_dp_pld(event, int(n)).get_epsilon(delta) for n in counts][-1]

    def opacus() -> float:
        return [_opacus("PRVAccountant", sigma, q, int(n), delta) for n in counts][-1]

    return _known(opake=opake, dp_accounting=dp_accounting, opacus=opacus)


def truncated(sigma: float, size: int, batch: int, cap: int, steps: int, delta: float) -> Calls:
    """Returns epsilon of truncated Poisson sampling."""

    def opake() -> float:
        _, names = _opake()
        step = names.poisson(
            names.gaussian(sigma), batch / size, truncated_batch_size=cap, dataset_size=size
        )
        return (step * steps).epsilon_at(delta)

    def dp_accounting() -> float:
        import dp_accounting

        event = dp_accounting.TruncatedSubsampledGaussianDpEvent(
            dataset_size=size,
            sampling_probability=batch / size,
            truncated_batch_size=cap,
            noise_multiplier=sigma,
        )
        relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
        return _dp_pld(event, steps, neighboring_relation=relation).get_epsilon(delta)

    return _known(opake=opake, dp_accounting=dp_accounting)


def parallel(sigma: float, q: float, workers: int, steps: int, delta: float) -> Calls:
    """Returns epsilon of parallel Poisson sampling."""

    def opake() -> float:
        _, names = _opake()
        step = names.parallel_poisson(names.gaussian(sigma), sample_rate=q, num_workers=workers)
        return (step * steps).epsilon_at(delta)

    def dp_accounting() -> float:
        import math

        import dp_accounting

        copies = range(workers + 1)
        event = dp_accounting.MixtureOfGaussiansDpEvent(
            sigma,
            list(copies),
            [math.comb(workers, k) * q**k * (1 - q) ** (workers - k) for k in copies],
        )
        return _dp_pld(event, steps).get_epsilon(delta)

    return _known(opake=opake, dp_accounting=dp_accounting)
