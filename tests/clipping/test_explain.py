"""What the ghost engine says that it does."""

import pathlib
import re

import jax
import jax.numpy as jnp
import pytest
from clipping_models import PLAIN

from opake_jax import clipping


def ways(name, **options):
    loss_fn, params, batch = PLAIN[name]()
    example = jax.tree.map(lambda x: x[0], batch)
    table = clipping.explain(loss_fn, params, example, **options)
    return {leaf.path: leaf for leaf in table.leaves}, str(table)


def test_each_leaf_has_its_way_and_reason():
    leaves, text = ways("mlp")
    assert leaves["a"].way.startswith("rank one")
    assert leaves["a"].why == "product: K=1, M=6, N=8"
    assert leaves["b"].way == "whole"
    assert "K=1, M=8, N=4" in text


def test_rows_and_products_of_a_tied_table_are_one_leaf():
    leaves, _ = ways("transformer tied")
    assert leaves["embedding"].why == "product + rows: K=5, R=5, M=11, N=6"


@pytest.mark.parametrize(
    ("name", "leaf", "why"),
    [
        ("transformer scan remat", "blocks/up", "product: S=2, K=5, M=8, N=6"),
        ("rnn", "h", "product: K=6, M=5, N=5"),
        ("cnn", "w", "convolution: K=42, M=36, N=8"),
        ("weight decay", "w", "product + a constant: K=4, M=6, N=6"),
        ("cnn depthwise", "w", "it comes out of conv_general_dilated"),
        ("cond", "w", "it comes out of cond"),
    ],
)
def test_patterns_are_found(name, leaf, why):
    """These are what makes the engine fast: a pattern that is lost still gives right sums, at many times the cost."""
    leaves, _ = ways(name)
    found = leaves[leaf].why
    assert found == why or (name == "cnn depthwise" and leaves[leaf].way == "whole")


def test_memory_limits_and_batch_sizes_change_the_way():
    loss_fn = lambda w, x: jnp.sum(jnp.tanh(x @ w))  # noqa: E731
    w, x = (
        jax.ShapeDtypeStruct((512, 512), jnp.float32),
        jax.ShapeDtypeStruct((300, 512), jnp.float32),
    )
    way = lambda **o: clipping.explain(loss_fn, w, x, **o).leaves[0].way  # noqa: E731
    assert way(batch_size=4) == "computed and kept"
    assert way(batch_size=4, engine=clipping.Ghost(memory_limit=0)) == "computed for the norm alone"
    with pytest.raises(TypeError, match="Ghost"):
        way(engine=clipping.Vmap())


def test_the_table_in_the_guide_is_what_comes_out():
    """The decoder M3 of the benchmarks, its layers in a loop."""
    guide = pathlib.Path(__file__).parents[2] / "docs" / "guide_clipping.md"
    found = re.search(
        r"```python\n(from \S+ import explain\n.*?)```\n\n```text\n(.*?)```",
        guide.read_text(),
        re.S,
    )
    code, printed = found.groups()
    tables = []
    names = {"jax": jax, "jnp": jnp, "print": lambda table: tables.append(str(table))}
    exec(code, names)
    assert [line.rstrip() for line in tables[0].splitlines()] == printed.splitlines()
