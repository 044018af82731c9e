"""Two real processes with `jax.distributed` on loopback take the steps that one takes."""

import pathlib
import re
import socket
import subprocess
import sys

import pytest
from programs import run_here

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "multihost.py"


SMOKE = "--smoke", "--seed", "3"


def start(*options):
    command = [sys.executable, str(EXAMPLE), *SMOKE, *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return seen(out)


def seen(out):
    """Returns (process line without its first words, sum of absolute weights)."""
    line = re.search(r"process (\d) of (\d), .*: (\d+) draws, .* ([\d.]+)$", out, re.MULTILINE)
    return tuple(map(int, line.groups()[:3])), float(line.group(4))


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    two = [
        start("--coordinator", f"localhost:{port}", "--processes", 2, "--process", p)
        for p in (0, 1)
    ]
    try:
        _, alone = seen(run_here(EXAMPLE, *SMOKE, "--single"))
        together = [finish(p) for p in two]
    finally:
        for process in two:
            process.kill()
    assert [who for who, _ in together] == [(0, 2, 3), (1, 2, 3)]  # three draws each, not six
    assert together[0][1] == together[1][1]
    assert together[0][1] == pytest.approx(alone, rel=1e-6)
