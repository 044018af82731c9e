"""The Gaussian mechanism as an optax transform: noise for one ClippedSum, then an ordinary update."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from opake_jax import _threefry
from opake_jax._checks import check_key, check_real
from opake_jax.noise._normal import STD_INFLATION, normal
from opake_jax.random import key_data, tag_words, tagged
from opake_jax.types import ClippedSum, Moments, PyTree

__all__ = ["GaussianNoiseState", "gaussian_noise"]


class GaussianNoiseState(NamedTuple):
    """Where the noise stream stands; plain arrays, so that every checkpointer can hold it.

    Two updates made from one state get the same noise: whoever sees both can subtract it. Keep the
    state that `update` returns, and after a restore never release again a step already released.

    Attributes:
      key_data: uint32, shape (2,): the words of the noise key. Secret: they reveal all noise.
      count: int32 scalar: the number of updates made so far. Past 2^31 - 1 it wraps to negative
        numbers, which are distinct steps too.
    """

    key_data: jax.Array
    count: jax.Array  # type: ignore[assignment]  # tuple.count is not missed


def gaussian_noise(noise_multiplier: Any, *, key: jax.Array) -> optax.GradientTransformation:
    """Returns the transform that turns a `ClippedSum` into a private update.

    The update is (sum + noise) / denominator with noise of standard deviation
    noise_multiplier * sensitivity on each entry of the sum; a grouped sum gets
    noise_multiplier * sensitivity[g] / sqrt(share[g]), the shares normalised to sum 1. One update
    costs `accounting.gaussian(noise_multiplier)` for each participation of a privacy unit.

    It stands first in `optax.chain`: whatever follows is post-processing. A transform that changed
    the ClippedSum on its way here makes the update NaN.

    Args:
      noise_multiplier: noise std over sensitivity, at least 0. May be traced (then a negative,
        infinite or NaN value makes the update NaN). 0 adds no noise: for tests of a training loop.
      key: a typed threefry key, `opake_jax.random.key()`; copied by `init`.

    Returns:
      `init(params)` gives a `GaussianNoiseState`; `update(clipped, state, params=None)` gives the
      update and the next state. `None` leaves stay None, so give a frozen parameter as None to
      `init` and `update` too, or carry it past the update. Noise is drawn and added in float32 (or
      added in float64 to a float64 sum); `lift` is applied next; the cast to the parameters' dtype
      is last. `Moments` stay as they are, for an optimizer that takes both (`paired_adam`).

    Raises:
      TypeError: `key` is no key; `update` got something else than a ClippedSum.
      ValueError: a concrete noise multiplier that is negative, infinite or NaN; two leaves whose
        paths hash alike; a sum that still differs between the devices of a `shard_map` (with
        `check_vma=False` the update is NaN instead).

    Guarantee: the draw for a leaf is a function of (key, count, path of the leaf, index in the
    leaf): not of the mesh, of x64, of the leaf's dtype or of the other leaves.

    Reference: Dwork and Roth 2014, appendix A; Abadi et al. 2016, arXiv 1607.00133.

    >>> from opake_jax.random import key
    >>> tx = gaussian_noise(1.0, key=key(0))
    >>> clipped = ClippedSum({"w": jnp.zeros(2)}, sensitivity=1.0, denominator=4.0)
    >>> update, state = tx.update(clipped, tx.init({"w": jnp.zeros(2)}))
    >>> update["w"].shape, int(state.count)
    ((2,), 1)
    """
    check_key("key", key)
    check_real("noise_multiplier", noise_multiplier)

    def init(params: PyTree) -> GaussianNoiseState:
        _path_words(params)  # a collision shows before the first step
        # A new array, so that donating the state cannot delete the caller's key.
        return GaussianNoiseState(key_data(tagged(key, "noise")), jnp.zeros((), jnp.int32))

    def update(
        clipped: ClippedSum, state: GaussianNoiseState, params: PyTree = None
    ) -> tuple[PyTree, GaussianNoiseState]:
        if not isinstance(clipped, ClippedSum):
            raise TypeError(
                f"gaussian_noise takes a ClippedSum, got {type(clipped).__name__}: it must stand "
                "first in the chain, before anything that turns the sum into a plain tree. "
                "clipping.clipped_grad returns one; around a sum of your own, whose sensitivity "
                "you can prove, write ClippedSum(tree, sensitivity, denominator)"
            )
        _reject_partial_sums(clipped.tree)
        noisy = _release_once(clipped, jnp.asarray(noise_multiplier, jnp.float32), state)
        if clipped.lift is not None:
            noisy = clipped.lift(noisy)
        if params is not None and not isinstance(noisy, Moments):
            noisy = _cast_like(noisy, params)
        return noisy, GaussianNoiseState(state.key_data, state.count + jnp.int32(1))

    return optax.GradientTransformation(init, update)


@jax.jit  # op by op, the draws would differ in the last bit from those of a jitted step
def _release(clipped: ClippedSum, noise_multiplier: jax.Array, state: GaussianNoiseState) -> PyTree:
    """Returns (sum + noise) / denominator."""
    leaves, treedef = jax.tree.flatten(clipped.tree)
    stds = _leaf_stds(clipped, noise_multiplier, len(leaves))
    keys = _leaf_keys(state, _path_words(clipped.tree))
    noisy = []
    for leaf, std, key_words in zip(leaves, stds, keys, strict=True):
        noise = std * normal(key_words, leaf.shape, _explicit_sharding(leaf))
        total = leaf + noise.astype(leaf.dtype)
        noisy.append(total / clipped.denominator.astype(leaf.dtype))
    return jax.tree.unflatten(treedef, noisy)


@jax.custom_batching.custom_vmap
def _release_once(
    clipped: ClippedSum, noise_multiplier: jax.Array, state: GaussianNoiseState
) -> PyTree:
    return _release(clipped, noise_multiplier, state)


@_release_once.def_vmap
def _release_lanes(
    size: int,
    batched: Any,
    clipped: ClippedSum,
    noise_multiplier: jax.Array,
    state: GaussianNoiseState,
) -> tuple[PyTree, PyTree]:
    """Releases the sums of several lanes, each of which needs noise of its own: the difference of two would have none."""
    several_sums, several_keys = (any(jax.tree.leaves(batched[i])) for i in (0, 2))
    if several_sums and size > 1:
        if not several_keys:
            raise ValueError(
                "vmap over the noise step, with one key for all lanes: their noise would be the same, and cancel. Give each lane a "
                "state of its own: states = jax.vmap(lambda key, p: gaussian_noise(m, key=key).init(p))(keys, params)"
            )
        words = [
            jnp.ravel(state.count)[:, None],
            jnp.reshape(state.key_data, (-1, state.key_data.shape[-1])),
        ]
        rows = jnp.concatenate(
            [jnp.broadcast_to(w.astype(jnp.uint32), (size, w.shape[1])) for w in words], 1
        )
        order = rows[jnp.lexsort(rows.T)]
        alike = jnp.any(jnp.all(order[1:] == order[:-1], axis=1))
        noise_multiplier = jnp.where(alike, jnp.nan, noise_multiplier)
    axes = jax.tree.map(lambda each: 0 if each else None, tuple(batched))
    out = jax.vmap(_release, in_axes=axes, axis_size=size)(clipped, noise_multiplier, state)
    return out, jax.tree.map(lambda _: True, out)


def _explicit_sharding(leaf: jax.Array) -> Any:
    """Returns the sharding that is part of the leaf's type: under explicit axes its noise needs it too."""
    sharding = jax.typeof(leaf).sharding
    return None if sharding.is_fully_replicated else sharding


def _leaf_stds(clipped: ClippedSum, noise_multiplier: jax.Array, count: int) -> list[jax.Array]:
    """Returns each leaf's noise std on the sum, float32; NaN if the sum must not be released."""
    std = noise_multiplier * clipped.sensitivity * np.float32(STD_INFLATION)
    if clipped.groups is not None:
        groups = clipped.sensitivity.shape[0]
        shares = clipped.shares
        share = jnp.float32(1 / groups) if shares is None else shares / jnp.sum(shares)
        std = std / jnp.sqrt(share)
    valid = clipped.is_intact() & _same_on_all_devices(clipped)
    valid &= (noise_multiplier >= 0) & jnp.isfinite(std)
    std = jnp.where(valid, std, jnp.nan).astype(jnp.float32)
    return [std] * count if clipped.groups is None else [std[g] for g in clipped.groups]


def _leaf_keys(state: GaussianNoiseState, path_words: np.ndarray) -> list[jax.Array]:
    """Returns each leaf's key words: root -> step -> path."""
    step = _threefry.fold(state.key_data, state.count)
    high = _threefry.fold(step[:, None], path_words[:, 0])
    # Behind a barrier: fused into each leaf's draw, the folds would be compiled again for each leaf.
    keys = jax.lax.optimization_barrier(_threefry.fold(high, path_words[:, 1]))
    return [keys[:, i] for i in range(len(path_words))]


def _path_words(tree: PyTree) -> np.ndarray:
    """Returns the two hash words of each leaf's path, shape (leaves, 2); collisions raise."""
    seen: dict[tuple[int, int], str] = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        high, low = tag_words(name)
        hashed = (int(high), int(low))
        if hashed in seen:
            raise ValueError(
                f"leaves {seen[hashed]} and {name} would get the same noise: rename one"
            )
        seen[hashed] = name
    return np.array(list(seen), np.uint32).reshape(-1, 2)


def _reject_partial_sums(tree: PyTree) -> None:
    """Raises if a leaf still varies over a mesh axis of an enclosing `shard_map`."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        kind = jax.typeof(leaf).manual_axis_type
        axes = kind.varying | kind.unreduced
        if axes:
            raise ValueError(
                f"leaf {jax.tree_util.keystr(path)} of the sum differs along the mesh axes "
                f"{sorted(axes)}: each device would add noise of its own to a part. Sum first "
                "(clipped.psum(axis)); for sharded parameters, add the noise outside shard_map, "
                "under jit, where each device draws its part of the leaf"
            )


def _same_on_all_devices(clipped: ClippedSum) -> jax.Array | bool:
    """Returns False if devices of an enclosing `shard_map` hold different sums.

    With `check_vma=False` the types do not tell (`_reject_partial_sums`), so the squared norms are
    compared: each device would otherwise add the same noise to a part of its own.
    """
    axes = tuple(jax.sharding.get_abstract_mesh().manual_axes)
    if not axes:
        return True
    norm = clipped.check[-1]
    largest, smallest = jax.lax.pmax(norm, axes), jax.lax.pmin(norm, axes)
    return largest - smallest <= 1e-4 * largest  # the tolerance of ClippedSum's own check


def _cast_like(updates: PyTree, params: PyTree) -> PyTree:
    """Returns the updates in the parameters' dtypes; None stays None."""
    return jax.tree.map(
        lambda u, p: u if u is None else u.astype(jnp.result_type(p)),
        updates,
        params,
        is_leaf=lambda x: x is None,
    )
