"""Keeps the tests on the CPU, where their expected numbers were made, and saves what costs time and tests nothing.

With jax's compilation cache the workers and the examples' processes compile each program once. Most of the tests' time
is compilation, so programs are compiled with little optimisation unless XLA_FLAGS says something: `.ci/run` sets it
empty for those marked `as_shipped`, which look at the compiled program itself (memory, collectives), compare bits, or
hold a contract in programs as users compile them. Processes that tests start inherit the flags.
"""

import ctypes
import os
import pathlib

import pytest
from compile_options import FLAGS

_CACHE = pathlib.Path(__file__).parent.parent / ".jax_cache"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

# glibc hands large arrays back to the system when NumPy frees them: page faults were up to 40 % of an accountant's time.
# The numbers are malloc.h's M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD; other C libraries have no mallopt.
_KEPT = {"TRIM_THRESHOLD": (-1, 2**30), "TOP_PAD": (-2, 2**26), "MMAP_THRESHOLD": (-3, 2**30)}
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
for _name, (_parameter, _bytes) in _KEPT.items():
    os.environ.setdefault(f"MALLOC_{_name}_", str(_bytes))  # for processes that tests start
    if _mallopt:
        _mallopt(_parameter, _bytes)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Gives each worker neighbours, which share oracles, programs and fixtures; the end of the run is shared out."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None
