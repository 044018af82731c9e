"""The house rules that a machine can hold: imports run downwards, files are short, names are listed."""

import ast
import importlib
import pathlib
import pkgutil

import pytest

import opake_jax

ROOT = pathlib.Path(opake_jax.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Each room and the rooms that it may import from (architecture.md, "The house").
_FLOOR = {"random", "types", "_checks", "_threefry"}
ALLOWED = {
    "random": set(),
    "_threefry": {"random"},
    "_checks": {"random"},
    "types": {"_checks"},
    "_numerics": {"random", "types", "_checks"},
    "accounting": {*_FLOOR, "_numerics"},
    "clipping": {*_FLOOR, "_numerics"},
    "noise": {*_FLOOR, "_numerics"},
    "sampling": {*_FLOOR, "_numerics", "accounting"},
    "dpsgd": {*_FLOOR, "_numerics", "accounting", "clipping", "noise", "sampling"},
    "auditing": {*_FLOOR, "_numerics", "accounting"},
    "plotting": {*_FLOOR, "_numerics", "accounting", "clipping", "noise", "sampling", "dpsgd"},
    "cli": {*_FLOOR, "_numerics", "accounting", "dpsgd", "auditing", "plotting"},
}
# Which rooms may import which third-party packages beside jax and numpy.
EXTRA = {"optax": {"noise", "dpsgd"}, "matplotlib": {"plotting"}}
NEVER = {"flax", "equinox", "sklearn", "opacus", "dp_accounting", "jax_privacy", "scipy", "torch"}


def room(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: pathlib.Path) -> set[str]:
    """Absolute dotted names that a file imports, wherever the statement stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_downwards(path):
    here = room(path)
    if here == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "opake_jax":
            target = parts[1]
            assert target == here or target in ALLOWED[here], f"{here} must not import {name}"
        else:
            assert parts[0] not in NEVER, f"{path} imports {name}"
            if parts[0] in EXTRA:
                assert here in EXTRA[parts[0]], f"{here} must not import {parts[0]}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_has_one_idea_and_at_most_500_lines(path):
    assert len(path.read_text().splitlines()) <= 500


def public_modules():
    yield opake_jax
    for info in pkgutil.walk_packages([str(ROOT)], "opake_jax."):
        if not any(part.startswith("_") for part in info.name.split(".")[1:]):
            yield importlib.import_module(info.name)


@pytest.mark.parametrize("module", list(public_modules()), ids=lambda m: m.__name__)
def test_public_modules_list_their_names(module):
    names = module.__all__  # ruff (RUF022) keeps it sorted
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(module, name) is not None


def test_the_global_x64_flag_is_never_touched():
    for path in FILES:
        assert "config.update" not in path.read_text(), path
