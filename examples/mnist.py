"""Classifies MNIST: fixed wavelets and a linear layer at epsilon 3, or a small network at 2.4.

The ghost engine computes the clipped sum without holding one gradient per image, and `Chunked` runs
it over small pieces of a batch in a host loop, which is the fastest order on a CPU.

python examples/mnist.py                # scattering features (1 GB of memory), linear: 98.6 %
python examples/mnist.py --model cnn    # 26,010 weights, learned end to end: 98.1 %
python examples/mnist.py --smoke        # a few steps, for CI
"""

import argparse
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _data import DATA_DIR, Split, compile_fast, mnist
from _scattering import features
from flax import nnx
from tqdm import tqdm

import opake_jax.accounting as acc
from opake_jax import dpsgd
from opake_jax.clipping import Chunked, Ghost
from opake_jax.random import key, tagged

# Uniform in +-1/sqrt(inputs), where the published runs of this network start.
INIT = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Linear(nnx.Module):
    """A linear layer on scattering features (Tramer and Boneh 2021, arXiv:2011.11660)."""

    def __init__(self, rngs: nnx.Rngs):
        self.out = nnx.Linear(81 * 7 * 7, 10, kernel_init=INIT, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(x)


class Network(nnx.Module):
    """The tanh network of Papernot et al. (2020, arXiv:2007.14191)."""

    def __init__(self, rngs: nnx.Rngs):
        def conv(inputs: int, outputs: int, width: int, padding: Any) -> nnx.Conv:
            options = {"strides": 2, "padding": padding, "kernel_init": INIT}
            return nnx.Conv(inputs, outputs, (width, width), **options, rngs=rngs)

        self.first, self.second = conv(1, 16, 8, 2), conv(16, 32, 4, "VALID")
        self.hidden = nnx.Linear(512, 32, kernel_init=INIT, rngs=rngs)
        self.out = nnx.Linear(32, 10, kernel_init=INIT, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = pool(jnp.tanh(self.first(x[..., None])))
        x = pool(jnp.tanh(self.second(x)))
        x = jnp.tanh(self.hidden(x.reshape(*x.shape[:-3], 512)))
        return self.out(x)


def pool(x: jax.Array) -> jax.Array:
    """Returns 2x2 maxima at stride 1: on a CPU slices are 10 times as fast as `reduce_window`."""
    x = jnp.maximum(x[..., 1:, :, :], x[..., :-1, :, :])
    return jnp.maximum(x[..., 1:, :], x[..., :-1, :])


class Recipe(NamedTuple):
    """One published way to train on MNIST."""

    model: type[nnx.Module]
    epsilon: float
    batch: int
    epochs: int
    learning_rate: float
    chunk: int


RECIPES = {
    "scattering": Recipe(Linear, 3.0, 4096, 40, 8.0, 512),
    "cnn": Recipe(Network, 2.4, 1024, 50, 1.0, 32),
}


def load(args: argparse.Namespace) -> Split:
    """Returns images, or their scattering features, few of them in a smoke run."""
    data = mnist(args.data_dir)
    if args.smoke:
        compile_fast()
        data = Split(data.x[:1500], data.y[:1500], data.xt[:250], data.yt[:250])
    return data if args.model == "cnn" else data._replace(x=features(data.x), xt=features(data.xt))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=RECIPES, default="scattering")
    parser.add_argument("--data-dir", type=pathlib.Path, default=DATA_DIR)
    parser.add_argument("--smoke", action="store_true", help="5 steps, to see that it runs")
    parser.add_argument("--seed", type=int, help="for tests only: a seeded run protects nobody")
    args = parser.parse_args()
    started = time.perf_counter()
    data = load(args)
    root, recipe = key(args.seed), RECIPES[args.model]

    batch = min(recipe.batch, len(data.x) // 4)
    plan = dpsgd.plan(
        dataset_size=len(data.x),
        expected_batch_size=batch,
        num_steps=5 if args.smoke else recipe.epochs * len(data.x) // batch,
        clipping_norm=0.1,
        budget=acc.epsilon_budget(recipe.epsilon, delta=1e-5),
    )
    print(f"ready after {time.perf_counter() - started:.0f} s: {plan.noise_multiplier=:.4f}")

    init = nnx.Rngs(tagged(root, "init"))
    graph, params = nnx.split(recipe.model(init), nnx.Param)

    def loss_fn(params, example):
        image, label = example
        logits = nnx.merge(graph, params)(image)
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, label)

    grad_fn = plan.clipped_grad(loss_fn, engine=Chunked(recipe.chunk, engine=Ghost()))
    tx = plan.optimizer(optax.sgd(recipe.learning_rate, momentum=0.9), root)
    opt_state = tx.init(params)

    @jax.jit
    def update(params, opt_state, average, clipped, step):
        updates, opt_state = tx.update(clipped, opt_state, params)
        params = optax.apply_updates(params, updates)
        average = optax.incremental_update(params, average, 9 / (step + 9))  # costs no privacy
        return params, opt_state, average

    average = params
    for step, (indices, mask) in enumerate(tqdm(plan.batches(root), total=plan.num_steps)):
        rows = np.asarray(indices)
        clipped, _ = grad_fn(params, (data.x[rows], data.y[rows]), mask=mask)
        params, opt_state, average = update(params, opt_state, average, clipped, step)

    predict = jax.jit(lambda x: nnx.merge(graph, average)(x).argmax(-1))
    parts = [predict(data.xt[i : i + 250]) for i in range(0, len(data.xt), 250)]
    print(f"test accuracy: {100 * np.mean(np.concatenate(parts) == data.yt):.2f} %")
    print(plan.report())
    print(f"time: {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
