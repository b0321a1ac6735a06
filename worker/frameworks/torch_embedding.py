"""`gs.torch.Embedding` and `gs.torch.EmbeddingBag`: embeddings whose tables live on the parameter servers.

In training only the rows that a batch names are pulled, and only their gradients are pushed. Everywhere else they are
modules like torch's, whose `weight` is made, or loaded, when it is first needed.

Layer: worker. Importing this module imports PyTorch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.wire.draws import Draw
from globalstep.worker.client.row_pieces import pieces_of
from globalstep.worker.frameworks.training_model import Array, check_table, require_extra, where_rows_are

torch: Any = require_extra("torch", "gs.torch.Embedding", "torch")


class TableModule(torch.nn.Module):  # type: ignore[misc]
    """Base class of Embedding and EmbeddingBag: the table.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Width of a row.
        padding_idx: A row that is not trained, and begins as zeros.
        std: Standard deviation of the initial values.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, std: float) -> None:
        super().__init__()
        check_table(num_embeddings, embedding_dim)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = _padding_of(padding_idx, num_embeddings)
        self.std = std
        #: Whether its rows are trained.
        self.trained = True
        #: Its name in the module that is trained or loaded, once that is known; for messages.
        self.path = ""
        # So `torch.manual_seed` decides on the values, although another process may be the one that makes them.
        self._seed = int(torch.randint(2**62, (1,)))
        self._weight: Any = None
        self._left = False
        self._serve: Callable[[Any], Any] | None = None

    @classmethod
    def _pretrained(cls, embeddings: Any, freeze: bool, **options: Any) -> Self:
        if not torch.is_tensor(embeddings) or embeddings.dim() != 2:
            raise ValueError("Embeddings parameter is expected to be 2-dimensional: a tensor of rows.")
        made = cls(*embeddings.shape, **options)
        made._weight = embeddings.detach().float()
        made.trained = not freeze
        return made

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
        self._left = False

    def initial_weight(self) -> Any:
        """Give the values that training begins with: those that were loaded or looked at, else new ones."""
        if self._weight is not None:
            return self._weight
        if self._left:
            raise FailedPreconditionError(where_rows_are(self.path, (self.num_embeddings, self.embedding_dim)))
        weight = torch.from_numpy(self.draw.rows((self.num_embeddings, self.embedding_dim)))
        if self.padding_idx is not None:
            weight[self.padding_idx] = 0.0
        return weight

    @property
    def draw(self) -> Draw:
        """The initializer of new values, here or on the parameter servers."""
        return Draw("normal", 0.0, float(self.std), self._seed)

    @property
    def has_values(self) -> bool:
        """Whether values were given or looked at, so that no new ones are drawn."""
        return self._weight is not None

    def given_rows(self) -> Iterator[tuple[int, Array]]:
        """Give the rows that training begins with and that are not drawn, in pieces."""
        if self._weight is not None:
            yield from pieces_of(self._weight.cpu().numpy())
        elif self.padding_idx is not None:
            yield self.padding_idx, np.zeros((1, self.embedding_dim), np.float32)

    def leave(self) -> None:
        """Say that the rows stayed where they were trained: a lookup fails until they are loaded."""
        self._weight, self._left = None, True

    def serve(self, rows_of: Callable[[Any], Any] | None) -> None:
        """Take rows from elsewhere than `weight`.

        Args:
            rows_of: Called with the ids of each lookup, [n], without those of `padding_idx`; gives [n, width]. None for
                `weight` again.
        """
        self._serve = rows_of

    def rows(self, ids: Any) -> tuple[Any, Any]:
        """Look rows up.

        Returns:
            The rows, [n, width], and where in them the row of each id is, in the shape of the ids. While it is trained,
            rows of `padding_idx` are one of zeros, or as they were given, at the end.

        Raises:
            InvalidArgumentError: If they are no integers, or out of range.
        """
        self._check(ids)
        if self._serve is None:
            return self.weight, ids
        flat = ids.reshape(-1)
        if self.padding_idx is None:
            return self._serve(flat), torch.arange(flat.numel(), device=ids.device).reshape(ids.shape)
        asked = flat != self.padding_idx
        served = self._serve(flat[asked])
        held = self._weight is not None
        last = self._weight[self.padding_idx].to(served) if held else served.new_zeros(self.embedding_dim)
        places = torch.where(asked, torch.cumsum(asked, 0) - 1, len(served))
        return torch.cat([served, last[None]]), places.reshape(ids.shape)

    def _padding_in(self, rows: Any) -> int | None:
        """Say which of the rows that `rows` gave is that of `padding_idx`."""
        return None if self.padding_idx is None else self.padding_idx if self._serve is None else len(rows) - 1

    def _check(self, ids: Any) -> None:
        if not torch.is_tensor(ids) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            who = f"The {type(self).__name__} {self.path!r}" if self.path else f"An {type(self).__name__}"
            if _has_strings(ids):
                raise InvalidArgumentError(
                    f"{who} is looked up by integer ids; it got strings. Number them where the batch is made: by a "
                    "dict of the vocabulary, or by a hash of each modulo the number of rows."
                )
            kind = ids.dtype if torch.is_tensor(ids) else type(ids).__name__
            raise InvalidArgumentError(
                f"{who} is looked up by integer ids; it got {kind}. Convert them, for example with ids.long()."
            )
        # A program that is exported or compiled has no ids yet; torch's own lookup refuses wrong ones there.
        if torch.compiler.is_compiling() or not ids.numel():
            return
        if ids.min() < 0 or ids.max() >= self.num_embeddings:
            wrong = ids[(ids < 0) | (ids >= self.num_embeddings)].reshape(-1)[0]
            named = f"{self.path!r}, " if self.path else ""
            raise InvalidArgumentError(
                f"Id {int(wrong)} is not in {named}an {type(self).__name__} of {self.num_embeddings} rows: ids are 0 "
                f"to {self.num_embeddings - 1}."
            )

    def extra_repr(self) -> str:
        """Describe it, for `repr`."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if self._weight is not None:
            self._weight = fn(self._weight)
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, strict: bool, *lists: Any) -> None:
        missing, _, errors = lists
        key = f"{prefix}weight"
        if key in state_dict:
            try:
                self.weight = state_dict[key].clone()
            except ValueError as error:
                errors.append(f"{key}: {error}")
        elif strict:
            missing.append(key)
        rest = {name: value for name, value in state_dict.items() if name != key}
        super()._load_from_state_dict(rest, prefix, metadata, strict, *lists)


class Embedding(TableModule):
    """An embedding whose table may be larger than a worker's memory: `torch.nn.Embedding` for `gs.fit`.

    Its entry in a state dict is `weight`, as that of `torch.nn.Embedding`, so either loads the other's.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Width of a row.
        padding_idx: A row that is not trained, and begins as zeros; less than 0 counts from the end.
        std: Standard deviation of the initial values, which are normal with mean 0; PyTorch's is 1.

    Raises:
        ValueError: If a size is no whole number of at least 1, or the padding no row.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, std: float = 1.0
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, std)

    @classmethod
    def from_pretrained(cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None) -> Embedding:
        """Make an embedding of values, as `torch.nn.Embedding.from_pretrained`.

        They go to the parameter servers in pieces when training begins; of a memory-mapped file,
        `torch.from_numpy(np.load(path, mmap_mode="c"))`, no process holds the whole.

        Args:
            embeddings: [rows, width], floats.
            freeze: Whether the rows stay as they are.
            padding_idx: A row that is not trained; its values are those that are given.

        Raises:
            ValueError: If they are not of two dimensions.
        """
        return cls._pretrained(embeddings, freeze, padding_idx=padding_idx)

    def forward(self, ids: Any) -> Any:
        """Give the rows of ids of any shape.

        Args:
            ids: Integer tensor.

        Raises:
            InvalidArgumentError: If they are no integers, or out of range.
        """
        rows, places = self.rows(ids)
        if self._serve is not None and self.padding_idx is None:
            return rows.reshape(*ids.shape, self.embedding_dim)
        return torch.nn.functional.embedding(places, rows, self._padding_in(rows))


class EmbeddingBag(TableModule):
    """Sums, means or maxima of bags of rows: `torch.nn.EmbeddingBag` for `gs.fit`, whose table no worker holds.

    Its entry in a state dict is `weight`, as that of `torch.nn.EmbeddingBag`.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Width of a row.
        mode: "sum", "mean" or "max".
        include_last_offset: Whether the last offset is the number of ids, and no bag.
        padding_idx: A row that is not trained, begins as zeros, and that bags leave out.
        std: Standard deviation of the initial values, which are normal with mean 0; PyTorch's is 1.

    Raises:
        ValueError: If a size is no whole number of at least 1, the padding no row, or the mode another.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        std: float = 1.0,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"An EmbeddingBag's mode is 'sum', 'mean' or 'max', not {mode!r}.")
        super().__init__(num_embeddings, embedding_dim, padding_idx, std)
        self.mode = mode
        self.include_last_offset = include_last_offset

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> EmbeddingBag:
        """Make bags of values that are there, as `torch.nn.EmbeddingBag.from_pretrained`; see `Embedding`.

        Args:
            embeddings: [rows, width], floats.
            freeze: Whether the rows stay as they are.
            mode: See EmbeddingBag.
            include_last_offset: See EmbeddingBag.
            padding_idx: A row that is not trained, and that bags leave out.

        Raises:
            ValueError: If they are not of two dimensions, or the mode is another.
        """
        options = {"mode": mode, "include_last_offset": include_last_offset, "padding_idx": padding_idx}
        return cls._pretrained(embeddings, freeze, **options)

    def forward(self, ids: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Give a row for each bag.

        Args:
            ids: Integer tensor: [bags, n], or [n] with `offsets`.
            offsets: Where in `ids` each bag begins.
            per_sample_weights: A factor for each id, with mode "sum".

        Raises:
            InvalidArgumentError: If the ids are no integers, or out of range.
            ValueError: As torch's: for ids of another shape, or without their offsets.
        """
        rows, places = self.rows(ids)
        return torch.nn.functional.embedding_bag(
            places,
            rows,
            offsets if offsets is None else offsets.to(places.dtype),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self._padding_in(rows),
        )

    def extra_repr(self) -> str:
        """Describe it, for `repr`."""
        return f"{super().extra_repr()}, mode={self.mode!r}"


def copied_without_tables(module: Any) -> Any:
    """Copy a module; what its tables hold is shared with it, since the copy is about to get other values."""
    held = [part._weight for part in module.modules() if isinstance(part, TableModule) and part.has_values]
    return copy.deepcopy(module, {id(weight): weight for weight in held})


def _padding_of(padding_idx: Any, rows: int) -> int | None:
    if padding_idx is None:
        return None
    if not isinstance(padding_idx, int) or not -rows <= padding_idx < rows:
        raise ValueError(f"padding_idx is {padding_idx!r}; it must be one of {rows} rows.")
    return padding_idx % rows


def _has_strings(ids: Any) -> bool:
    if isinstance(ids, np.ndarray):
        return ids.dtype.kind in "USO"
    while isinstance(ids, (list, tuple)) and ids:
        ids = ids[0]
    return isinstance(ids, (str, bytes))
