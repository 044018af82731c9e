"""One DP-SGD run over several processes: each holds a part of the rows, all hold the same model.

On a GPU or TPU cluster start this program once on each host; `jax.distributed.initialize()` finds the
others by itself (TPU pods, SLURM). By hand, here two processes on one machine:

python examples/multihost.py --coordinator localhost:12321 --processes 2 --process 0 &
python examples/multihost.py --coordinator localhost:12321 --processes 2 --process 1

Three things keep the mechanism the one that was accounted for:
- All processes use the *same* keys. Process 0 draws them and the others receive them. Every process then
  draws the same batch and the same noise, which is added once, to the sum over all devices.
- The rows are sharded, not drawn anew by each process: one Poisson draw for the whole batch. (Workers that
  each draw for themselves are `ParallelPoissonSampler`, at its own, higher price.)
- The denominator is the expected size of the whole batch.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

from opake_jax import dpsgd
from opake_jax.random import key, key_data, key_from_data, tagged


def loss_fn(params: Any, example: Any) -> jax.Array:
    image, label = example
    logits = jnp.tanh(image @ params["hidden"]) @ params["out"]
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits, label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coordinator", help="host:port of process 0; not needed on a cluster")
    parser.add_argument("--processes", type=int, help="how many; not needed on a cluster")
    parser.add_argument("--process", type=int, help="which one this is; not needed on a cluster")
    parser.add_argument("--single", action="store_true", help="one process, to compare with")
    parser.add_argument("--smoke", action="store_true", help="3 steps, for CI")
    parser.add_argument("--seed", type=int, help="for tests only: a seeded run protects nobody")
    args = parser.parse_args()
    if not args.single:
        jax.distributed.initialize(args.coordinator, args.processes, args.process)

    words = multihost_utils.broadcast_one_to_all(np.asarray(key_data(key(args.seed))))
    root = key_from_data(np.asarray(words))
    mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(AxisType.Auto,))
    rows, everywhere = NamedSharding(mesh, P("rows")), NamedSharding(mesh, P())

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 8 - 1).astype(np.float32), labels.astype(np.int32)
    # The default capacity is a multiple of jax.device_count(): every device gets as many rows.
    plan = dpsgd.plan(
        dataset_size=len(labels),
        expected_batch_size=256,
        num_steps=3 if args.smoke else 100,
        clipping_norm=0.5,
        noise_multiplier=2.0,
        delta=1e-5,
    )
    grad_fn = plan.clipped_grad(loss_fn)
    tx = plan.optimizer(optax.sgd(1.0, momentum=0.9), tagged(root, "noise of this run"))

    rng = np.random.default_rng(0)  # the first weights are public
    params = {
        "hidden": (rng.normal(size=(64, 64)) / 8).astype(np.float32),
        "out": np.zeros((64, 10), np.float32),
    }
    # Each process hands over the same host arrays; every device keeps a copy.
    params = jax.device_put(params, everywhere)
    opt_state = jax.jit(tx.init, out_shardings=everywhere)(params)

    @jax.jit
    def train_step(params: Any, opt_state: Any, batch: Any, mask: Any) -> tuple[Any, Any]:
        clipped, _ = grad_fn(params, batch, mask=mask)  # summed over all devices
        updates, opt_state = tx.update(clipped, opt_state, params)  # noise, once
        return optax.apply_updates(params, updates), opt_state

    def shard(values: np.ndarray) -> jax.Array:
        """Places on each device its rows of an array that all processes hold."""
        return jax.make_array_from_callback(values.shape, rows, lambda part: values[part])

    for indices, mask in plan.batches(tagged(root, "batches of this run")):
        batch = shard(images[indices]), shard(labels[indices])
        params, opt_state = train_step(params, opt_state, batch, shard(mask))

    weights = jax.tree.map(lambda p: np.asarray(p.addressable_data(0), np.float64), params)
    noise_state = opt_state[0]
    print(
        f"process {jax.process_index()} of {jax.process_count()}, {jax.device_count()} devices: "
        f"{int(noise_state.count.addressable_data(0))} draws, "
        f"sum of absolute weights {float(sum(np.abs(w).sum() for w in weights.values()))!r}"
    )


if __name__ == "__main__":
    main()
