"""The API reference is what the docstrings say now."""

import importlib.util
import pathlib

import opake_jax

PATH = pathlib.Path(__file__).parent.parent / "docs" / "make_api.py"


def load():
    spec = importlib.util.spec_from_file_location("make_api", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stored_page_is_current():
    make_api = load()
    assert make_api.PAGE.read_text() == make_api.render(), "run: python docs/make_api.py"


def test_every_room_is_on_the_page():
    found = load().modules()
    assert {f"opake_jax.{name}" for name in opake_jax.__all__} <= set(found)


def test_the_page_does_not_depend_on_the_process():
    assert " at 0x" not in load().render()
