"""Losses in which one example could reach another's gradient are refused, with the reason."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax

from opake_jax import clipping

X = jnp.ones((2, 3))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        return nn.Dense(1)(nn.BatchNorm(use_running_average=not train)(x))


def test_linen_batch_statistics_are_refused_however_they_are_passed():
    net = Net()
    variables = net.init(jax.random.key(0), X)
    params, stats = variables["params"], variables["batch_stats"]

    def with_aux(p, x):
        out, new = net.apply({"params": p, "batch_stats": stats}, x[None], mutable=["batch_stats"])
        return jnp.sum(out), new

    with pytest.raises(ValueError, match="BatchNorm"):
        clipping.clipped_grad(with_aux, 1.0, has_aux=True)(params, X)

    def without(p, x):
        return jnp.sum(net.apply({"params": p, "batch_stats": stats}, x[None]))

    with pytest.raises(Exception) as caught:  # noqa: PT011 - flax's own error, with our note
        clipping.clipped_grad(without, 1.0)(params, X)
    assert "BatchNorm" in "".join(caught.value.__notes__)

    def frozen(p, x):
        return jnp.sum(net.apply({"params": p, "batch_stats": stats}, x[None], train=False))

    clipping.clipped_grad(frozen, 1.0)(params, X)  # fixed statistics are fine


def test_nnx_state_that_outlives_an_example_is_explained():
    graph, params, rest = nnx.split(nnx.BatchNorm(3, rngs=nnx.Rngs(0)), nnx.Param, ...)

    def loss(p, x):
        return jnp.sum(nnx.merge(graph, p, rest)(x[None]) ** 2)

    with pytest.raises(Exception) as caught:  # noqa: PT011 - flax's own error, with our note
        clipping.clipped_grad(loss, 1.0)(params, X)
    assert "BatchNorm" in "".join(caught.value.__notes__)


def test_a_loss_that_talks_to_other_devices_is_refused():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    grad_fn = clipping.clipped_grad(lambda w, x: lax.psum(jnp.vdot(w, x), "d"), 1.0)

    def local(w, x):
        return grad_fn(w, x)[0].psum("d").tree

    spec = jax.sharding.PartitionSpec
    for check_vma in (True, False):
        call = jax.shard_map(
            local, mesh=mesh, in_specs=(spec(), spec("d")), out_specs=spec(), check_vma=check_vma
        )
        with pytest.raises(ValueError, match="other devices"):
            call(jnp.zeros(3), X)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_batching_rule_that_sees_all_examples_is_refused(wrap):
    @jax.custom_batching.custom_vmap
    def coupled(x):
        return x

    @coupled.def_vmap
    def _(size, batched, x):
        return jnp.broadcast_to(x.sum(0), x.shape), True

    def loss_fn(w, x):
        return jnp.sum(w * wrap(coupled)(x))

    with pytest.raises(ValueError, match="batching rule"):
        clipping.clipped_grad(loss_fn, 1.0)(jnp.ones(3), jnp.ones((2, 3)))
