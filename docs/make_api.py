"""Writes docs/api.md from the docstrings of the public names: python docs/make_api.py

`render()` returns the page; tests/test_api_page.py holds the stored one against it.
"""

import enum
import importlib
import inspect
import pathlib
import pkgutil
import re
import sys

import opake_jax

PAGE = pathlib.Path(__file__).parent / "api.md"
HEAD = """# API reference

Written by `docs/make_api.py` from the docstrings; do not edit. Names that a room hands on from another are listed where they
are made.
"""

# What a signature says that a reader does not need: addresses, module paths, private fields, self, Any.
_SHORTER = (
    (r" at 0x[0-9a-f]+", ""),
    (
        r"\b(?:opake_jax|collections|jax|jaxlib|typing|numpy|optax|matplotlib)\.(?:\w+\.)*(\w+)",
        r"\1",
    ),
    (r"<(\w+\.\w+): [^>]*>", r"\1"),
    (r", _\w+: .*? = <factory>", ""),
    (r"\(self(?:, )?", "("),
    (r"'", ""),
    (r": Any = ", "="),
    (r": Any(?=[,)])| -> (?:Any|None)$", ""),
)


def modules() -> list[str]:
    """Returns the public modules, but for the short ones under dpsgd that hand on other rooms' names."""
    found = (info.name for info in pkgutil.walk_packages(opake_jax.__path__, "opake_jax."))
    public = (n for n in found if not any(part.startswith("_") for part in n.split(".")))
    return sorted(n for n in public if not n.startswith("opake_jax.dpsgd."))


def render() -> str:
    """Returns the whole page."""
    parts = [HEAD]
    for name in modules():
        module = importlib.import_module(name)
        parts.append(f"\n## {name}\n\n{_text(module)}\n")
        for item in module.__all__:
            value = getattr(module, item)
            owner = f"{getattr(value, '__module__', name)}."
            if not inspect.ismodule(value) and owner.startswith(f"{name}."):
                parts.append(_entry(name, item, value))
    return "".join(parts)


def _entry(module: str, name: str, value: object) -> str:
    """Returns the section of one public name."""
    lines = [f"\n### {module.removeprefix('opake_jax.')}.{name}\n"]
    if isinstance(value, enum.EnumMeta):
        lines.append(f"\n```text\n{', '.join(f'{name}.{item.name}' for item in value)}\n```\n")
        lines.append(f"\n{_text(value)}\n")
    elif callable(value):
        lines.append(f"\n```text\n{name}{_signature(value)}\n```\n")
        lines.append(f"\n{_text(value)}\n")
    if inspect.isclass(value):
        lines += [_member(name, key, item) for key, item in sorted(_members(value).items())]
    return "".join(lines)


def _members(cls: type) -> dict[str, object]:
    """Returns the documented public methods and properties of a class, inherited ones of this package included."""
    found: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("opake_jax"):
            found |= {k: v for k, v in vars(base).items() if not k.startswith("_")}
    return {k: v for k, v in found.items() if inspect.isfunction(v) or isinstance(v, property)}


def _member(owner: str, name: str, item: object) -> str:
    doc = _text(item)
    if not doc:
        return ""
    if isinstance(item, property):
        return f"\n**`{owner}.{name}`** (attribute)\n\n{doc}\n"
    return f"\n**`{owner}.{name}{_signature(item)}`**\n\n{doc}\n"


def _signature(value: object) -> str:
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    for pattern, short in _SHORTER:
        text = re.sub(pattern, short, text)
    return text


def _text(value: object) -> str:
    """Returns the docstring as Markdown: sections bold, examples fenced (as text: they are tested where they stand)."""
    doc = inspect.getdoc(value) or ""
    out: list[str] = []
    fenced = False
    for line in doc.splitlines():
        is_example = line.startswith(">>>") or (fenced and line.strip() != "")
        if is_example != fenced:
            out.append("```text" if is_example else "```")
            fenced = is_example
        match = re.fullmatch(
            r"(Args|Returns|Raises|Guarantee|Attributes|Yields|Reference|References):", line
        )
        out.append(
            f"**{match[1]}**\n" if match else re.sub(r"^  (\*{0,2}\w[\w, ]*): ", r"- `\1`: ", line)
        )
    if fenced:
        out.append("```")
    return "\n".join(out)


if __name__ == "__main__":
    page = render()
    PAGE.write_text(page)
    sys.stdout.write(f"{PAGE}: {len(page.splitlines())} lines\n")
