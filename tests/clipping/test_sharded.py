"""On eight devices the sum is that of one, and no example reaches another's gradient. In a process of its own."""

import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.mark.slow
@pytest.mark.as_shipped
def test_on_virtual_devices():
    """(`test_sharded_clipping.py` has two devices as well.)"""
    command = [sys.executable, "-W", "error", str(HERE / "sharded.py"), "8"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.split() == [
        "check_r13",
        "check_shard_map",
        "check_independence",
        "check_nonfinite_on_one_device",
        "check_keys",
        "check_jit_with_sharded_batch",
        "check_explicit_mesh",
    ]
