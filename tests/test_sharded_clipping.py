"""Clipping on 2 and 8 virtual devices, in a process of its own: examples never mix (R13, R14)."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # another process, a dozen compilations


@pytest.fixture(scope="module", params=[2, pytest.param(8, marks=pytest.mark.as_shipped)])
def seen(request):
    script = pathlib.Path(__file__).with_name("sharded_clipping.py")
    flags = os.environ["XLA_FLAGS"] + f" --xla_force_host_platform_device_count={request.param}"
    run = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_the_fault_is_there_without_care(seen):
    """R13: a plain vmap(grad) of a replicated parameter sums over the devices: the test has power."""
    assert seen["plain_per_example"] != seen["rows"]


def test_each_example_is_clipped_by_itself_inside_shard_map(seen):
    """R13: per-example norms are those of the rows; the sum is that of one device."""
    for name, case in seen["shard_map"].items():
        assert case["norm_error"] < 1e-6, name
        assert case["sum_error"] < 1e-6, name
        assert case["others_unchanged"], name


def test_a_sharded_sum_moves_one_parameter_sized_all_reduce(seen):
    """R14: under plain jit with a sharded batch; no all-gather, no all-to-all; and the same sum."""
    for name, case in seen["jit"].items():
        assert case["all_reduces_of_parameter_size"] >= 1, name
        assert case["gathers"] == 0, name
        assert case["largest_collective"] <= case["largest_parameter"], name
        assert case["sum_error"] < 1e-5, name
