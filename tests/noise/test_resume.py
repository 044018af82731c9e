"""A run that was killed and resumed is the run that was not (report R24)."""

import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import chex
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from programs import run_here

from opake_jax import dpsgd
from opake_jax.random import key, key_data, key_from_data

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "resume.py"


def run_example(directory, *options):
    return run_here(EXAMPLE, "--smoke", "--directory", directory, *options)


def outcome(printed):
    """Returns the lines on the last step, the weights (every digit) and epsilon."""
    return re.findall(r"^(?:step|epsilon).*$", printed, re.MULTILINE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns (directory, what it printed) of ten steps without a break."""
    directory = tmp_path_factory.mktemp("whole")
    printed = run_example(directory, "--seed", "3")
    assert len(outcome(printed)) == 2
    return directory, printed


@pytest.mark.slow
def test_killed_and_resumed_with_orbax_is_bit_equal(whole, tmp_path):
    options = "--smoke", "--directory", str(tmp_path), "--seed", "3", "--kill-at", "7"
    killed = subprocess.run([sys.executable, EXAMPLE, *options], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    # Another seed after the kill: every key comes from the checkpoint. (A fresh run with it differs.)
    resumed = run_example(tmp_path, "--seed", "4")
    assert "resumed after step 5" in resumed
    assert outcome(resumed) == outcome(whole[1])


@pytest.mark.slow
def test_a_half_written_orbax_checkpoint_is_not_loaded(whole, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(whole[0], directory)
    assert sorted(p.name for p in directory.iterdir()) == ["10", "5"]
    # Killed before the final rename, with half of the bytes on disk.
    half = (directory / "10").rename(directory / "10.orbax-checkpoint-tmp")
    for path in half.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    resumed = run_example(directory)
    assert "resumed after step 5" in resumed
    assert outcome(resumed) == outcome(whole[1])


@pytest.mark.slow
def test_a_checkpoint_with_missing_arrays_is_an_error(whole, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(whole[0], directory)
    (directory / "10" / "_CHECKPOINT_METADATA").unlink()
    shutil.rmtree(directory / "10" / "default")
    with pytest.raises(ValueError, match="Composite"):  # no array of the state is found
        run_example(directory)


# -- flax.serialization: one file, written beside and renamed


def save(path, state):
    """Writes the state so that the file at `path` is always a whole one: the docs' recipe."""
    beside = path.with_suffix(".part")
    with beside.open("wb") as file:
        file.write(flax.serialization.to_bytes(state))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def load(path, like):
    state = flax.serialization.from_bytes(like, path.read_bytes())
    chex.assert_trees_all_equal_shapes_and_dtypes(state, like)
    return state


@pytest.fixture(scope="module")
def training():
    """Returns (plan, first state, step): a small regression under Adam."""
    rng = np.random.default_rng(0)
    data = (
        jnp.asarray(rng.normal(size=(200, 3)), jnp.float32),
        jnp.asarray(rng.normal(size=200), jnp.float32),
    )
    plan = dpsgd.plan(
        dataset_size=200, expected_batch_size=30, num_steps=10, clipping_norm=1.0, noise_multiplier=1.0, delta=1e-3
    )  # fmt: skip
    grad_fn = plan.clipped_grad(lambda w, example: (w @ example[0] - example[1]) ** 2)
    tx = plan.optimizer(optax.adam(0.1), key(1))
    weights = jnp.zeros(3)
    first = {
        "step": np.int32(0),
        "weights": weights,
        "tx": tx.init(weights),
        "sampling": key_data(key(2)),
    }

    @jax.jit
    def update(weights, tx_state, indices, mask):
        clipped, _ = grad_fn(weights, (data[0][indices], data[1][indices]), mask=mask)
        change, tx_state = tx.update(clipped, tx_state, weights)
        return optax.apply_updates(weights, change), tx_state

    def run(state, until):
        batches = plan.batches(key_from_data(state["sampling"]), start=int(state["step"]))
        for indices, mask in itertools.islice(batches, until - int(state["step"])):
            weights, tx_state = update(state["weights"], state["tx"], indices, mask)
            step = np.int32(state["step"] + 1)
            state = {**state, "step": step, "weights": weights, "tx": tx_state}
        return state

    return plan, first, run


def test_five_and_five_steps_through_flax_are_ten(training, tmp_path):
    plan, first, run = training
    whole = run(first, 10)
    save(tmp_path / "state.msgpack", run(first, 5))
    fresh = jax.tree.map(jnp.zeros_like, first)  # nothing but shapes survives the kill
    resumed = run(load(tmp_path / "state.msgpack", fresh), 10)
    chex.assert_trees_all_equal(whole, resumed)
    assert int(resumed["tx"][0].count) == 10
    assert plan.epsilon_after(10) == plan.report().epsilon


def test_a_half_written_file_is_never_loaded(training, tmp_path):
    _, first, run = training
    path = tmp_path / "state.msgpack"
    save(path, run(first, 5))
    good = path.read_bytes()
    path.with_suffix(".part").write_bytes(
        good[: len(good) // 2]
    )  # killed while writing the next one
    assert int(load(path, first)["step"]) == 5
    for length in (0, 1, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(ValueError, match=r"incomplete input|exceeds"):
            load(path, first)


def test_state_and_plan_are_arrays_and_json(training):
    plan, first, _ = training
    assert all(isinstance(x, (np.ndarray, np.generic, jax.Array)) for x in jax.tree.leaves(first))
    assert not any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(first))
    assert json.loads(json.dumps(plan.report().to_dict()))
