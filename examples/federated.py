"""Learns digits from 1,000 clients, each with 60 images of few kinds, under client-level DP.

The privacy unit is the client: all that one holder of data ever sends is hidden, not one image of
it. About 10 clients, drawn by Poisson sampling, take part in a round. Each trains on its own images
for an epoch; how far its weights moved is clipped, summed over the clients and noised. The server
that does this is trusted: what it releases, the model of every round, is private.

python examples/federated.py            # under a minute on two cores
python examples/federated.py --smoke    # a few rounds, for CI
"""

import argparse
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _data import DATA_DIR, compile_fast, mnist
from tqdm import tqdm

import opake_jax.accounting as acc
from opake_jax import dpsgd
from opake_jax.random import key

# One local epoch: so many steps of this rate. A client's images are split evenly over them.
LOCAL_STEPS, LOCAL_RATE = 6, 0.2


def halved(images: np.ndarray) -> np.ndarray:
    """Returns 14x14 means of 2x2 pixels, flat: fewer weights, so less noise for 1,000 clients."""
    return images.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196) - 0.15


def clients(x: np.ndarray, y: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Returns each client's batches: images (clients, steps, batch, 196), labels without the 196.

    Images sorted by label are cut into shards and every client is dealt two (McMahan et al. 2017,
    arXiv:1602.05629): most hold only two kinds of digit.
    """
    shard = 30 if len(x) == 60_000 else 3  # 1,000 clients of 60, or 250 of 6 small digits
    shards = np.argsort(y, kind="stable").reshape(-1, shard)
    deal = np.random.default_rng(0).permutation(len(shards)).reshape(-1, 2)
    owned = shards[deal].reshape(len(deal), LOCAL_STEPS, -1)
    return jnp.asarray(x[owned]), jnp.asarray(y[owned])


def loss_fn(params, batch):
    images, labels = batch
    logits = images @ params["kernel"] + params["bias"]
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def client_update(params, client):
    """Returns what a client sends: its weights before the local epoch minus those after it."""

    def step(now, batch):
        gradient = jax.grad(loss_fn)(now, batch)
        return jax.tree.map(lambda w, g: w - LOCAL_RATE * g, now, gradient), None

    after, _ = jax.lax.scan(step, params, client)
    return jax.tree.map(jnp.subtract, params, after)


def surrogate(params, client):
    """Returns a scalar whose gradient is the client's update, so that `clipped_grad` clips that."""
    update = client_update(jax.lax.stop_gradient(params), client)
    return optax.tree.vdot(params, update)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=pathlib.Path, default=DATA_DIR)
    parser.add_argument("--smoke", action="store_true", help="5 rounds, to see that it runs")
    parser.add_argument("--seed", type=int, help="for tests only: a seeded run protects nobody")
    args = parser.parse_args()
    if args.smoke:
        compile_fast()
    root = key(args.seed)
    started = time.perf_counter()
    data = mnist(args.data_dir)
    population = clients(halved(data.x), data.y)

    plan = dpsgd.plan(
        dataset_size=len(population[1]),
        expected_batch_size=10,
        num_steps=5 if args.smoke else 300,
        clipping_norm=0.3,
        budget=acc.epsilon_budget(4.0, delta=1e-4),
        unit="one client with all its images",
    )
    params = {"kernel": jnp.zeros((196, 10)), "bias": jnp.zeros(10)}
    grad_fn = plan.clipped_grad(surrogate)
    server = optax.sgd(optax.linear_schedule(3.0, 0.0, plan.num_steps))
    tx = plan.optimizer(server, root)
    opt_state = tx.init(params)

    @jax.jit
    def server_round(params, opt_state, chosen, mask):
        taking_part = jax.tree.map(lambda a: a[chosen], population)
        clipped, _ = grad_fn(params, taking_part, mask=mask)
        updates, opt_state = tx.update(clipped, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for chosen, mask in tqdm(plan.batches(root), total=plan.num_steps, unit="round"):
        params, opt_state = server_round(params, opt_state, chosen, mask)

    predictions = (halved(data.xt) @ params["kernel"] + params["bias"]).argmax(-1)
    print(f"test accuracy: {100 * float(jnp.mean(predictions == data.yt)):.1f} %")
    print(plan.report())
    print(f"time: {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
