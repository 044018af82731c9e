"""How is a ledger written down? By the names and numbers that built it.

A mechanism is `{"<factory>": {<argument>: <number>, ...}}`; reading calls the factory again, so that every
number is checked. Nothing is executed, and an unknown name is an error.
"""

import dataclasses
import json
import math
import sys
from typing import Any

from opake_jax.accounting import _budgets
from opake_jax.accounting._evaluate import any_traced
from opake_jax.accounting._process import Mechanism, Process, compose
from opake_jax.types import NeighboringRelation

__all__ = ["decode_budget", "decode_process", "dumps", "encode_budget", "encode_process", "loads"]

_BUDGETS = {
    name: getattr(_budgets, name)
    for name in ("advantage_budget", "beta_budget", "delta_budget", "epsilon_budget", "risk_budget")
}


def dumps(value: Any) -> str:
    """Returns JSON text; NaN and infinities, which JSON has not, are errors."""
    return json.dumps(value, indent=2, allow_nan=False)


def loads(text: str) -> Any:
    """Returns the value of JSON text; a name that stands twice in one object is an error."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError(f"a name stands twice: {[name for name, _ in pairs]}")
        return dict(pairs)

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no number here")

    return json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)


def encode_process(process: Process) -> list[Any]:
    """Returns the parts of a process as lists [count, mechanism]."""
    if any_traced(process.parts):
        raise TypeError("only a process of concrete numbers can be written down")
    return [[_number(count), _encode(mechanism)] for mechanism, count in process.parts]


def decode_process(value: Any) -> Process:
    """Returns the process that `encode_process` wrote."""
    if not isinstance(value, list) or not all(isinstance(v, list) and len(v) == 2 for v in value):
        raise ValueError(f"a process must be a list of [count, mechanism], got {value!r}")
    return compose(*(_decode(mechanism) * count for count, mechanism in value))


def encode_budget(budget: Any) -> Any:
    """Returns a budget as {factory: numbers}; None stays None."""
    if budget is None:
        return None
    fields = {f.name: getattr(budget, f.name) for f in dataclasses.fields(budget)}
    for name, factory in _BUDGETS.items():
        if factory.__annotations__["return"] is type(budget):
            return {name: fields}
    raise TypeError(f"unknown budget {budget!r}")


def decode_budget(value: Any) -> Any:
    """Returns the budget that `encode_budget` wrote."""
    if value is None:
        return None
    name, fields = _single(value)
    return _called(_BUDGETS.get(name), "budget", name, fields)


def _number(value: Any) -> int | float:
    number = float(value)
    return int(number) if number == math.floor(number) and abs(number) < 2**53 else number


def _encode(value: Any) -> Any:
    if isinstance(value, Mechanism):
        names = [f.name for f in dataclasses.fields(value)]  # type: ignore[arg-type]
        fields = {name: _encode(getattr(value, name)) for name in names}
        return {value.name: fields}
    if isinstance(value, NeighboringRelation):
        return value.value
    if isinstance(value, tuple):
        return [_encode(v) for v in value]
    return _number(value)


def _decode(value: Any) -> Any:
    name, fields = _single(value)
    factories = {
        cls.name: getattr(sys.modules[cls.__module__], cls.name, None) for cls in _kinds(Mechanism)
    }
    decoded = {}
    for key, entry in fields.items():
        if isinstance(entry, dict):
            entry = _decode(entry)
        elif key == "relation":
            entry = NeighboringRelation(entry)
        decoded[key] = entry
    return _called(factories.get(name), "mechanism", name, decoded)


def _kinds(cls: Any) -> list[Any]:
    """Returns all subclasses: every mechanism that was imported."""
    kinds: list[Any] = list(cls.__subclasses__())
    return kinds + [kind for sub in kinds for kind in _kinds(sub)]


def _single(value: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(value, dict) and len(value) == 1:
        ((name, fields),) = value.items()
        if isinstance(fields, dict):
            return name, fields
    raise ValueError(f"expected {{name: {{argument: number}}}}, got {value!r}")


def _called(factory: Any, kind: str, name: str, fields: dict[str, Any]) -> Any:
    if factory is None:
        raise ValueError(f"unknown {kind} {name!r}: this version has no factory of that name")
    try:
        return factory(**fields)
    except TypeError as error:
        raise ValueError(f"{kind} {name!r} cannot be built from {fields!r}: {error}") from error
