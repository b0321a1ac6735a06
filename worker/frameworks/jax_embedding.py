"""`gs.jax.Embedding`: an embedding whose table lives on the parameter servers, as a leaf of jax parameters.

Layer: worker. Importing this module imports jax.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.files.disk_arrays import IN_MEMORY_BYTES
from globalstep.wire.draws import Draw
from globalstep.worker.client.row_pieces import pieces_of
from globalstep.worker.frameworks.training_model import Array, check_table, require_extra, where_rows_are

jax: Any = require_extra("jax", "gs.jax.Embedding", "jax")


class Embedding:
    """An embedding whose table may be larger than a worker's memory, for the parameters of `gs.fit`.

    `params["table"](ids)` gives rows, inside of `jax.jit` too. In training only the rows that a batch names are
    pulled, and only their gradients are pushed; the ids must come from the batch, not from parameters.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Width of a row.
        std: Standard deviation of the initial values, which are normal with mean 0.
        seed: Decides on the initial values.
        weight: The table's values, if they are known.

    Raises:
        ValueError: If a size is no whole number of at least 1, or the weight's shape is another.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *, std: float = 1.0, seed: int = 0, weight: Any = None
    ) -> None:
        check_table(num_embeddings, embedding_dim)
        if weight is not None and tuple(np.shape(weight)) != (num_embeddings, embedding_dim):
            raise ValueError(
                f"An Embedding of {num_embeddings} rows of {embedding_dim} cannot take a weight of shape "
                f"{list(np.shape(weight))}."
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.std = std
        self.seed = seed
        self._weight = weight
        self._left = False
        self._held: _Held | None = None

    @property
    def weight(self) -> Any:
        """The table, in this process's memory: made now if there is none yet."""
        if self._left:
            raise FailedPreconditionError(where_rows_are("", (self.num_embeddings, self.embedding_dim)))
        if self._weight is None:
            self._weight = jax.numpy.asarray(self.initial_weight())
        return self._weight

    def initial_weight(self) -> Array:
        """Give the values that training begins with."""
        if self._weight is not None:
            return np.asarray(self._weight)
        return self.draw.rows((self.num_embeddings, self.embedding_dim))

    @property
    def draw(self) -> Draw:
        """The initializer of new values, here or on the parameter servers."""
        return Draw("normal", 0.0, float(self.std), self.seed & (1 << 64) - 1)

    @property
    def has_values(self) -> bool:
        """Whether values were given or looked at, so that no new ones are drawn."""
        return self._weight is not None

    def given_rows(self) -> Iterator[tuple[int, Array]]:
        """Give the rows that training begins with and that are not drawn, in pieces."""
        return pieces_of(np.asarray(self._weight)) if self._weight is not None else iter(())

    def left(self) -> Embedding:
        """Give the same embedding, in which lookups fail: its rows stayed where they were trained."""
        size = (self.num_embeddings, self.embedding_dim)
        made = Embedding(*size, std=self.std, seed=self.seed)
        made._left = True
        return made

    def with_weight(self, weight: Any) -> Embedding:
        """Give the same embedding with these values."""
        size = (self.num_embeddings, self.embedding_dim)
        return Embedding(*size, std=self.std, seed=self.seed, weight=weight)

    def __call__(self, ids: Any) -> Any:
        """Give the rows of ids of any shape.

        Raises:
            InvalidArgumentError: If the ids are no integers.
        """
        wanted = checked_ids(ids)
        if not _is_on_disk(self._weight):
            return self.weight[wanted]
        weight, shape = self._weight, (*wanted.shape, self.embedding_dim)
        # As jax's own lookup does, ids that are out of range become the nearest row.
        last = self.num_embeddings - 1
        return jax.pure_callback(
            lambda rows: weight[np.clip(np.asarray(rows), -last - 1, last)],
            jax.ShapeDtypeStruct(shape, weight.dtype),
            wanted,
        )

    def __repr__(self) -> str:
        return f"Embedding({self.num_embeddings}, {self.embedding_dim})"


def checked_ids(ids: Any) -> Any:
    """Give ids as a jax array.

    Raises:
        InvalidArgumentError: If they are no integers.
    """
    array = jax.numpy.asarray(ids)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"An Embedding is looked up by integer ids; it got {array.dtype.name}. Convert them, for example with "
            "ids.astype(int)."
        )
    return array


def _is_on_disk(weight: Any) -> bool:
    """Say whether a weight is one that jax is not to copy into its memory: an array as `gs.load` gives large ones."""
    return isinstance(weight, np.ndarray) and weight.nbytes > IN_MEMORY_BYTES


class _Held:
    """A weight that is no leaf of a pytree, since each would be copied; equal to itself alone."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight


def _flatten(embedding: Embedding) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    own = (embedding.num_embeddings, embedding.embedding_dim, embedding.std, embedding.seed)
    if _is_on_disk(embedding._weight):
        if embedding._held is None:
            embedding._held = _Held(embedding._weight)
        return (), (*own, embedding._held)
    return (embedding.weight,), (*own, None)


def _unflatten(own: tuple[Any, ...], children: tuple[Any, ...]) -> Embedding:
    made = object.__new__(Embedding)
    made.num_embeddings, made.embedding_dim, made.std, made.seed, made._held = own
    made._weight = children[0] if made._held is None else made._held.weight
    made._left = False
    return made


jax.tree_util.register_pytree_node(Embedding, _flatten, _unflatten)
