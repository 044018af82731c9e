"""Keeps the tests on the CPU, where their expected numbers were made."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
