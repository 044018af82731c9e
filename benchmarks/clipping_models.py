"""The models of the clipping benchmark: M1 to M4 of the issue, and a small MNIST network."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

KEY = 0


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    loss_fn: Callable[..., Any]
    make: Callable[[], Any]
    scan_sizes: tuple[int, ...] = ()
    chunk_sizes: tuple[int, ...] = ()
    peer_sizes: tuple[int | None, ...] = ()


def cross_entropy(logits, label):
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, label[..., None], -1)[..., 0]


def normal(key, shape, fan_in):
    return jax.random.normal(key, shape) / np.sqrt(fan_in)


# M1


def mlp_init(key, sizes):
    keys = jax.random.split(key, len(sizes))
    return [
        {"w": normal(k, (a, b), a), "b": jnp.zeros(b)}
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]


def mlp_loss(params, example):
    x, y = example
    for i, layer in enumerate(params):
        x = x @ layer["w"] + layer["b"]
        x = jax.nn.relu(x) if i < len(params) - 1 else x
    return cross_entropy(x, y)


def mlp(small):
    sizes, batch = ((20, 16, 10), 8) if small else ((784, 512, 512, 10), 256)

    def make():
        k = jax.random.key(KEY)
        x = jax.random.normal(k, (batch, sizes[0]))
        return mlp_init(k, sizes), (x, jax.random.randint(k, (batch,), 0, sizes[-1]))

    return Case("mlp", mlp_loss, make, (batch // 4,), (), (batch // 4, batch // 16 or 1))


# M2


def group_norm(x, scale, shift, groups=8):
    n, h, w, c = x.shape
    y = x.reshape(n, h * w, groups, c // groups)
    mean = y.mean((1, 3), keepdims=True)
    variance = ((y - mean) ** 2).mean((1, 3), keepdims=True)
    return ((y - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale + shift


def conv(x, w, stride=1, padding="SAME"):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=numbers)


def cnn_init(key, channels):
    keys = jax.random.split(key, len(channels))
    convolutions = [
        {
            "w": normal(k, (3, 3, a, b), 9 * a),
            "b": jnp.zeros(b),
            "s": jnp.ones(b),
            "t": jnp.zeros(b),
        }
        for k, a, b in zip(keys, channels[:-1], channels[1:], strict=False)
    ]
    head = {"w": normal(keys[-1], (channels[-1], 10), channels[-1]), "b": jnp.zeros(10)}
    return {"conv": convolutions, "out": head}


def cnn_loss(params, example):
    x, y = example[0][None], example[1]
    for i, layer in enumerate(params["conv"]):
        x = conv(x, layer["w"]) + layer["b"]
        x = jax.nn.relu(group_norm(x, layer["s"], layer["t"]))
        n, h, w, c = x.shape
        if i < len(params["conv"]) - 1:
            x = x.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))
    logits = x.mean((1, 2)) @ params["out"]["w"] + params["out"]["b"]
    return cross_entropy(logits[0], y)


def cnn(small):
    channels, side, batch = ((3, 8, 16), 8, 4) if small else ((3, 64, 128, 128, 256), 32, 128)

    def make():
        k = jax.random.key(KEY)
        x = jax.random.normal(k, (batch, side, side, 3))
        return cnn_init(k, channels), (x, jax.random.randint(k, (batch,), 0, 10))

    return Case("cnn", cnn_loss, make, (), (batch // 4, batch // 8 or 1), (None, batch // 4))


# M3 and M4


def decoder_init(key, layers, d, vocabulary, length):
    keys = iter(jax.random.split(key, 8 * layers + 8))

    def norm():
        return {"s": jnp.ones(d), "b": jnp.zeros(d)}

    def block():
        shapes = {"qkv": (d, 3 * d), "o": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
        weights = {
            n: {"w": normal(next(keys), s, s[0]), "b": jnp.zeros(s[1])} for n, s in shapes.items()
        }
        return {"norm1": norm(), "norm2": norm(), **weights}

    return {
        "embedding": jax.random.normal(next(keys), (vocabulary, d)) * 0.05,
        "position": jax.random.normal(next(keys), (length, d)) * 0.02,
        "blocks": [block() for _ in range(layers)],
        "norm": norm(),
    }


def layer_norm(x, p):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p["s"] + p["b"]


def decoder_block(p, adapters, x, heads=4):
    t, d = x.shape

    def linear(x, name):
        y = x @ p[name]["w"] + p[name]["b"]
        if adapters is not None:
            y = y + 2.0 * ((x @ adapters[name]["a"]) @ adapters[name]["b"])
        return y

    parts = jnp.split(linear(layer_norm(x, p["norm1"]), "qkv"), 3, -1)
    q, k, v = (part.reshape(t, heads, d // heads) for part in parts)
    scores = jnp.einsum("thd,shd->hts", q, k) / np.sqrt(d // heads)
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    mixed = jnp.einsum("hts,shd->thd", jax.nn.softmax(scores, -1), v).reshape(t, d)
    x = x + linear(mixed, "o")
    return x + linear(jax.nn.gelu(linear(layer_norm(x, p["norm2"]), "up")), "down")


def decoder_loss(params, example, adapters=None):
    tokens, targets = example
    x = params["embedding"][tokens] + params["position"][: tokens.shape[0]]
    for i, block in enumerate(params["blocks"]):
        x = decoder_block(block, None if adapters is None else adapters[i], x)
    logits = layer_norm(x, params["norm"]) @ params["embedding"].T
    return cross_entropy(logits, targets).mean()


def decoder_scan_remat_loss(params, example):
    tokens, targets = example
    x = params["embedding"][tokens] + params["position"][: tokens.shape[0]]
    block = jax.checkpoint(lambda p, x: decoder_block(p, None, x))
    x, _ = lax.scan(lambda x, p: (block(p, x), None), x, params["blocks"])
    logits = layer_norm(x, params["norm"]) @ params["embedding"].T
    return cross_entropy(logits, targets).mean()


def _decoder_sizes(small):
    return ((2, 16, 40, 8), 4) if small else ((4, 256, 4096, 128), 16)


def _tokens(batch, vocabulary, length):
    tokens = jax.random.randint(jax.random.key(KEY), (batch, length + 1), 0, vocabulary)
    return tokens[:, :-1], tokens[:, 1:]


def decoder(small):
    (layers, d, vocabulary, length), batch = _decoder_sizes(small)

    def make():
        params = decoder_init(jax.random.key(KEY), layers, d, vocabulary, length)
        return params, _tokens(batch, vocabulary, length)

    return Case("decoder", decoder_loss, make, (1, 4), (), (1, 4))


def decoder_remat(small):
    (layers, d, vocabulary, length), batch = _decoder_sizes(small)

    def make():
        params = decoder_init(jax.random.key(KEY), layers, d, vocabulary, length)
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *params["blocks"])
        return {**params, "blocks": stacked}, _tokens(batch, vocabulary, length)

    return Case("decoder-remat", decoder_scan_remat_loss, make, (1, 4), (), (1, 4))


def lora(small, rank=8):
    (layers, d, vocabulary, length), batch = _decoder_sizes(small)
    base = decoder_init(jax.random.key(KEY), layers, d, vocabulary, length)
    loss_fn = functools.partial(_lora_loss, base)

    def make():
        keys = iter(jax.random.split(jax.random.key(KEY + 1), 8 * layers))
        adapters = []
        for block in base["blocks"]:
            shapes = {n: block[n]["w"].shape for n in ("qkv", "o", "up", "down")}
            adapters.append(
                {
                    n: {
                        "a": normal(next(keys), (i, rank), i),
                        "b": normal(next(keys), (rank, o), 1e4),
                    }
                    for n, (i, o) in shapes.items()
                }
            )
        return adapters, _tokens(batch, vocabulary, length)

    return Case("lora", loss_fn, make, (1, 4), (), (1, 4))


def _lora_loss(base, adapters, example):
    return decoder_loss(base, example, adapters)


# The tanh network of Papernot et al. 2020 (arXiv:2007.14191) on MNIST shapes; pooling as maxima of slices.


def mnist_loss(params, example):
    x, y = example[0][None], example[1]
    for layer, stride, pad in zip(params["conv"], (2, 2), (2, 0), strict=True):
        x = jnp.tanh(conv(x, layer["w"], stride, [(pad, pad)] * 2) + layer["b"])
        x = jnp.maximum(x[:, 1:], x[:, :-1])
        x = jnp.maximum(x[:, :, 1:], x[:, :, :-1])
    x = x.reshape(-1)
    for i, layer in enumerate(params["dense"]):
        x = x @ layer["w"] + layer["b"]
        x = jnp.tanh(x) if i == 0 else x
    return cross_entropy(x, y)


def mnist(small):
    batch = 8 if small else 512

    def make():
        keys = jax.random.split(jax.random.key(KEY), 5)

        def layer(k, shape, fan_in):
            return {"w": normal(k, shape, fan_in), "b": jnp.zeros(shape[-1])}

        convolutions = [layer(keys[0], (8, 8, 1, 16), 64), layer(keys[1], (4, 4, 16, 32), 256)]
        dense = [layer(keys[2], (512, 32), 512), layer(keys[3], (32, 10), 32)]
        x = jax.random.uniform(keys[4], (batch, 28, 28, 1))
        y = jax.random.randint(keys[4], (batch,), 0, 10)
        return {"conv": convolutions, "dense": dense}, (x, y)

    chunks = (4,) if small else (32, 64, 128)
    return Case("mnist", mnist_loss, make, (), chunks, (None,))


CASES = {
    "mlp": mlp,
    "cnn": cnn,
    "decoder": decoder,
    "decoder-remat": decoder_remat,
    "lora": lora,
    "mnist": mnist,
}
