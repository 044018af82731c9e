"""Small losses of every kind that the engines must get right: (loss_fn, params, batch) by name.

Plain functions here; those that need flax or equinox are in clipping_frameworks.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ROWS = 3
KEY = jax.random.key(7)


def normal(*shape, seed=0):
    """Drawn by numpy, since jax compiles a program for each shape."""
    return jnp.asarray(np.random.default_rng((7, seed)).normal(size=shape), jnp.float32)


def draw(*shape, seed=0):
    return normal(*shape, seed=seed) / np.sqrt(max(shape[-1], 1))


def data(*shape, seed=99):
    return normal(ROWS, *shape, seed=seed)


def tokens(length, vocabulary):
    t = np.random.default_rng(7).integers(vocabulary, size=(ROWS, length + 1), dtype=np.int32)
    return jnp.asarray(t[:, :-1]), jnp.asarray(t[:, 1:])


def cross_entropy(logits, label):
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, label[..., None], -1)[..., 0]


def mlp():
    params = {"a": draw(6, 8), "b": draw(8), "c": draw(8, 4, seed=1)}
    loss = lambda p, x: jnp.sum(jnp.square(jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]))  # noqa: E731
    return loss, params, data(6)


def conv(x, w, **options):
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x[None], w, dimension_numbers=numbers, **options)[0]


def cnn(**options):
    groups = options.get("feature_group_count", 1)
    params = {"w": draw(3, 3, 4 // groups, 8), "head": draw(8, 5, seed=1)}

    def loss(p, x):
        return jnp.sum(jnp.square(jnp.tanh(conv(x, p["w"], **options)).mean((0, 1)) @ p["head"]))

    return loss, params, data(7, 6, 4)


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def block(p, x):
    q, k, v = jnp.split(layer_norm(x) @ p["qkv"], 3, -1)
    mask = jnp.tril(jnp.ones((len(x), len(x)), bool))
    weights = jax.nn.softmax(jnp.where(mask, q @ k.T, -1e9), -1)
    x = x + weights @ v
    return x + jax.nn.gelu(layer_norm(x) @ p["up"] + p["bias"]) @ p["down"]


def transformer(*, tied=True, remat=False, scan=False):
    vocabulary, d, length = 11, 6, 5
    blocks = [
        {
            "qkv": draw(d, 3 * d, seed=i),
            "up": draw(d, 8, seed=10 + i),
            "bias": draw(8, seed=20 + i),
            "down": draw(8, d, seed=30 + i),
        }
        for i in range(2)
    ]
    params = {"embedding": draw(vocabulary, d, seed=40), "blocks": blocks}
    if not tied:
        params["head"] = draw(d, vocabulary, seed=41)
    if scan:
        params["blocks"] = jax.tree.map(lambda *x: jnp.stack(x), *blocks)
    step = jax.checkpoint(block) if remat else block

    def loss(p, example):
        x = p["embedding"][example[0]]
        if scan:
            x, _ = lax.scan(lambda x, b: (step(b, x), None), x, p["blocks"])
        else:
            for b in p["blocks"]:
                x = step(b, x)
        head = p["embedding"].T if tied else p["head"]
        return cross_entropy(layer_norm(x) @ head, example[1]).mean()

    return loss, params, tokens(length, vocabulary)


def rnn():
    d = 5
    params = {
        "embedding": draw(7, d, seed=1),
        "x": draw(d, d, seed=2),
        "h": draw(d, d, seed=3),
        "b": draw(d, seed=4),
    }

    def loss(p, example):
        def step(h, x):
            h = jnp.tanh(x @ p["x"] + h @ p["h"] + p["b"])
            return h, h

        _, states = lax.scan(step, jnp.zeros(d), p["embedding"][example[0]])
        return cross_entropy(states @ p["embedding"].T, example[1]).sum()

    return loss, params, tokens(6, 7)


def nested_loops():
    """A loop in a loop, both recomputed, over stacks that are flipped or shared."""
    params = {
        "w": jnp.stack([draw(2, 5, 5, seed=i) for i in range(3)]),
        "b": draw(3, 2, 5, seed=4),
        "v": draw(5, 5, seed=5),
    }

    def loss(p, x):
        @jax.checkpoint
        def inner(x, layer):
            return jnp.tanh(x @ layer["w"].T + layer["b"]), None

        @jax.checkpoint
        def outer(x, layers):
            x, _ = lax.scan(inner, x, layers)
            return jnp.tanh(x @ p["v"]), None

        x, _ = lax.scan(outer, x, {"w": jnp.flip(p["w"], 0), "b": p["b"]})
        return jnp.sum(jnp.square(x))

    return loss, params, data(4, 5)


def cropped():
    """A weight whose gradient is cropped on its way: no isometry, so its norm is that of what is left."""

    @jax.custom_vjp
    def grown(w):
        return jnp.pad(w, ((0, 2), (0, 0)), mode="edge")

    def back(_, g):
        return (lax.pad(g, 0.0, ((0, -2, 0), (0, 0, 0))),)

    grown.defvjp(lambda w: (grown(w), None), back)
    return lambda w, x: jnp.sum(jnp.sin(x @ grown(w))), draw(4, 5), data(3, 6)


def squares():
    return {"w": draw(6, 6, seed=1), "a": draw(6, 2, seed=2), "b": draw(2, 6, seed=3)}


def weight_decay():
    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ p["w"])) + 0.3 * jnp.sum(jnp.square(p["w"]))

    return loss, {"w": draw(6, 6, seed=1)}, data(4, 6)


def decay_on_table():
    def loss(p, example):
        return jnp.sum(jnp.tanh(p[example[0]]) * p[example[1]]) + 0.2 * jnp.sum(jnp.square(p))

    return loss, draw(7, 3), tokens(4, 7)


def twice():
    def loss(p, x):
        y = jnp.tanh(x @ (p["w"] + 0.5 * p["a"] @ p["b"]))
        return jnp.sum(jnp.square(y @ p["w"] - x @ p["w"].T))

    return loss, squares(), data(4, 6)


def merged_adapters():
    base = draw(6, 6)

    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ (base + 2.0 * p["a"] @ p["b"])))

    return loss, {"a": draw(6, 2, seed=2), "b": draw(2, 6, seed=3)}, data(4, 6)


def cond():
    def loss(p, x):
        branches = (lambda x: jnp.sum(jnp.sin(x @ p["w"])), lambda x: jnp.sum(x @ p["w"] @ p["a"]))
        return lax.cond(x[0, 0] > 0, *branches, x) + jnp.sum(p["b"])

    return loss, squares(), data(4, 6)


def views():
    """Every structural step that a weight may pass through on its way to a product."""

    def loss(p, x):
        w = -jnp.flip(p["w"], 0).T.reshape(4, 9)[:, :6] * 0.7 / 1.3
        return jnp.sum(jnp.tanh(x @ w.T)) + jnp.sum(jnp.sin(x @ jnp.flip(p["w"], 1)))

    return loss, {"w": draw(6, 6)}, data(4, 6)


def heads():
    """einsum kernels with several free axes, one of them a batch axis of the product."""
    params = {"q": draw(6, 2, 3, seed=1), "k": draw(6, 2, 3, seed=2), "o": draw(2, 3, 6, seed=3)}

    def loss(p, x):
        q, k = (jnp.einsum("td,dhk->thk", x, p[n]) for n in "qk")
        y = jnp.einsum("thk,shk->hts", q, k)
        return jnp.sum(jnp.tanh(jnp.einsum("hts,shk,hkd->td", y, q, p["o"])))

    return loss, params, data(4, 6)


def cancelling():
    """Products that nearly cancel: the Gram sum of the norm loses digits, and must not fall below the truth."""

    def loss(p, x):
        y = x + 1e-3 * jnp.sin(7 * x)
        return jnp.sum(jnp.square(x @ p + 1.0)) - jnp.sum(jnp.square(y @ p + 1.0))

    return loss, draw(6, 4), data(5, 6)


PLAIN = {
    "mlp": mlp,
    "cnn": cnn,
    "cnn strided": functools.partial(cnn, window_strides=(2, 1), padding="VALID"),
    "cnn dilated": functools.partial(cnn, rhs_dilation=(2, 1)),
    "cnn transposed": functools.partial(cnn, lhs_dilation=(2, 2), padding=((1, 2), (2, 1))),
    "cnn strided dilated": functools.partial(cnn, window_strides=(2, 2), rhs_dilation=(2, 2)),
    "cnn depthwise": functools.partial(cnn, feature_group_count=4),
    "cnn grouped": functools.partial(cnn, feature_group_count=2),
    "transformer tied": transformer,
    "transformer untied": functools.partial(transformer, tied=False),
    "transformer remat": functools.partial(transformer, remat=True),
    "transformer scan": functools.partial(transformer, scan=True),
    "transformer scan remat": functools.partial(transformer, scan=True, remat=True),
    "rnn": rnn,
    "nested loops": nested_loops,
    "cropped": cropped,
    "weight decay": weight_decay,
    "decay on table": decay_on_table,
    "twice": twice,
    "merged adapters": merged_adapters,
    "cond": cond,
    "views": views,
    "heads": heads,
}
