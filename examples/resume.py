"""Trains under DP, saves everything with orbax, and goes on where it was killed, bit for bit.

pip install orbax-checkpoint
python examples/resume.py --directory /tmp/run            # kill it, start it again
python examples/resume.py --directory /tmp/run --smoke    # a few steps, for CI

What a run must keep: parameters, optimizer state (it holds the noise key and how many draws were made),
the sampling key, and the step. All of it is plain arrays. The plan comes from the same numbers each
time, and with it the accounting: a resumed run has the same report.

A step that is repeated after a crash is the same step: same records, same noise, same update. Nothing
is released that was not released before, as long as the data has not changed in between. Never give
one saved state to two runs that then differ: their noise is the same, and subtracts out.
"""

import argparse
import os
import pathlib
import signal
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from sklearn.datasets import load_digits

from opake_jax import dpsgd
from opake_jax.random import key, key_data, key_from_data


class State(NamedTuple):
    step: jax.Array
    params: Any
    opt_state: Any
    sampling_key: jax.Array


def loss_fn(params: Any, example: Any) -> jax.Array:
    image, label = example
    logits = jnp.tanh(image @ params["hidden"]) @ params["out"]
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits, label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--directory", type=pathlib.Path, required=True, help="where checkpoints lie"
    )
    parser.add_argument("--smoke", action="store_true", help="10 steps, a checkpoint after each 5")
    parser.add_argument("--seed", type=int, help="for tests only: a seeded run protects nobody")
    parser.add_argument("--kill-at", type=int, help="kill -9 this process after so many steps")
    args = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    data = jnp.asarray(images / 8 - 1, jnp.float32), jnp.asarray(labels)
    plan = dpsgd.plan(
        dataset_size=len(labels),
        expected_batch_size=300,
        num_steps=10 if args.smoke else 200,
        clipping_norm=0.5,
        noise_multiplier=2.0,
        delta=1e-5,
    )
    every = 5 if args.smoke else 20
    grad_fn = plan.clipped_grad(loss_fn)
    tx = plan.optimizer(optax.adam(3e-3), key(args.seed))

    rng = np.random.default_rng(0)  # the first weights are public
    params = {
        "hidden": jnp.asarray(rng.normal(size=(64, 64)) / 8, jnp.float32),
        "out": jnp.zeros((64, 10), jnp.float32),
    }
    state = State(jnp.int32(0), params, tx.init(params), key_data(key(args.seed)))

    @jax.jit
    def train_step(params: Any, opt_state: Any, indices: Any, mask: Any) -> tuple[Any, Any]:
        batch = jax.tree.map(lambda a: a[indices], data)
        clipped, _ = grad_fn(params, batch, mask=mask)
        updates, opt_state = tx.update(clipped, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    with ocp.CheckpointManager(args.directory.resolve()) as manager:
        latest = manager.latest_step()  # a checkpoint that was being written does not count
        if latest is not None:
            state = manager.restore(latest, args=ocp.args.StandardRestore(state))
            print(f"resumed after step {latest}")
        start = int(state.step)
        for indices, mask in plan.batches(key_from_data(state.sampling_key), start=start):
            params, opt_state = train_step(state.params, state.opt_state, indices, mask)
            state = State(state.step + 1, params, opt_state, state.sampling_key)
            if state.step % every == 0:
                manager.save(int(state.step), args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
            if int(state.step) == args.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    total = sum(np.abs(np.asarray(p, np.float64)).sum() for p in jax.tree.leaves(state.params))
    print(f"step {int(state.step)}, sum of absolute weights {float(total)!r}")
    print(f"epsilon {plan.epsilon_after(int(state.step)):.6f} at delta {plan.delta:g}")


if __name__ == "__main__":
    main()
