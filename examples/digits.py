"""Trains a small network on scikit-learn's real handwritten digits under (3, 1e-5)-DP.

python examples/digits.py            # under a minute on two cores
python examples/digits.py --smoke    # a few steps, for CI
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import opake_jax.accounting as acc
from opake_jax import dpsgd
from opake_jax.random import key, tagged


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(jnp.tanh(self.hidden(x)))


def load() -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns 1,500 training and 297 test images; pixels have the public range 0 to 16."""
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 8.0 - 1.0
    x, xt, y, yt = train_test_split(images, labels, train_size=1500, random_state=0)
    return jnp.asarray(x), jnp.asarray(y), jnp.asarray(xt), jnp.asarray(yt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="5 steps, to see that it runs")
    parser.add_argument("--seed", type=int, help="for tests only: a seeded run protects nobody")
    args = parser.parse_args()
    root = key(args.seed)
    x, y, xt, yt = load()

    started = time.perf_counter()
    plan = dpsgd.plan(
        dataset_size=len(x),
        expected_batch_size=750,
        num_steps=5 if args.smoke else 100,
        clipping_norm=0.5,
        budget=acc.epsilon_budget(3.0, delta=1e-5),
    )
    print(f"calibrated in {time.perf_counter() - started:.1f} s: {plan.noise_multiplier=:.4f}")

    # The weights' first values come from a stream of their own; they are public.
    init = nnx.Rngs(tagged(root, "init"))
    graph, params = nnx.split(Network(init), nnx.Param)

    def loss_fn(params, example):
        image, label = example
        logits = nnx.merge(graph, params)(image)
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, label)

    grad_fn = plan.clipped_grad(loss_fn)
    schedule = optax.linear_schedule(1.0, 0.2, plan.num_steps)
    tx = plan.optimizer(optax.sgd(schedule, momentum=0.9), root)
    opt_state = tx.init(params)

    @jax.jit
    def train_step(params, opt_state, indices, mask):
        batch = x[indices], y[indices]
        clipped, _ = grad_fn(params, batch, mask=mask)
        updates, opt_state = tx.update(clipped, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for indices, mask in tqdm(plan.batches(root), total=plan.num_steps, unit="step"):
        params, opt_state = train_step(params, opt_state, indices, mask)

    predictions = nnx.merge(graph, params)(xt).argmax(-1)
    print(f"test accuracy: {100 * float(jnp.mean(predictions == yt)):.1f} %")
    print(plan.report())
    print(f"time: {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
