"""What is compared in the clipping benchmark: the non-private baselines, our engines, and the peers that can be imported.

Each variant maps a loss to a function `(params, batch) -> gradient tree`.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from opake_jax import clipping
from opake_jax.clipping._ghost._sums import Operands, summand
from opake_jax.clipping._ghost._trace import gradient_forms
from opake_jax.clipping._problem import Problem

try:
    from optax import contrib as optax_contrib
except ImportError:
    optax_contrib = None
try:
    from jax_privacy import clipping as jax_privacy_clipping
except ImportError:
    jax_privacy_clipping = None

CLIPPING_NORM = 0.5


# Non-private baselines: the gradient of the summed loss.


def plain(loss_fn):
    """One batched step, as everybody writes it."""
    return jax.grad(lambda p, b: jnp.sum(jax.vmap(loss_fn, (None, 0))(p, b)))


def scanned(loss_fn, size):
    """Microbatches of this size in a scan."""

    def run(params, batch):
        parts = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), batch)
        step = lambda total, part: (  # noqa: E731
            jax.tree.map(jnp.add, total, plain(loss_fn)(params, part)),
            None,
        )
        return lax.scan(step, jax.tree.map(jnp.zeros_like, params), parts)[0]

    return run


def flattened(loss_fn):
    """One batched step whose weight gradients are single products over (example, position) behind a barrier."""

    def run(params, batch):
        leaves, treedef = jax.tree.flatten(params)
        problem = Problem(
            lambda leaves, example, key: (loss_fn(treedef.unflatten(leaves), example), None),
            lambda norm: norm,
            (0,) * len(leaves),
        )
        sums = []

        def one(example):
            _, _, forms, arrange = gradient_forms(problem, leaves, example, None)
            operands = Operands(arrange)
            sums[:] = [summand(form, None, operands) for form in forms]
            return operands.varying, operands.fixed

        varying, fixed = jax.vmap(one, out_axes=(0, None))(batch)
        ones = jnp.ones(len(jax.tree.leaves(batch)[0]))
        out = [s(ones, varying, fixed).reshape(x.shape) for s, x in zip(sums, leaves, strict=True)]
        return treedef.unflatten(out)

    return run


def host_chunks(function, size):
    """Separate calls of a fixed small chunk, sums donated."""

    @functools.partial(jax.jit, donate_argnums=0)
    def add(total, params, part):
        return jax.tree.map(jnp.add, total, function(params, part))

    def run(params, batch):
        total = jax.tree.map(jnp.zeros_like, params)
        for start in range(0, len(jax.tree.leaves(batch)[0]), size):
            total = add(total, params, jax.tree.map(lambda x, s=start: x[s : s + size], batch))
        return total

    return run


# Private variants.


def ours(loss_fn, engine):
    """Our clipped sum."""
    grad_fn = clipping.clipped_grad(loss_fn, CLIPPING_NORM, engine=engine)
    return lambda params, batch: grad_fn(params, batch)[0].tree


def naive(loss_fn):
    """vmap(grad), clip, contract: the best one can write by hand in four lines."""

    def run(params, batch):
        gradients = jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)
        squares = [jnp.sum(jnp.square(g), range(1, g.ndim)) for g in jax.tree.leaves(gradients)]
        factors = jnp.minimum(1.0, CLIPPING_NORM / jnp.sqrt(sum(squares)))
        return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1), gradients)

    return run


def optax_peer(loss_fn):
    """optax.contrib, without noise; it divides by the batch size."""

    def run(params, batch):
        gradients = jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)
        dp = optax_contrib.differentially_private_aggregate(
            CLIPPING_NORM, 0.0, key=jax.random.key(0)
        )
        return dp.update(gradients, dp.init(params), params)[0]

    return run


def jax_privacy_peer(loss_fn, size):
    """jax_privacy, in microbatches of this size (None: all at once)."""
    return jax_privacy_clipping.clipped_grad(
        loss_fn, l2_clip_norm=CLIPPING_NORM, keep_batch_dim=False, microbatch_size=size
    )


def variants(case, every):
    """Returns the variants of one model by name; `every` adds those that are not in the issue's table."""
    f = case.loss_fn
    out = {"nonprivate plain": plain(f), "nonprivate flattened": flattened(f)}
    for size in case.scan_sizes:
        out[f"nonprivate scan {size}"] = scanned(f, size)
    out |= {"auto": ours(f, clipping.Auto()), "naive": naive(f)}
    if every:
        out |= {
            "ghost": ours(f, clipping.Ghost()),
            "ghost second backward": ours(f, clipping.Ghost(second_backward=True)),
            "vmap": ours(f, clipping.Vmap()),
        }
        for size in case.scan_sizes:
            out[f"microbatched {size} vmap"] = ours(f, clipping.Microbatched(size, clipping.Vmap()))
            engine = clipping.Microbatched(size, clipping.Ghost())
            out[f"microbatched {size} ghost"] = ours(f, engine)
    if optax_contrib is not None:
        out["peer optax"] = optax_peer(f)
    if jax_privacy_clipping is not None:
        for size in case.peer_sizes:
            out[f"peer jax_privacy {size}"] = jax_privacy_peer(f, size)
    for size in case.chunk_sizes:
        out[f"nonprivate chunks {size}"] = host_chunks(plain(f), size)
        out[f"chunked {size}"] = ours(f, clipping.Chunked(size))
    return out
