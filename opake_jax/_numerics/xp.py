"""Which library computes it? NumPy where every number is known, jax where one is traced.

The accountant is written once, against this module. Known numbers are answered at once by NumPy, with
nothing to compile: a first answer takes milliseconds. Traced numbers make the very same lines part of the
program that traces them. Each function looks at its own arguments, so that what does not depend on
a tracer becomes a constant.

Names and meanings are NumPy's. Call it inside `enable_x64` where something is traced.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "add_at",
    "cond",
    "fixed",
    "loop",
    "map_over",
    "scan",
    "set_at",
    "shortcut",
    "while_loop",
]

Array = Any  # NumPy's, or a tracer

inf, nan, pi = np.inf, np.nan, np.pi
float64, int32 = np.float64, np.int32
arange, linspace, zeros, ones = np.arange, np.linspace, np.zeros, np.ones  # of known shapes


_PLAIN = frozenset({np.ndarray, np.float64, float, int, bool, np.bool_})


def is_traced(*values: Any) -> bool:
    """Returns True if a value, or an entry of a list or tuple of values, is a tracer."""
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if isinstance(value, jax.core.Tracer):
            return True
        if (kind is list or kind is tuple) and is_traced(*value):
            return True
    return False


def _of_one(known: Callable[..., Any], traced: Callable[..., Any]) -> Callable[..., Any]:
    """`_either` for functions of one array: the most frequent, and so the quickest."""

    def call(x: Any) -> Any:
        if type(x) in _PLAIN or not isinstance(x, jax.core.Tracer):
            return known(x)
        return traced(x)

    return call


def _of_two(known: Callable[..., Any], traced: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, y: Any) -> Any:
        if type(x) in _PLAIN and type(y) in _PLAIN:
            return known(x, y)
        return (traced if is_traced(x, y) else known)(x, y)

    return call


def _either(known: Callable[..., Any], traced: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return (traced if is_traced(*args) else known)(*args, **options)

    return call


abs = _of_one(np.abs, jnp.abs)
all = _either(np.all, jnp.all)
any = _either(np.any, jnp.any)
append = _either(np.append, jnp.append)
arcsinh = _of_one(np.arcsinh, jnp.arcsinh)
arctan2 = _of_two(np.arctan2, jnp.arctan2)
asarray = _either(np.asarray, jnp.asarray)
broadcast_to = _either(np.broadcast_to, jnp.broadcast_to)
ceil = _of_one(np.ceil, jnp.ceil)
concatenate = _either(np.concatenate, jnp.concatenate)
cos = _of_one(np.cos, jnp.cos)
cumprod = _either(np.cumprod, jnp.cumprod)
cumsum = _either(np.cumsum, jnp.cumsum)
exp = _of_one(np.exp, jnp.exp)
expm1 = _of_one(np.expm1, jnp.expm1)
floor = _of_one(np.floor, jnp.floor)
full = _either(np.full, jnp.full)
full_like = _either(np.full_like, jnp.full_like)
hypot = _of_two(np.hypot, jnp.hypot)
isfinite = _of_one(np.isfinite, jnp.isfinite)
isnan = _of_one(np.isnan, jnp.isnan)
log = _of_one(np.log, jnp.log)
log1p = _of_one(np.log1p, jnp.log1p)
logaddexp = _of_two(np.logaddexp, jnp.logaddexp)
max = _either(np.max, jnp.max)
maximum = _of_two(np.maximum, jnp.maximum)
min = _either(np.min, jnp.min)
minimum = _of_two(np.minimum, jnp.minimum)
mod = _of_two(np.mod, jnp.mod)
ones_like = _either(np.ones_like, jnp.ones_like)
rfft = _either(np.fft.rfft, jnp.fft.rfft)
sign = _of_one(np.sign, jnp.sign)
sin = _of_one(np.sin, jnp.sin)
sinh = _of_one(np.sinh, jnp.sinh)
sqrt = _of_one(np.sqrt, jnp.sqrt)
squeeze = _either(np.squeeze, jnp.squeeze)
stack = _either(np.stack, jnp.stack)
sum = _either(np.sum, jnp.sum)
tile = _either(np.tile, jnp.tile)
zeros_like = _either(np.zeros_like, jnp.zeros_like)


def where(test: Any, yes: Any, no: Any) -> Any:
    """Returns yes where test is True, else no."""
    if type(test) in _PLAIN and type(yes) in _PLAIN and type(no) in _PLAIN:
        return np.where(test, yes, no)
    return (jnp if is_traced(test, yes, no) else np).where(test, yes, no)


def _each(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """Returns a function of the standard library, for few numbers at a time."""
    vectorised = np.frompyfunc(function, 1, 1)

    def call(x: Any) -> Any:
        return np.asarray(vectorised(x), np.float64)[()]

    return call


erf = _either(_each(math.erf), jax.lax.erf)
erfc = _either(_each(math.erfc), jax.lax.erfc)
lgamma = _either(_each(lambda x: math.lgamma(x) if x > 0 else math.inf), jax.lax.lgamma)


def sigmoid(x: Any) -> Any:
    """Returns 1/(1 + e^-x)."""
    return jax.nn.sigmoid(x) if is_traced(x) else 1 / (1 + np.exp(-x))


def clip(x: Any, low: Any, high: Any) -> Any:
    """Returns x kept within [low, high]."""
    return minimum(maximum(x, low), high)


def astype(x: Any, dtype: Any) -> Any:
    """Returns x in another dtype."""
    return x.astype(dtype) if is_traced(x) else np.asarray(x).astype(dtype)


def least(*values: Any) -> Any:
    """Returns the smallest of the values that are numbers; inf if none is."""
    return functools.reduce(minimum, [where(isnan(v), inf, v) for v in values])


def pad(x: Any, rest: int, fill: float) -> Any:
    """Returns x [M] followed by `rest` times `fill`."""
    return concatenate([x, np.full(rest, fill)])


def fixed(x: Any) -> Any:
    """Returns x, or each leaf of a tree, as something that carries no derivative."""
    return jax.lax.stop_gradient(x) if _any_leaf(x) else x


def set_at(x: Any, index: Any, values: Any) -> Any:
    """Returns a copy of x with x[index] = values."""
    if is_traced(x, index, values):
        return jnp.asarray(x).at[index].set(values)
    x = np.array(x)
    x[index] = values
    return x


def add_at(x: Any, index: Any, values: Any) -> Any:
    """Returns x [M] with the values added at the indices, repeated ones as often as they occur."""
    if is_traced(x, index, values):
        return jnp.asarray(x).at[index].add(values)
    return x + np.bincount(np.ravel(index), np.ravel(values), len(x))


def _any_leaf(tree: Any) -> bool:
    return is_traced(*jax.tree.leaves(tree))


def loop(count: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """Returns the state after body(i, state) for i = 0..count-1."""
    if _any_leaf((count, state)):
        return jax.lax.fori_loop(0, count, body, state)
    start = state
    for i in range(int(count)):
        state = body(i, state)
        if _any_leaf(state):  # the body knows a tracer
            return jax.lax.fori_loop(0, int(count), body, start)
    return state


def while_loop(going: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """Returns the first state of state, body(state), ... at which `going` is False."""
    while not _any_leaf((state, test := going(state))):
        if not test:
            return state
        state = body(state)  # which may know a tracer
    return jax.lax.while_loop(going, body, state)


def cond(test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Returns yes() or no()."""
    if is_traced(test):
        return jax.lax.cond(test, yes, no)
    return yes() if test else no()


def shortcut(test: Any, quick: Callable[[], Any], general: Callable[[], Any]) -> Any:
    """Returns general(), or quick() where test holds: then the two are equal."""
    if is_traced(test):
        return jax.lax.cond(test, quick, general)
    return quick() if test else general()


def scan(body: Callable[[Any, Any], Any], state: Any, rows: Any) -> tuple[Any, Any]:
    """Returns the last state and the stacked outputs of state, output = body(state, row)."""
    if _any_leaf((state, rows)):
        return jax.lax.scan(body, state, rows)
    outputs = []
    for row in zip(*jax.tree.leaves(rows), strict=True):
        following, output = body(state, jax.tree.unflatten(jax.tree.structure(rows), row))
        if _any_leaf((following, output)):  # the body knows a tracer
            return jax.lax.scan(body, state, rows)
        state = following
        outputs.append(output)
    return state, jax.tree.map(lambda *leaves: np.stack(leaves), *outputs)


def map_over(body: Callable[[Any], Any], rows: Any) -> Any:
    """Returns the stacked results of body(row)."""
    if _any_leaf(rows):
        return jax.lax.map(body, rows)
    return scan(lambda _, row: (None, body(row)), None, rows)[1]
