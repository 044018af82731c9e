"""Keeps the tests on the CPU, where their expected numbers were made, and saves what costs time and tests nothing.

With jax's compilation cache the workers and the examples' processes compile each program once. Most of the tests' time
is compilation, so programs are compiled with little optimisation unless XLA_FLAGS says something: `.ci/run` sets it
empty for those marked `as_shipped`, which look at the compiled program itself (memory, collectives), compare bits, or
hold a contract in programs as users compile them. Processes that tests start inherit the flags.
"""

import os
import pathlib

import pytest
from compile_options import FLAGS

_CACHE = pathlib.Path(__file__).parent.parent / ".jax_cache"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Gives each worker neighbours, which share oracles, programs and fixtures; the end of the run is shared out."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None
