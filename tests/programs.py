"""Runs an example within this process, whose imports and compiled programs it then shares."""

import contextlib
import io
import os
import runpy
import sys

import pytest


def run_here(path, *arguments):
    """Returns what the program prints; argv, the path and the environment are put back."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        patch.syspath_prepend(str(path.parent))
        patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # which a smoke run sets
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()
