"""Runs on eight virtual CPU devices and prints what it saw as JSON; `test_sharding.py` judges it."""

import json
import os
import re
import sys

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from opake_jax import dpsgd
from opake_jax.noise import gaussian_noise
from opake_jax.random import key
from opake_jax.types import ClippedSum

COLLECTIVES = r"(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
TX = gaussian_noise(1.0, key=key(3))


def equal(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def largest_collective(text):
    """Returns the number of elements of the largest array that any collective moves."""
    sizes = [0]
    for line in text.splitlines():
        if re.search(rf" {COLLECTIVES}(-start)?\(", line):
            result = re.split(rf" {COLLECTIVES}", line.split("=", 1)[1])[0]
            sizes += [
                int(np.prod([int(n) for n in dims.split(",") if n]))
                for dims in re.findall(r"\[([\d,]*)\]", result)
            ]
    return max(sizes)


def sharded_noise():
    params = {"w": jnp.zeros((1024, 136)), "b": jnp.zeros(24)}
    state = TX.init(params)

    def noise(params, state):
        return TX.update(ClippedSum(params, 1.0, 4.0), state, params)[0]

    one = jax.jit(noise)(params, state)
    explicit = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
    two = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    auto = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    layouts = [
        (explicit, P("d", None)),
        (explicit, P(None, "d")),
        (two, P("d", None)),
        (auto, P("a", "b")),
        (auto, P(("a", "b"), None)),
        (auto, P(None, "a")),
    ]
    for mesh, spec in layouts:
        where = {"w": NamedSharding(mesh, spec), "b": NamedSharding(mesh, P())}
        placed = jax.device_put(params, where), jax.device_put(state, NamedSharding(mesh, P()))
        compiled = jax.jit(noise).lower(*placed).compile()
        out, text = compiled(*placed), compiled.as_text()
        yield {
            "layout": str(spec),
            "bit_equal": equal(out, one),
            "still_sharded": out["w"].sharding.is_equivalent_to(where["w"], 2),
            "whole_leaf_somewhere": "[1024,136]" in text,
            "largest_collective": largest_collective(text),
            "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
        }


def inside_shard_map():
    """Eight devices, each with one part of the batch, one of them with none (report R20)."""
    mesh = jax.make_mesh((8,), ("d",))
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(8, 4096)).astype(np.float32)
    parts[5] = 0  # an empty shard
    state = TX.init({"w": jnp.zeros(4096)})

    def mapped(summed, check_vma):
        def step(part, state):
            clipped = ClippedSum({"w": part[0]}, 1.0, 1.0)
            return TX.update(clipped.psum("d") if summed else clipped, state)[0]["w"][None]

        where = {"mesh": mesh, "in_specs": (P("d"), P()), "out_specs": P("d")}
        return jax.jit(jax.shard_map(step, **where, check_vma=check_vma))

    for check_vma in (True, False):
        right, wrong = mapped(True, check_vma), mapped(False, check_vma)
        for name, data in (("zeros", np.zeros_like(parts)), ("sums", parts)):
            placed = jax.device_put(data, NamedSharding(mesh, P("d")))
            total = ClippedSum({"w": jnp.asarray(data.sum(axis=0))}, 1.0, 1.0)
            whole = TX.update(total, state)[0]["w"]
            out = np.asarray(right(placed, state))
            try:
                unsummed = np.asarray(wrong(placed, state))
                refused = "nan" if np.isnan(unsummed).all() else "no"
            except ValueError as error:
                refused = "raises" if "clipped.psum(axis)" in str(error) else str(error)
            yield {
                "case": f"{name}, check_vma={check_vma}",
                "replicas_equal": bool((out == out[0]).all()),
                "error": float(np.abs(out[0] - whole).max()),
                "std": float((out[0] - data.sum(axis=0)).std()),
                "unsummed": refused,
            }  # fmt: skip


def whole_step():
    """One DP-SGD step: rows over all devices, parameters split over half of the mesh."""
    rng = np.random.default_rng(1)
    params = {
        "a": jnp.asarray(rng.normal(size=(32, 64)) / 6, jnp.float32),
        "b": jnp.asarray(rng.normal(size=(64, 8)) / 8, jnp.float32),
    }
    x, y = rng.normal(size=(64, 32)).astype(np.float32), rng.integers(0, 8, 64)
    mask = np.arange(64) < 50

    def loss_fn(params, example):
        image, label = example
        logits = jnp.tanh(image @ params["a"]) @ params["b"]
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, label)

    plan = dpsgd.plan(
        dataset_size=640,
        expected_batch_size=48,
        num_steps=10,
        clipping_norm=0.7,
        noise_multiplier=1.0,
        delta=1e-5,
    )
    grad_fn, tx = plan.clipped_grad(loss_fn), plan.optimizer(optax.sgd(0.5), key(4))

    def step(params, state, batch, mask):
        clipped, _ = grad_fn(params, batch, mask=mask)
        updates, state = tx.update(clipped, state, params)
        return clipped.tree, optax.apply_updates(params, updates)

    state = tx.init(params)
    clipped, after = jax.jit(step)(params, state, (x, y), mask)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    for name, spec in (
        ("data parallel", P()),
        ("parameters split", P("model", None)),
        ("parameters split as the rows", P("data", None)),
    ):
        where, rows = NamedSharding(mesh, spec), NamedSharding(mesh, P("data"))
        placed = (
            jax.device_put(params, where),
            jax.device_put(state, NamedSharding(mesh, P())),
            jax.device_put((x, y), rows),
            jax.device_put(mask, rows),
        )
        compiled = jax.jit(step, out_shardings=where).lower(*placed).compile()
        sharded_clipped, sharded_after = compiled(*placed)

        def worst(a, b):
            return max(
                float(np.abs(p - q).max() / np.abs(q).max())
                for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
            )

        yield {
            "case": name,
            "clipped_error": worst(sharded_clipped, clipped),
            "step_error": worst(sharded_after, after),
            "largest_collective": largest_collective(compiled.as_text()),
            "largest_parameter": max(p.size for p in params.values()),
        }


SEEN = {
    "noise": list(sharded_noise()),
    "mapped": list(inside_shard_map()),
    "step": list(whole_step()),
}
sys.stdout.write(json.dumps(SEEN) + "\n")
