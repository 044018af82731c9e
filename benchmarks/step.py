"""What does a whole private step cost, part by part? Runs unchanged on a CPU, a GPU or a TPU.

    python -m benchmarks.step [--batch 128] [--repeats 9] [--poisson-steps 1000] [--json]
    python -m benchmarks.step --smoke

The model is M2 of the clipping table (four convolutions with GroupNorm on 32 x 32 x 3). Each part is
compiled first, blocked on, and timed in turn with the others in one process; medians of wall time.
Then the whole step (sample, gather, clip, noise, update) runs under one jit with donated state over
Poisson batches of varying size, and the traces are counted.
"""

import argparse
import json
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks import _table
from opake_jax import dpsgd
from opake_jax.random import key

CHANNELS = (3, 64, 128, 128, 256)
DATASET_SIZE = 10_000


def init(rng: jax.Array) -> dict[str, Any]:
    """Returns the parameters of M2."""
    rngs = jax.random.split(rng, 5)
    blocks = [
        {
            "w": jax.random.normal(r, (3, 3, i, o)) / (9 * i) ** 0.5,
            "scale": jnp.ones(o),
            "bias": jnp.zeros(o),
        }
        for r, i, o in zip(rngs, CHANNELS[:-1], CHANNELS[1:], strict=False)
    ]
    return {
        "blocks": blocks,
        "out": jax.random.normal(rngs[4], (CHANNELS[-1], 10)) / CHANNELS[-1] ** 0.5,
    }


def logits(params: dict[str, Any], image: jax.Array) -> jax.Array:
    """Returns the class scores of one image."""
    x = image[None]
    for n, block in enumerate(params["blocks"]):
        x = jax.lax.conv_general_dilated(
            x, block["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        _, h, w, c = x.shape
        grouped = x.reshape(1, h * w, 8, c // 8)
        mean = grouped.mean((1, 3), keepdims=True)
        grouped = (grouped - mean) * jax.lax.rsqrt(grouped.var((1, 3), keepdims=True) + 1e-5)
        x = jax.nn.relu(grouped.reshape(x.shape) * block["scale"] + block["bias"])
        if n < 3:
            x = x.reshape(1, h // 2, 2, w // 2, 2, c).mean((2, 4))
    return x.mean((1, 2))[0] @ params["out"]


def loss_fn(params: dict[str, Any], example: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns the loss of one labelled image."""
    image, label = example
    return optax.losses.softmax_cross_entropy_with_integer_labels(logits(params, image), label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--poisson-steps", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="few rows, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.batch, args.repeats, args.poisson_steps = 4, 2, 20

    # A seeded benchmark protects nobody.
    root = key(0)
    images = jax.random.normal(root, (DATASET_SIZE, 32, 32, 3))
    labels = jax.random.randint(root, (DATASET_SIZE,), 0, 10)
    params = init(root)
    plan = dpsgd.plan(
        dataset_size=DATASET_SIZE,
        expected_batch_size=args.batch,
        num_steps=max(args.poisson_steps, 1),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-5,
    )
    grad_fn = plan.clipped_grad(loss_fn)
    noise, tx = plan.gaussian_noise(root), plan.optimizer(optax.sgd(0.1), root)
    noise_state = noise.init(params)
    indices, mask = plan.sampler.sample(root, 0)
    rows = indices.shape[0]
    batch = (images[:rows], labels[:rows])
    clip = jax.jit(lambda p, b, m: grad_fn(p, b, mask=m)[0])
    clipped = clip(params, batch, mask)

    def plain(p: Any, b: Any) -> Any:
        return jax.grad(lambda q: jax.vmap(loss_fn, (None, 0))(q, b).mean())(p)

    plain = jax.jit(plain)
    add_noise = jax.jit(lambda c, s: noise.update(c, s)[0])
    draw = jax.jit(plan.sampler.sample)
    parts = {
        "non-private gradient": lambda: jax.block_until_ready(plain(params, batch)),
        "clipped gradient": lambda: jax.block_until_ready(clip(params, batch, mask)),
        "noise": lambda: jax.block_until_ready(add_noise(clipped, noise_state)),
        "sampling": lambda: jax.block_until_ready(draw(root, 5)),
    }
    _table.interleaved(parts, 1)
    seconds = _table.interleaved(parts, args.repeats)
    found = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}

    # A linear model: a thousand steps of it take seconds, and the shapes vary as little.
    small_grad = plan.clipped_grad(lambda p, e: jnp.vdot(p["w"], e[0].ravel()) * (1.0 + e[1]))
    traces = []

    def step(state: Any, number: jax.Array) -> Any:
        traces.append(1)
        params, opt_state = state
        indices, mask = plan.sampler.sample(root, number)
        rows = images[indices], labels[indices]
        clipped, _ = small_grad(params, rows, mask=mask)
        updates, opt_state = tx.update(clipped, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    weights = {"w": jnp.zeros(32 * 32 * 3)}
    run = jax.jit(step, donate_argnums=0)
    state = (weights, tx.init(weights))
    for number in range(args.poisson_steps):
        state = run(state, jnp.uint32(number))
    jax.block_until_ready(state)

    plain_ms = found["non-private gradient"]
    result = {
        "device": str(jax.devices()[0].device_kind),
        "jax": jax.__version__,
        "rows": rows,
        "ms": found,
        "spread": {name: _table.spread(times) for name, times in seconds.items()},
        "clipped over non-private": found["clipped gradient"] / found["non-private gradient"],
        "noise and sampling over clipped": (found["noise"] + found["sampling"])
        / found["clipped gradient"],
        "poisson steps": args.poisson_steps,
        "traces": len(traces),
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"device {result['device']}, jax {result['jax']}, {rows} rows a batch")
    lines = [
        [name, f"{ms:.2f}", _table.percent(result["spread"][name]), f"{ms / plain_ms:.3f}"]
        for name, ms in found.items()
    ]
    print(_table.markdown("One private step of M2", ["part", "ms", "spread", "of plain"], lines))
    share = result["noise and sampling over clipped"]
    print(f"\nNoise and sampling over the clipped gradient: {100 * share:.1f} %.")
    print(f"{args.poisson_steps} Poisson steps of varying size: {len(traces)} trace(s).")


if __name__ == "__main__":
    main()
