"""Losses written with flax linen, flax nnx and equinox."""

import equinox as eqx
import flax.linen as nn
import jax.numpy as jnp
from clipping_models import KEY, ROWS, cross_entropy, data, tokens
from fast_jit import fast_jit
from flax import nnx


class Attention(nn.Module):
    """A decoder whose head is `Embed.attend`."""

    @nn.compact
    def __call__(self, t):
        embed = nn.Embed(11, 8)
        x = embed(t)
        h = nn.LayerNorm()(x)
        mask = nn.make_causal_mask(t)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(h, h, mask=mask)
        x = x + nn.Dense(8)(nn.gelu(nn.Dense(12)(nn.RMSNorm()(x))))
        return embed.attend(x)


class Convolutions(nn.Module):
    """Strided, depthwise and transposed convolutions with pooling."""

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.GroupNorm(2)(nn.Conv(8, (3, 3), strides=(2, 2))(x)))
        x = nn.tanh(nn.Conv(8, (3, 3), feature_group_count=8)(x))
        x = nn.tanh(nn.ConvTranspose(4, (3, 3), strides=(2, 2))(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(5)(x.reshape(x.shape[0], -1))


class Lstm(nn.Module):
    """A lifted scan."""

    @nn.compact
    def __call__(self, t):
        return nn.Dense(11)(nn.RNN(nn.OptimizedLSTMCell(6))(nn.Embed(11, 8)(t)))


def _linen(module, make):
    def case():
        example = make()
        inputs = example if isinstance(example, tuple) else (example, jnp.arange(ROWS))
        params = fast_jit(module.init)(KEY, inputs[0][:1])

        def loss(p, e):
            return cross_entropy(module.apply(p, e[0][None]), e[1][None]).mean()

        return loss, params, inputs

    return case


class Adapters(nnx.Module):
    """nnx attention and a LoRA layer."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.lora = nnx.LoRALinear(8, 8, lora_rank=2, rngs=rngs)
        self.head = nnx.Linear(8, 11, rngs=rngs)

    def __call__(self, t):
        x = self.embed(t)
        x = x + self.attention(self.norm(x))
        return self.head(x + self.lora(nnx.relu(x)))


def nnx_lora():
    graph, params = nnx.split(nnx.jit(Adapters)(nnx.Rngs(0)))

    def loss(p, e):
        return cross_entropy(nnx.merge(graph, p)(e[0][None]), e[1][None]).mean()

    return loss, params, tokens(5, 11)


def equinox_mlp():
    make = eqx.filter_jit(lambda key: eqx.nn.MLP(6, 5, 8, 2, key=key))
    params, static = eqx.partition(make(KEY), eqx.is_array)

    def loss(p, e):
        return cross_entropy(eqx.combine(p, static)(e[0]), e[1])

    return loss, params, (data(6), jnp.arange(ROWS))


FRAMEWORKS = {
    "linen attention": _linen(Attention(), lambda: tokens(5, 11)),
    "linen convolutions": _linen(Convolutions(), lambda: data(8, 8, 3)),
    "linen lstm": _linen(Lstm(), lambda: tokens(5, 11)),
    "nnx lora": nnx_lora,
    "equinox mlp": equinox_mlp,
}
