"""What passes between rooms?

`ClippedSum` goes from clipping to noise and carries its own sensitivity; `NeighboringRelation`
says, in every accounting result, which datasets count as neighbours.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_count, check_real, is_traced

__all__ = ["ClippedSum", "Moments", "NeighboringRelation", "PyTree"]

PyTree = Any

# A bound far inside float32, so that 2 / sensitivity and its square neither overflow nor vanish.
_SENSITIVITY_RANGE = (1e-18, 1e18)

# Relative. The same squared norm summed in another order differs by 1e-6 (seen at 5e7 entries).
_CHECK_TOLERANCE = 1e-4


class NeighboringRelation(enum.Enum):
    """Which pairs of datasets a privacy statement compares.

    ADD_REMOVE: one has one unit more. ZERO_OUT: of the same public size; one unit's contribution is
    replaced by nothing. REPLACE_ONE: of the same public size; one unit is replaced by another.
    """

    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    REPLACE_ONE = "replace_one"


class Moments(NamedTuple):
    """Two sums that are released together: of clipped gradients, and of their elementwise squares.

    As the tree of a ClippedSum it has two groups of sensitivities C and C^2, since
    |g * g|_2 <= |g|_2^2: `sensitivity=[C, C**2]`, the leaves of `first` in group 0, of `second` in 1.
    """

    first: PyTree
    second: PyTree


@jax.tree_util.register_pytree_with_keys_class
class ClippedSum:
    """A sum of clipped contributions that carries its own sensitivity.

    Attributes:
      tree: the sum over privacy units, a pytree of float32 or float64 leaves (`None` where a
        parameter is frozen).
      sensitivity: bound on the L2 norm of one participation of one unit. A positive scalar; or shape
        (G,), one bound for each group of leaves.
      denominator: public positive number by which the noisy sum is divided: the *expected* batch
        size, never the drawn one.
      shares: None (equal), or shape (G,) positive public weights of the groups in the noise: group g
        gets std noise_multiplier * sensitivity[g] / sqrt(share of g), so that the whole release
        costs what one Gaussian of that noise multiplier costs, whatever the weights.
      groups: static; None (one group), or for each leaf of `tree`, in flattening order, its group.
      lift: static; a function applied to the noisy tree, after noise and division (a projected
        gradient's way back).
      check: a pytree leaf that ties the above together: 2 / sensitivity and |tree / sensitivity|^2.
        A transform that changes the sum on its way to the noise breaks these ties, and then the
        noise step gives NaN instead of an update that was never accounted for. An elementwise map
        (`optax.clip`, `optax.scale_by_sign`) cannot keep both s and 2 / s unless it keeps small
        numbers, and then the norm tells; an average over steps (`optax.ema`) keeps s, but the
        average of squared norms is not the squared norm of the average.

    Raises:
      TypeError: `tree` has a leaf that is no float32 / float64 array; wrong types of the others.
      ValueError: a concrete sensitivity or denominator that is not positive and finite, or group
        counts that do not fit.

    >>> s = ClippedSum({"w": jnp.ones(3)}, 1.0, 4.0)
    >>> (s + s).tree["w"].tolist(), float((s + s).sensitivity), float((2 * s).sensitivity)
    ([2.0, 2.0, 2.0], 1.0, 2.0)
    """

    __slots__ = ("check", "denominator", "groups", "lift", "sensitivity", "shares", "tree")

    tree: PyTree
    sensitivity: jax.Array
    denominator: jax.Array
    shares: jax.Array | None
    check: jax.Array
    groups: tuple[int, ...] | None
    lift: Callable[[PyTree], PyTree] | None

    def __init__(
        self,
        tree: PyTree,
        sensitivity: Any,
        denominator: Any,
        *,
        shares: Any = None,
        groups: tuple[int, ...] | None = None,
        lift: Callable[[PyTree], PyTree] | None = None,
    ):
        low, high = _SENSITIVITY_RANGE
        _check_leaves(tree)
        if groups is None:
            check_real("sensitivity", sensitivity, low=low, high=high)
            if shares is not None:
                raise ValueError("shares need groups: pass groups=, one index for each leaf")
        else:
            if not isinstance(groups, (tuple, list)):
                raise TypeError(f"groups must be a tuple, one index for each leaf, got {groups!r}")
            groups = tuple(check_count("groups", g) for g in groups)
            _check_groups(tree, sensitivity, shares, groups)
        check_real("denominator", denominator, low=low, high=high)
        self.tree = tree
        self.sensitivity, self.denominator = _float32(sensitivity), _float32(denominator)
        self.shares = None if shares is None else _float32(shares)
        self.groups = groups
        self.lift = lift
        self.check = _check_leaf(self.tree, self.sensitivity, self.groups)

    def is_intact(self) -> jax.Array:
        """Returns a boolean scalar: False if something changed this value since it was made."""
        expected = _check_leaf(self.tree, self.sensitivity, self.groups)
        close = jnp.abs(self.check - expected) <= _CHECK_TOLERANCE * expected
        low, high = _SENSITIVITY_RANGE
        bounds = (self.sensitivity >= low) & (self.sensitivity <= high)
        return jnp.all(close) & jnp.all(bounds) & (self.denominator > 0)

    def __add__(self, other: Any) -> "ClippedSum":
        """Returns the sum of two parts of *one* draw: trees add, the larger sensitivity stays.

        Denominators, groups, shares and lift must agree: unequal concrete denominators raise
        ValueError, unequal traced ones give a denominator of NaN.
        """
        if not isinstance(other, ClippedSum):
            return NotImplemented
        if self.groups != other.groups or self.lift is not other.lift:
            raise ValueError("only parts of one draw add up: groups or lift differ")
        if (self.shares is None) != (other.shares is None):
            raise ValueError("only parts of one draw add up: one has shares, the other has none")
        shapes = [jax.tree.map(jnp.shape, x.tree) for x in (self, other)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"only parts of one draw add up: their leaves have shapes {shapes[0]} and {shapes[1]}"
            )
        equal = self.denominator == other.denominator
        if not is_traced(equal) and not bool(equal):
            raise ValueError(
                f"denominators differ: {self.denominator} and {other.denominator}. Each part of one "
                "draw carries the expected batch size of the whole draw"
            )
        sensitivity = jnp.maximum(self.sensitivity, other.sensitivity)
        shares = self.shares
        if shares is not None:  # traced unequal shares cannot raise: NaN, and so NaN noise
            shares = jnp.where(shares == other.shares, shares, jnp.nan)
        # An input that was tampered with stays recognisable: its broken check is handed on.
        both = self.is_intact() & other.is_intact()
        tree = jax.tree.map(jnp.add, self.tree, other.tree)
        return _assemble(
            tree,
            sensitivity,
            jnp.where(equal, self.denominator, jnp.nan),
            shares,
            jnp.where(both, _check_leaf(tree, sensitivity, self.groups), jnp.nan),
            self.groups,
            self.lift,
        )

    def __mul__(self, scale: Any) -> "ClippedSum":
        """Returns this sum times a public non-zero scalar; the sensitivity scales by |scale|."""
        if not is_traced(scale) and check_real("scale", scale, low=-1e18, high=1e18) == 0:
            raise ValueError("scale must not be 0: a released constant needs no noise and no sum")
        c = _float32(scale)
        # The squared norm in units of the sensitivity stays; 2 / sensitivity does not.
        inverse = self.check[:-1] / jnp.abs(c)
        return _assemble(
            jax.tree.map(lambda x: (c * x).astype(x.dtype), self.tree),
            jnp.abs(c) * self.sensitivity,
            self.denominator,
            self.shares,
            jnp.concatenate([inverse, self.check[-1:]]),
            self.groups,
            self.lift,
        )

    __rmul__ = __mul__

    def psum(self, axis_name: Any) -> "ClippedSum":
        """Returns the sum over a mapped axis: the tree only (`lax.psum` would sum all fields).

        Raises:
          ValueError: inside `shard_map` the sum is known to be the same on all devices of the axis: each unit would
            be counted as often as there are devices. (With `check_vma=False`, and under `vmap`, nobody knows.)
        """
        _reject_equal_parts(self.tree, axis_name)
        tree, broken = jax.lax.psum((self.tree, jnp.float32(1) - self.is_intact()), axis_name)
        check = _check_leaf(tree, self.sensitivity, self.groups)
        return _assemble(
            tree,
            self.sensitivity,
            self.denominator,
            self.shares,
            jnp.where(broken > 0, jnp.nan, check),
            self.groups,
            self.lift,
        )

    def __repr__(self) -> str:
        return (
            f"ClippedSum(tree={self.tree!r}, sensitivity={self.sensitivity!r}, "
            f"denominator={self.denominator!r})"
        )

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        """Returns the children with their names, and the static rest."""
        names = ("tree", "sensitivity", "denominator", "shares", "check")
        children = [(jax.tree_util.GetAttrKey(n), getattr(self, n)) for n in names]
        return children, (self.groups, self.lift)

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], children: Any) -> "ClippedSum":
        """Returns the value with these children; jax calls this on tracers, so nothing is checked."""
        return _assemble(*children, *static)


def _assemble(
    tree: Any,
    sensitivity: Any,
    denominator: Any,
    shares: Any,
    check: Any,
    groups: Any,
    lift: Any,
) -> ClippedSum:
    """Returns a ClippedSum with exactly these fields, unchecked."""
    out = object.__new__(ClippedSum)
    out.tree, out.sensitivity, out.denominator = tree, sensitivity, denominator
    out.shares, out.check, out.groups, out.lift = shares, check, groups, lift
    return out


def _check_leaf(tree: PyTree, sensitivity: Any, groups: tuple[int, ...] | None) -> jax.Array:
    """Returns 2 / sensitivity (one for each group) and |tree / sensitivity|^2: shape (G + 1,).

    2 / s rather than 1 / s: a sign gives s and 1 / s the product 1 that they had.
    """
    s = jnp.asarray(sensitivity, jnp.float32)
    leaves = jax.tree.leaves(tree)
    scales = [s] * len(leaves) if groups is None else [s[g] for g in groups]
    squares = [
        jnp.sum(jnp.square(leaf.astype(jnp.float32) / scale))
        for leaf, scale in zip(leaves, scales, strict=True)
    ]
    return jnp.concatenate([(2.0 / s).reshape(-1), jnp.asarray(sum(squares), jnp.float32)[None]])


def _reject_equal_parts(tree: PyTree, axis_name: Any) -> None:
    """Raises if no leaf varies over an axis of an enclosing `shard_map` whose types tell."""
    leaves = jax.tree.leaves(tree)
    for axis in axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,):
        known = axis in _varying(jax.lax.axis_index(axis))
        if known and leaves and not any(axis in _varying(leaf) for leaf in leaves):
            raise ValueError(
                f"the sum is the same on all devices of the mesh axis {axis!r}: psum would count each unit once "
                "for each device. Shard the batch (its in_specs must name the axis), and sum once"
            )


def _varying(x: jax.Array) -> frozenset[Any]:
    kind = getattr(jax.typeof(x), "manual_axis_type", None)
    return frozenset(kind.varying) if kind is not None else frozenset()


def _check_leaves(tree: PyTree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        dtype = getattr(leaf, "dtype", None)
        if dtype not in (jnp.float32, jnp.float64):
            raise TypeError(
                f"the sum must be float32 or float64: leaf {jax.tree_util.keystr(path)} is "
                f"{dtype if dtype is not None else type(leaf).__name__}. Sum in float32; the noise "
                "step casts to the parameters' dtype last"
            )


def _check_groups(tree: PyTree, sensitivity: Any, shares: Any, groups: tuple[int, ...]) -> None:
    leaves = len(jax.tree.leaves(tree))
    count = 1 + max(groups, default=-1)
    if leaves == 0 or len(groups) != leaves or set(groups) != set(range(count)):
        raise ValueError(
            f"groups must give each of the {leaves} leaves one of 0..G-1, got {groups}"
        )
    for name, value in (("sensitivity", sensitivity), ("shares", shares)):
        if name == "shares" and value is None:
            continue
        traced = is_traced(value)
        items = list(value) if np.iterable(value) and not traced else []
        shape = value.shape if traced else (len(items),)
        if shape != (count,):
            raise ValueError(
                f"{name} must have shape ({count},), one for each group, got {value!r}"
            )
        for item in items:
            check_real(name, item, low=_SENSITIVITY_RANGE[0], high=_SENSITIVITY_RANGE[1])


def _float32(value: Any) -> jax.Array:
    """Returns a checked number, or a sequence of them, as float32."""
    if not hasattr(value, "dtype"):  # jax knows no fractions and no decimals
        value = [float(v) for v in value] if np.iterable(value) else float(value)
    return jnp.asarray(value, jnp.float32)
