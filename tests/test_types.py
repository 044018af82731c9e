"""ClippedSum: its algebra, and that nothing changes it unseen on the way to the noise."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from opake_jax.types import ClippedSum, NeighboringRelation


def make(seed=0, sensitivity=2.0, denominator=8.0, **options):
    rng = np.random.default_rng(seed)
    tree = {
        "a": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32),
        "b": None,
        "c": jnp.asarray(rng.normal(size=5), jnp.float32),
    }
    return ClippedSum(tree, sensitivity, denominator, **options)


def grouped(seed=0, shares=None):
    return make(seed, jnp.array([2.0, 0.5]), groups=(0, 1), shares=shares)


def assert_equal(a, b):
    chex.assert_trees_all_equal_structs(a, b)
    chex.assert_trees_all_close(a, b, rtol=1e-6)


def reshaped(change):
    return ClippedSum(jax.tree.map(change, make(1).tree), 1.0, 8.0)


# -- sums of one draw


def test_sum_adds_trees_and_keeps_the_larger_sensitivity():
    a, b = make(0, 2.0), make(1, 3.0)
    total = a + b
    chex.assert_trees_all_close(total.tree, jax.tree.map(jnp.add, a.tree, b.tree))
    assert float(total.sensitivity) == 3.0
    assert float(total.denominator) == 8.0
    assert total.tree["b"] is None
    assert total.is_intact()


def test_sum_is_commutative_and_associative():
    a, b, c = make(0, 2.0), make(1, 3.0), make(2, 1.0)
    assert_equal(a + b, b + a)
    assert_equal((a + b) + c, a + (b + c))


def test_sum_of_groups_takes_each_groups_larger_sensitivity():
    a = make(0, jnp.array([2.0, 0.5]), groups=(0, 1))
    b = make(1, jnp.array([1.0, 4.0]), groups=(0, 1))
    assert (a + b).sensitivity.tolist() == [2.0, 4.0]
    assert (a + b).is_intact()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: make(1, denominator=16.0), "denominators differ"),
        (lambda: make(1, lift=jnp.negative), "groups or lift differ"),
        (lambda: grouped(1), "groups or lift differ"),
        (lambda: reshaped(lambda x: x.reshape(1, *x.shape)), "shapes"),
        (lambda: reshaped(lambda x: x.ravel()[:1]), "shapes"),
    ],
)
def test_parts_of_different_draws_do_not_add(other, message):
    with pytest.raises(ValueError, match=message):
        make(0) + other()
    with pytest.raises(ValueError, match="shares"):
        grouped(0) + grouped(1, shares=jnp.array([1.0, 2.0]))
    with pytest.raises(TypeError):
        make(0) + 1.0


def test_traced_unequal_denominators_give_nan():
    @jax.jit
    def add(one, two):
        return (make(0, denominator=one) + make(1, denominator=two)).denominator

    assert float(add(8.0, 8.0)) == 8.0
    assert np.isnan(add(8.0, 16.0))


# -- public factors


@pytest.mark.parametrize("factor", [0.5, -3.0, 2, np.float64(1e-3), jnp.float32(7.0)])
def test_product_scales_tree_and_sensitivity_and_keeps_the_denominator(factor):
    scaled = factor * make() if not isinstance(factor, (np.generic, jax.Array)) else make() * factor
    chex.assert_trees_all_close(
        scaled.tree, jax.tree.map(lambda x: factor * x, make().tree), rtol=1e-6
    )
    assert float(scaled.sensitivity) == pytest.approx(2.0 * abs(float(factor)), rel=1e-6)
    assert float(scaled.denominator) == 8.0
    assert scaled.is_intact()


def test_product_distributes_over_the_sum():
    assert_equal(3.0 * (make(0) + make(1)), 3.0 * make(0) + 3.0 * make(1))


@pytest.mark.parametrize("factor", [0, 0.0, float("nan"), float("inf"), True, "2", None])
def test_bad_factors_are_refused(factor):
    with pytest.raises((ValueError, TypeError)):
        make() * factor


def test_traced_zero_factor_is_no_release():
    assert not jax.jit(lambda c: (make() * c).is_intact())(0.0)


# -- sums over a mapped axis


def test_psum_sums_the_tree_only():
    parts = [make(i) for i in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *parts)
    totals = jax.vmap(lambda s: s.psum("i"), axis_name="i")(stacked)
    total = jax.tree.map(lambda x: x[1], totals)
    assert_equal(total, parts[0] + parts[1] + parts[2])
    assert total.is_intact()


def test_a_bare_psum_is_seen():
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *[make(i) for i in range(3)])
    total = jax.vmap(lambda s: jax.lax.psum(s, "i").is_intact(), axis_name="i")(stacked)
    assert not total.any()


def test_psum_hands_on_a_part_that_was_changed():
    parts = [make(0), tree_only(lambda x: 2 * x, make(1)), make(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *parts)
    assert not jax.vmap(lambda s: s.psum("i").is_intact(), axis_name="i")(stacked).any()


# -- as a pytree


def test_pytree_round_trip_keeps_everything():
    value = make(
        shares=jnp.array([1.0, 3.0]), groups=(0, 1), sensitivity=jnp.ones(2), lift=jnp.negative
    )
    again = jax.tree.unflatten(jax.tree.structure(value), jax.tree.leaves(value))
    assert_equal(value, again)
    assert again.groups == (0, 1)
    assert again.lift is jnp.negative
    assert jax.jit(lambda s: s)(value).is_intact()


def test_scan_carries_a_sum():
    parts = jax.tree.map(lambda *x: jnp.stack(x), *[make(i) for i in range(4)])
    total, _ = jax.lax.scan(lambda acc, part: (acc + part, None), make(9), parts)
    assert_equal(total, make(9) + make(0) + make(1) + make(2) + make(3))


def test_relations():
    assert {r.name for r in NeighboringRelation} == {"ADD_REMOVE", "ZERO_OUT", "REPLACE_ONE"}


# -- bad input


@pytest.mark.parametrize("name", ["sensitivity", "denominator"])
@pytest.mark.parametrize(
    "value", [0.0, -1.0, float("nan"), float("inf"), 1e-30, 1e30, True, "1", None, np.ones(2)]
)
def test_bad_numbers_are_refused(name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        make(**{name: value})


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32])
def test_sums_below_float32_are_refused(dtype):
    with pytest.raises(TypeError, match=r"leaf \['w'\] is"):
        ClippedSum({"w": jnp.zeros(2, dtype)}, 1.0, 1.0)


@pytest.mark.parametrize(
    ("groups", "sensitivity", "shares"),
    [((0,), [1.0], None), ((0, 2), [1.0, 1.0], None), ((0, 1), 1.0, None), ((0, 1), [1.0, -1.0], None),
     ((0, 1), [1.0, 1.0], [1.0]), ((0, 1), [1.0, 1.0], [1.0, 0.0]), (None, 1.0, [1.0])],
)  # fmt: skip
def test_groups_that_do_not_fit_are_refused(groups, sensitivity, shares):
    arrays = [None if v is None else jnp.asarray(v) for v in (sensitivity, shares)]
    with pytest.raises(ValueError, match=r"groups|sensitivity|shares"):
        make(sensitivity=arrays[0], shares=arrays[1], groups=groups)


# -- tampering


def scaled(factor, value):
    return jax.tree.map(lambda x: factor * x, value)


def tree_only(change, value):
    """Changes the tree and leaves sensitivity and check alone."""
    children, static = value.tree_flatten_with_keys()
    names = [k.name for k, _ in children]
    leaves = [
        jax.tree.map(change, v) if n == "tree" else v
        for n, (_, v) in zip(names, children, strict=True)
    ]
    return ClippedSum.tree_unflatten(static, leaves)


TAMPERINGS = {
    "scaled": lambda s: scaled(0.5, s),
    "negated": lambda s: scaled(-1.0, s),
    "sign": functools.partial(jax.tree.map, jnp.sign),
    "clipped": functools.partial(jax.tree.map, lambda x: jnp.clip(x, -0.3, 0.3)),
    # Beyond every small number that the sum carries, so that only the tree changes.
    "largest clipped": lambda s: jax.tree.map(lambda x: jnp.minimum(x, 40.0), tree_only(lambda x: 30 * x, s)),
    "shifted": functools.partial(jax.tree.map, lambda x: x + 1e-3),
    "squared": functools.partial(jax.tree.map, jnp.square),
    "tree doubled": functools.partial(tree_only, lambda x: 2 * x),
    "tree centred": functools.partial(tree_only, lambda x: x - x.mean()),
    "tree set to 0": functools.partial(tree_only, jnp.zeros_like),
    "tree of NaN": functools.partial(tree_only, lambda x: x * jnp.nan),
    "average of two": lambda s: jax.tree.map(lambda x, y: (x + y) / 2, s, make(7)),
    "average with zero": lambda s: jax.tree.map(lambda x, y: 0.9 * x + 0.1 * y, s, tree_only(jnp.zeros_like, s)),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
@pytest.mark.parametrize("of", [make, grouped])
def test_tampering_is_seen_and_stays_seen(name, of):
    value = make() if name == "average of two" else of()
    changed = TAMPERINGS[name](value)
    assert not changed.is_intact()
    assert not (changed * 2.0).is_intact()
    assert not (changed + changed).is_intact()


@pytest.mark.parametrize(
    "of", [make, grouped, lambda: 1e-6 * make(), lambda: 1e6 * make(), lambda: tree_only(lambda x: x, make())]
)  # fmt: skip
def test_untouched_sums_are_intact(of):
    value = of()
    assert value.is_intact()
    assert jax.jit(lambda s: s.is_intact())(value)


def test_an_empty_batch_is_intact():
    assert ClippedSum({"w": jnp.zeros((4, 3))}, 1.0, 4.0).is_intact()
    assert ClippedSum({}, 1.0, 4.0).is_intact()


@pytest.mark.parametrize("times", [1, 2])
def test_a_sum_that_is_the_same_on_all_devices_is_not_summed_over_them(times):
    """A batch that nobody sharded, or a second psum: each unit would count once for each device."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("d")

    def body(x):
        total = ClippedSum({"w": x.sum(0), "unused": jnp.zeros(2)}, 1.0, 4.0)
        for _ in range(times):
            total = total.psum("d")
        return total.tree

    def run(spec):
        mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=whole)
        if times > 1:  # op by op, every one of a hundred would be a program
            mapped = jax.jit(mapped)
        return mapped(jnp.ones((2, 3)))

    if times == 1:
        assert run(split)["w"].tolist() == [2.0] * 3
    else:
        with pytest.raises(ValueError, match="same on all devices"):
            run(split)
    with pytest.raises(ValueError, match="same on all devices"):
        run(whole)
