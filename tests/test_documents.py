"""Docstring examples, README blocks and docs pages run as they stand."""

import doctest
import importlib
import importlib.util
import pathlib
import pkgutil
import re

import pytest

import opake_jax

REPO = pathlib.Path(__file__).parent.parent
PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
# A block that needs a package which is not in the extra `test` says so in a comment, which a page does not show.
BLOCK = re.compile(r"^(?:<!-- needs (\w+) -->\n)?```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
NEEDED = sorted({m[1] for page in PAGES for m in BLOCK.finditer(page.read_text()) if m[1]})


def missing(package):
    return package is not None and importlib.util.find_spec(package) is None


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
    text = page.read_text()
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for match in BLOCK.finditer(text):
        if missing(match[1]):
            continue  # the next test says so
        source = "\n" * text[: match.start(2)].count("\n") + match[2]
        exec(compile(source, str(page), "exec"), namespace)


@pytest.mark.parametrize("package", NEEDED)
def test_package_of_a_block_is_here(package):
    if missing(package):
        pytest.skip(f"{package} is not installed: the block of the docs that needs it did not run")
