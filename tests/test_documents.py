"""Docstring examples, README blocks and docs pages run as they stand."""

import doctest
import importlib
import pathlib
import pkgutil
import re

import pytest

import opake_jax

REPO = pathlib.Path(__file__).parent.parent
PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def modules():
    for info in pkgutil.walk_packages(opake_jax.__path__, "opake_jax."):
        yield info.name


@pytest.mark.parametrize("name", list(modules()))
def test_docstring_examples(name):
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failures == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    """The blocks of one page share one namespace, top to bottom, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for match in BLOCK.finditer(page.read_text()):
        line = page.read_text()[: match.start()].count("\n") + 1
        source = "\n" * line + match.group(1)
        exec(compile(source, str(page), "exec"), namespace)
