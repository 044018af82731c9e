"""What an auditor of a paper asks for: one statement of what was run and what it guarantees."""

import dataclasses
from typing import Any

from opake_jax._numerics.rounding import round_down, round_up

__all__ = ["Report", "round_down", "round_up"]

# Above this, (epsilon, delta)-DP says little: e^10 is a factor of 22,000.
_WEAK_EPSILON = 10.0


@dataclasses.dataclass(frozen=True)
class Report:
    """A privacy statement with everything that it rests on. `str()` prints it; `to_dict()` stores it.

    Attributes:
      epsilon: upper bound of epsilon at `delta`: the number to publish.
      epsilon_lower: lower bound of the same number for the dominating pair: how tight it is.
      pair_is_tight: whether the dominating pair is exact for the mechanism.
      delta: the delta of the statement.
      unit: whose data is protected.
      relation: which datasets count as neighbours.
      sampler: what chose the batches, with its cap.
      noise_multiplier: noise std on the sum over the clipping norm (each phase, if scheduled).
      clipping_norm: bound on each unit's contribution.
      denominator: the public number that the noisy sum is divided by.
      steps: number of steps covered.
      accountant: how epsilon was computed.
      assumptions: what the reader has to believe.
      seeded: for each kind of key True if it is `key(seed)` itself, False if it is not (it may still
        have been derived from one, which cannot be seen), None where no key was seen.
    """

    epsilon: float
    epsilon_lower: float
    pair_is_tight: bool
    delta: float
    unit: str
    relation: str
    sampler: str
    noise_multiplier: str
    clipping_norm: str
    denominator: float
    steps: int
    accountant: str
    assumptions: tuple[str, ...]
    seeded: dict[str, bool | None]

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain Python values, ready for json.dump (infinity is a string)."""
        fields = dataclasses.asdict(self)
        fields["assumptions"] = list(self.assumptions)
        for name in ("epsilon", "epsilon_lower"):
            if fields[name] == float("inf"):
                fields[name] = "inf"
        return fields

    def __str__(self) -> str:
        tight = "exact" if self.pair_is_tight else "an upper bound"
        lines = [
            f"epsilon <= {round_up(self.epsilon)} at delta = {self.delta:.12g}",
            f"  bracket            [{round_down(self.epsilon_lower, 7)}, {round_up(self.epsilon, 7)}]"
            f" (the dominating pair is {tight} for this mechanism)",
            f"  unit               {self.unit}",
            f"  relation           {self.relation}",
            f"  sampler            {self.sampler}",
            f"  noise multiplier   {self.noise_multiplier}",
            f"  clipping norm      {self.clipping_norm}",
            f"  divided by         {self.denominator:g} (public)",
            f"  steps              {self.steps}",
            f"  accountant         {self.accountant}",
            f"  randomness         {self._randomness()}",
            "  assumptions        " + self.assumptions[0],
            *(" " * 21 + text for text in self.assumptions[1:]),
        ]
        if self.epsilon > _WEAK_EPSILON:
            lines.append(
                "  advice             epsilon above 10 is a weak guarantee: more noise, fewer steps, "
                "or more data"
            )
        return "\n".join(lines)

    def _randomness(self) -> str:
        seen = {name: made for name, made in self.seeded.items() if made is not None}
        if not seen:
            return "no key was seen by this plan"
        bad = [name for name, made in seen.items() if made]
        if bad:
            return (
                f"SEEDED ({', '.join(bad)}): for tests only; whoever knows the seed can subtract the "
                "noise"
            )
        return (
            f"keys that are no bare seed ({', '.join(seen)}); that they were not derived from a seed "
            "cannot be seen here"
        )
