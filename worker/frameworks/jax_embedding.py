"""`gs.jax.Embedding`: an embedding whose table lives on the parameter servers, as a leaf of jax parameters.

Layer: worker. Importing this module imports jax.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.worker.frameworks.foreign_loss import Array, require_extra
from globalstep.worker.frameworks.training_model import check_table

__all__ = ["Embedding"]

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

    @property
    def weight(self) -> Any:
        """The table, in this process's memory: made now if there is none yet."""
        if self._weight is None:
            self._weight = jax.numpy.asarray(self.initial_weight())
        return self._weight

    def initial_weight(self) -> Array:
        """Give the values that training begins with."""
        if self._weight is not None:
            return np.asarray(self._weight)
        random = np.random.default_rng(self.seed)
        values = random.standard_normal((self.num_embeddings, self.embedding_dim), np.float32)
        return np.multiply(values, np.float32(self.std), out=values)

    def with_weight(self, weight: Any) -> Embedding:
        """Give the same embedding with these values."""
        size = (self.num_embeddings, self.embedding_dim)
        return Embedding(*size, std=self.std, seed=self.seed, weight=weight)

    def __call__(self, ids: Any) -> Any:
        """Give the rows of ids of any shape.

        Raises:
            InvalidArgumentError: If the ids are no integers.
        """
        return self.weight[checked_ids(ids)]

    def __repr__(self) -> str:
        return f"Embedding({self.num_embeddings}, {self.embedding_dim})"


def checked_ids(ids: Any) -> Any:
    """Give ids as a jax array.

    Raises:
        InvalidArgumentError: If they are no integers.
    """
    found = jax.numpy.asarray(ids)
    if found.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"An Embedding is looked up by integer ids; it got {found.dtype.name}. Convert them, for example with "
            "ids.astype(int)."
        )
    return found


def _flatten(embedding: Embedding) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    own = (embedding.num_embeddings, embedding.embedding_dim, embedding.std, embedding.seed)
    return (embedding.weight,), own


def _unflatten(own: tuple[Any, ...], children: tuple[Any, ...]) -> Embedding:
    made = object.__new__(Embedding)
    made.num_embeddings, made.embedding_dim, made.std, made.seed = own
    (made._weight,) = children
    return made


jax.tree_util.register_pytree_node(Embedding, _flatten, _unflatten)
