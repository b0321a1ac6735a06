"""`gs.torch.Embedding`: an embedding whose table lives on the parameter servers.

In training only the rows that a batch names are pulled, and only their gradients are pushed. Everywhere else it is an
embedding like `torch.nn.Embedding`, whose `weight` is made, or loaded, when it is first needed.

Layer: worker. Importing this module imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.errors import InvalidArgumentError
from globalstep.worker.frameworks.foreign_loss import require_extra
from globalstep.worker.frameworks.training_model import check_table

__all__ = ["Embedding"]

torch: Any = require_extra("torch", "gs.torch.Embedding", "torch")


class Embedding(torch.nn.Module):  # type: ignore[misc]
    """An embedding whose table may be larger than a worker's memory: `torch.nn.Embedding` for `gs.fit`.

    Its entry in a state dict is `weight`, as that of `torch.nn.Embedding`, so either loads the other's.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Width of a row.
        std: Standard deviation of the initial values, which are normal with mean 0; PyTorch's is 1.

    Raises:
        ValueError: If a size is no whole number of at least 1.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *, std: float = 1.0) -> None:
        super().__init__()
        check_table(num_embeddings, embedding_dim)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.std = std
        # So `torch.manual_seed` decides on the values, although another process may be the one that makes them.
        self._seed = int(torch.randint(2**62, (1,)))
        self._weight: Any = None
        self._serve: Callable[[Any], Any] | None = None

    @property
    def weight(self) -> Any:
        """The table, in this process's memory: made now if there is none yet."""
        if self._weight is None:
            self._weight = self.initial_weight()
        return self._weight

    @weight.setter
    def weight(self, value: Any) -> None:
        if tuple(value.shape) != (self.num_embeddings, self.embedding_dim):
            raise ValueError(
                f"A table of {self.num_embeddings} rows of {self.embedding_dim} cannot take a weight of shape "
                f"{list(value.shape)}."
            )
        self._weight = value.detach()

    def initial_weight(self) -> Any:
        """Give the values that training begins with: those that were loaded or looked at, else new ones."""
        if self._weight is not None:
            return self._weight
        generator = torch.Generator().manual_seed(self._seed)
        return torch.empty(self.num_embeddings, self.embedding_dim).normal_(0.0, self.std, generator=generator)

    def forget_weight(self) -> None:
        """Free the memory of a table that was looked at or loaded."""
        self._weight = None

    def serve(self, rows_of: Callable[[Any], Any] | None) -> None:
        """Take rows from elsewhere than `weight`.

        Args:
            rows_of: Called with the ids of each lookup; None for `weight` again.
        """
        self._serve = rows_of

    def forward(self, ids: Any) -> Any:
        """Give the rows of ids of any shape.

        Args:
            ids: Integer tensor.

        Raises:
            InvalidArgumentError: If they are no integers, or out of range.
        """
        if not torch.is_tensor(ids) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            found = ids.dtype if torch.is_tensor(ids) else type(ids).__name__
            raise InvalidArgumentError(
                f"An Embedding is looked up by integer ids; it got {found}. Convert them, for example with ids.long()."
            )
        if ids.numel() and (ids.min() < 0 or ids.max() >= self.num_embeddings):
            wrong = ids[(ids < 0) | (ids >= self.num_embeddings)].reshape(-1)[0]
            raise InvalidArgumentError(
                f"Id {int(wrong)} is not in an Embedding of {self.num_embeddings} rows: ids are 0 to "
                f"{self.num_embeddings - 1}."
            )
        if self._serve is not None:
            return self._serve(ids)
        return torch.nn.functional.embedding(ids, self.weight)

    def extra_repr(self) -> str:
        """Describe it, for `repr`."""
        return f"{self.num_embeddings}, {self.embedding_dim}"

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if self._weight is not None:
            self._weight = fn(self._weight)
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, strict: bool, *found: Any) -> None:
        missing, _, errors = found
        key = f"{prefix}weight"
        if key in state_dict:
            try:
                self.weight = state_dict[key].clone()
            except ValueError as error:
                errors.append(f"{key}: {error}")
        elif strict:
            missing.append(key)
        rest = {name: value for name, value in state_dict.items() if name != key}
        super()._load_from_state_dict(rest, prefix, metadata, strict, *found)
