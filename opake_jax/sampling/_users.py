"""User-level sampling: users take part by Poisson sampling, each with all of its records."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from opake_jax import _threefry
from opake_jax._checks import check_count, require
from opake_jax.sampling._poisson import PoissonSampler
from opake_jax.sampling._sampler import STATIC, Sampler, check_rows, step_words

__all__ = ["UserSampler"]


@dataclasses.dataclass(frozen=True, init=False, eq=False)
class UserSampler(Sampler):
    """A sampler of users: the privacy unit is everything that one user gave.

    `sample` gives `(indices, mask)` of shape (capacity, records_per_user): a row is a user, its
    columns the user's records. Clip per user: the loss takes a user's stacked records and their mask
    as one example, and `mask.any(axis=1)` marks the rows that are users.

    Args:
      user_ids: for each record its user: integers, shape (records,). How many distinct users there
        are is public.
      sample_rate: rate of each user, in [0, 1].
      capacity: rows; of more users a uniformly random subset is kept, which is accounted for (see
        `PoissonSampler`).
      records_per_user: columns; None: as many as the largest user has. With fewer, a larger user
        takes part with a uniformly random subset of its records, drawn anew each step, which costs
        no privacy.

    Raises:
      TypeError, ValueError: an argument out of range.
    """

    _tag = "sampling, users"

    users: PoissonSampler
    records_per_user: int = dataclasses.field(metadata=STATIC)
    _largest: int = dataclasses.field(metadata=STATIC, repr=False)
    _records: Any = dataclasses.field(repr=False, compare=False)
    _starts: Any = dataclasses.field(repr=False, compare=False)

    def __init__(
        self,
        user_ids: Any,
        sample_rate: float,
        *,
        capacity: int | None = None,
        records_per_user: int | None = None,
    ):
        ids = np.asarray(user_ids)
        require(
            ids.ndim == 1 and ids.size > 0 and np.issubdtype(ids.dtype, np.integer),
            f"user_ids must be a non-empty vector of integers, got shape {ids.shape}, {ids.dtype}",
        )
        _, user, counts = np.unique(ids, return_inverse=True, return_counts=True)
        largest = int(np.max(counts))
        columns = largest
        if records_per_user is not None:
            columns = check_count("records_per_user", records_per_user, minimum=1)
        users = PoissonSampler(len(counts), sample_rate, capacity)
        check_rows("capacity * records_per_user", users.capacity * max(columns, largest))
        self._set(
            users=users,
            records_per_user=columns,
            _largest=largest,
            _records=np.argsort(user, kind="stable").astype(np.int32),
            _starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        )

    @property
    def dataset_size(self) -> int:  # type: ignore[override]
        """Number of users: of privacy units."""
        return self.users.dataset_size

    @property
    def sample_rate(self) -> float:
        """Rate of each user."""
        return self.users.sample_rate

    @property
    def capacity(self) -> int:
        """Rows of a batch."""
        return self.users.capacity

    def process(self, mechanism: Any) -> Any:
        """Returns the accounting of one step, for whole users: truncated Poisson with this cap."""
        return self.users.process(mechanism)

    def _draw(self, words: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        who, which = _threefry.fold(words, np.arange(2, dtype=np.uint32)).T
        users, present = self.users._draw(who, step)
        starts = jnp.asarray(self._starts)
        first, count = starts[users], starts[users + 1] - starts[users]
        offsets = self._offsets(step_words(which, step), count)
        mask = present[:, None] & (offsets < count[:, None])
        indices = jnp.asarray(self._records)[jnp.where(mask, first[:, None] + offsets, 0)]
        return jnp.where(mask, indices, 0), mask

    def _offsets(self, words: jax.Array, count: jax.Array) -> jax.Array:
        """Returns which of its records each user takes part with: int32 (capacity, records_per_user)."""
        shape = (self.capacity, max(self._largest, self.records_per_user))
        place = lax.broadcasted_iota(jnp.int32, shape, 1)
        if self.records_per_user >= self._largest:
            return place
        absent = (place >= count[:, None]).astype(jnp.uint32)
        w0, w1 = _threefry.words(words, shape)
        by_priority = lax.sort((absent, w0, w1, place), num_keys=3)[3]
        return lax.sort(by_priority[:, : self.records_per_user])
