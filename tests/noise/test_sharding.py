"""One mechanism on every layout: eight virtual devices against one, in a process of their own."""

import json
import pathlib
import subprocess
import sys

import pytest

# Another process, about ten compilations.
pytestmark = [pytest.mark.slow, pytest.mark.as_shipped]


@pytest.fixture(scope="module")
def seen():
    script = pathlib.Path(__file__).with_name("eight_devices.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_noise_of_a_sharded_leaf_is_bit_equal_and_no_device_holds_the_whole_leaf(
    seen,
):  # report R21
    assert len(seen["noise"]) == 6
    for row in seen["noise"]:
        assert row["bit_equal"], row
        assert row["still_sharded"], row
        assert not row["whole_leaf_somewhere"], row
        assert row["largest_collective"] <= 4, (
            row
        )  # the norm of the check: one number a leaf at most
        assert row["temporary_bytes"] < 1024 * 136 * 4 / 8, row  # less than a device's own part


def test_noise_is_added_once_and_alike_on_all_devices(seen):  # report R20
    assert len(seen["mapped"]) == 4
    for row in seen["mapped"]:
        assert row["replicas_equal"], row
        assert row["error"] < 1e-5, row
        assert abs(row["std"] - 1) < 4 * (0.5 / 4096) ** 0.5, row  # not 2.83, not 0.354


def test_a_sum_that_was_not_summed_over_the_devices_is_refused(seen):
    found = {row["case"]: row["unsummed"] for row in seen["mapped"]}
    assert found["sums, check_vma=True"] == "raises"
    assert found["sums, check_vma=False"] == "nan"
    assert found["zeros, check_vma=True"] == "raises"


def test_a_sharded_step_is_the_step_of_one_device(seen):
    assert len(seen["step"]) == 3
    for row in seen["step"]:
        assert row["clipped_error"] < 1e-5, row
        assert row["step_error"] < 1e-6, row
        assert row["largest_collective"] <= row["largest_parameter"], row
