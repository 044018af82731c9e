"""What has been spent so far, and is anything left?"""

import dataclasses
from typing import Any

from opake_jax._checks import is_traced
from opake_jax.accounting import _json
from opake_jax.accounting._budgets import Budget
from opake_jax.accounting._process import Process, identity
from opake_jax.accounting._queries import Queries

__all__ = ["Accountant"]

_FORMAT = "opake_jax.accounting/1"


@dataclasses.dataclass(frozen=True)
class Accountant(Queries):
    """An immutable ledger of what was run; it answers what a process answers.

    `ledger | process` is a new ledger. To calibrate what is still to come, put the ledger before it:
    `calibrate(budget, lambda sigma: ledger | step(sigma) * 1000, ...)`.

    Attributes:
      budget: what the whole may cost, or None.
      process: all that was run.

    >>> from opake_jax.accounting import epsilon_budget, gaussian
    >>> ledger = Accountant(epsilon_budget(3.0, delta=1e-5)) | gaussian(5.0) * 4
    >>> round(ledger.spent, 4), ledger.budget_exceeded
    (1.555, False)
    >>> (ledger | gaussian(1.0)).budget_exceeded
    True
    """

    budget: Budget | None = None
    process: Process = dataclasses.field(default_factory=identity)

    def __post_init__(self) -> None:
        if not (self.budget is None or isinstance(self.budget, Budget)):
            raise TypeError(f"budget must be epsilon_budget(...), its kin or None: {self.budget!r}")
        if not isinstance(self.process, Process):
            raise TypeError(f"process must be a process, got {type(self.process).__name__}")

    @property
    def parts(self) -> Any:
        """Returns the mechanisms and their counts."""
        return self.process.parts

    @property
    def relation(self) -> Any:
        """Returns the neighbouring relation of what was run."""
        return self.process.relation

    def __or__(self, process: Any) -> "Accountant":
        """Returns the ledger with `process` entered.

        Raises:
          ValueError: the process is stated under another neighbouring relation.
        """
        if not isinstance(process, Process):
            return NotImplemented
        return dataclasses.replace(self, process=self.process | process)

    @property
    def spent(self) -> float:
        """Returns the certified answer that the budget limits."""
        if self.budget is None:
            raise ValueError(
                "this ledger has no budget: ask epsilon_at(delta), or make it with one"
            )
        return self.budget.spent(self.process)

    @property
    def budget_exceeded(self) -> bool:
        """Returns True if the certified answer lies beyond the budget; False without a budget.

        Raises:
          TypeError: the ledger's numbers are traced: a program cannot branch on them; compare `spent` there.
        """
        if self.budget is None:
            return False
        spent = self.spent
        if is_traced(spent):
            raise TypeError(
                "budget_exceeded needs concrete numbers: inside jit compare spent with the target"
            )
        return not self.budget.allows(spent)

    def to_json(self) -> str:
        """Returns the ledger as JSON text: names and numbers."""
        return _json.dumps(
            {
                "format": _FORMAT,
                "budget": _json.encode_budget(self.budget),
                "process": _json.encode_process(self.process),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Accountant":
        """Returns the ledger that `to_json` wrote; every number is checked again.

        Raises:
          ValueError: not such a text, an unknown name, or a number out of range.
        """
        value = _json.loads(text)
        if not isinstance(value, dict) or value.get("format") != _FORMAT:
            raise ValueError(f"not a ledger of format {_FORMAT!r}")
        if set(value) != {"format", "budget", "process"}:
            raise ValueError(f"a ledger has format, budget and process, got {sorted(value)}")
        return cls(_json.decode_budget(value["budget"]), _json.decode_process(value["process"]))
