"""Recomputes the rows that have a closed form, with mpmath at 50 digits.

    python tests/reference/closed_forms.py [--rdp]

prints the worst relative difference from the stored values, and fails above 1e-14 (`--rdp`: also the
412 Renyi rows; minutes).
"""

import argparse
import json
import pathlib

from mpmath import binomial, erfc, exp, expm1, log, log1p, mp, mpf, pi, sqrt

mp.dps = 50
ROWS = json.loads((pathlib.Path(__file__).parent / "accounting_reference.json").read_text())[1:]


def cdf(x):
    """Returns the standard normal distribution function."""
    return erfc(-x / sqrt(mpf(2))) / 2


def decreasing_root(f, low, high, steps=220):
    """Returns the root of a decreasing function, by bisection."""
    low, high = mpf(low), mpf(high)
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) > 0 else (low, middle)
    return (low + high) / 2


def quantile(p):
    """Returns the standard normal quantile."""
    return decreasing_root(lambda x: p - cdf(x), -60, 60)


# --- Gaussian (Balle and Wang 2018, arXiv 1805.06530, theorem 8; Dong, Roth, Su 2019) ------------


def gaussian_delta(mu, epsilon):
    return cdf(mu / 2 - epsilon / mu) - exp(epsilon) * cdf(-mu / 2 - epsilon / mu)


def gaussian(params, query):
    mu = sqrt(mpf(params["T"])) / mpf(params["sigma"])
    match query["type"]:
        case "epsilon":
            target = mpf(query["delta"])
            if gaussian_delta(mu, mpf(0)) <= target:
                return mpf(0)
            top = mu * mu / 2 + 60 * mu + 10
            return decreasing_root(lambda e: log(gaussian_delta(mu, e)) - log(target), 0, top)
        case "delta":
            return gaussian_delta(mu, mpf(query["epsilon"]))
        case "advantage":
            return 2 * cdf(mu / 2) - 1
        case "beta":
            return cdf(quantile(1 - mpf(query["alpha"])) - mu)
        case "risk":
            prior = mpf(query["prior"])
            t = mu / 2 + log(prior / (1 - prior)) / mu
            return prior * cdf(-t) + (1 - prior) * cdf(t - mu)


# --- One step, one direction ----------------------------------------------------------------------


def mixture_delta(std, probabilities, epsilon, direction):
    """Returns H(sum_k p_k N(k) || N(0)) at e^epsilon ("remove"), or of the swapped pair ("add")."""

    def loss(x):
        return log(sum(p * exp((2 * k * x - k * k) / (2 * std * std)) for k, p in probabilities))

    low, high = -60 * std - 60 - std**2 * epsilon, 60 * std + 60 + std**2 * epsilon
    floor = log(probabilities[0][1])
    if direction == "remove":
        if floor >= epsilon:
            return -expm1(epsilon)
        x = decreasing_root(lambda x: epsilon - loss(x), low, high, 260)
        return sum(p * cdf((k - x) / std) for k, p in probabilities) - exp(epsilon) * cdf(-x / std)
    if -floor <= epsilon:
        return mpf(0)
    x = decreasing_root(lambda x: -epsilon - loss(x), low, high, 260)
    return cdf(x / std) - exp(epsilon) * sum(p * cdf((x - k) / std) for k, p in probabilities)


def poisson_gaussian(params, query):
    q = mpf(params["q"])
    parts = [(0, 1 - q), (1, q)] if q < 1 else [(0, mpf(0)), (1, q)]
    return mixture_delta(mpf(params["sigma"]), parts, mpf(query["epsilon"]), params["direction"])


def parallel_poisson(params, query):
    q, workers = mpf(params["q"]), params["W"]
    parts = [
        (k, binomial(workers, k) * q**k * (1 - q) ** (workers - k)) for k in range(workers + 1)
    ]
    return mixture_delta(mpf(params["sigma"]), parts, mpf(query["epsilon"]), params["direction"])


def laplace(params, query):
    return max(mpf(0), -expm1((mpf(query["epsilon"]) - 1 / mpf(params["b"])) / 2))


def fixed_size_wor(params, query):
    """Balle, Barthe, Gaboardi 2018 (arXiv 1807.01647), theorem 9, on a Gaussian of sensitivity 2."""
    q = mpf(params["sample_size"]) / params["dataset_size"]
    inner = log1p(expm1(mpf(query["epsilon"])) / q)
    return q * gaussian_delta(2 / mpf(params["sigma"]), inner)


# --- Renyi divergence of the sampled Gaussian (Mironov, Talwar, Zhang 2019, arXiv 1908.10530) -----


def rdp_poisson_gaussian(params, _query):
    q, std, order = mpf(params["q"]), mpf(params["sigma"]), mpf(params["order"])
    if q == 1:
        return order / (2 * std * std)
    if order == int(order):
        n = int(order)
        moment = sum(
            binomial(n, k) * q**k * (1 - q) ** (n - k) * exp(mpf(k * k - k) / (2 * std * std))
            for k in range(n + 1)
        )
        return log(moment) / (order - 1)
    # The trapezoid rule converges geometrically here; halving the step changes 1e-39.
    step, low = min(std * std, std) / 6, -16 * std
    count = int((order - 2 * low) / step) + 1
    moment = mpf(0)
    for i in range(count + 1):
        x = low + step * i
        ratio = log(1 - q + q * exp((2 * x - 1) / (2 * std * std)))
        moment += exp(-x * x / (2 * std * std) + order * ratio)
    return log(moment * step / (std * sqrt(2 * pi))) / (order - 1)


def value(row):
    """Returns the row's exact value, or None if it has no closed form here."""
    kind, params = row["kind"], row["params"]
    closed = kind in ("gaussian", "rdp_poisson_gaussian") or (
        row["query"]["type"] == "delta" and params.get("T") == 1
    )
    return globals()[kind](params, row["query"]) if closed else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rdp", action="store_true")
    rdp = parser.parse_args().rdp
    worst, count = (mpf(0), ""), 0
    for row in ROWS:
        if row["kind"] == "rdp_poisson_gaussian" and not rdp:
            continue
        exact = value(row)
        if exact is None:
            continue
        count += 1
        for stored in (mpf(row["low"]), mpf(row["high"])):
            error = abs(stored - exact) / exact if exact else abs(stored)
            worst = max(worst, (error, row["id"]))
    print(f"{count} rows; worst relative difference {mp.nstr(worst[0], 3)} ({worst[1]})")
    if worst[0] > mpf("1e-14"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
