"""The Model protocol: what a framework gives for a step of training, without a graph and without hidden state.

Layer: worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from globalstep.wire.draws import Draw

Array = npt.NDArray[Any]


class MoreLookupsError(Exception):
    """The loss looked up more rows than were asked for; nothing was pushed. Trying again asks for all."""


@dataclass(frozen=True)
class Parameter:
    """A parameter, or what a model keeps beside its parameters.

    Attributes:
        value: What it begins with.
        trained: Whether it has a gradient.
    """

    value: Array
    trained: bool = True


@dataclass(frozen=True)
class TableParameter:
    """An embedding on the parameter servers; a step has some of its rows.

    Attributes:
        shape: Rows and width.
        draw: What the parameter servers draw its rows by; None for zeros.
        given: Gives the rows that it begins with and that are not drawn, in pieces: each with the number of its first.
        trained: Whether it is.
    """

    shape: tuple[int, int]
    draw: Draw | None = None
    given: Callable[[], Iterable[tuple[int, Array]]] = tuple
    trained: bool = True

    @property
    def nbytes(self) -> int:
        """Size of the whole."""
        return self.shape[0] * self.shape[1] * np.dtype(np.float32).itemsize


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, or their gradients.

    Attributes:
        ids: int64 [n]; they may repeat.
        values: [n, width].
    """

    ids: Array
    values: Array


@dataclass(frozen=True)
class Lookups:
    """The rows that batches look up.

    Attributes:
        ids: Table -> int64 ids, those of one batch after those of another; they may repeat.
        of_batches: What the model has seen of each batch, for its `step`.
    """

    ids: Mapping[str, Array] = field(default_factory=dict)
    of_batches: Sequence[Any] = ()


@dataclass(slots=True)
class Values:
    """The parameter values that a step is computed from.

    Attributes:
        dense: Name -> value, of all parameters, in their order; not to be written to.
        rows: Table -> the rows of the lookups' ids, [n, width].
        lookups: What the batches look up.
    """

    dense: Mapping[str, Array]
    rows: Mapping[str, Array] = field(default_factory=dict)
    lookups: Lookups = field(default_factory=Lookups)


@dataclass(slots=True)
class StepResult:
    """The result of a step.

    Attributes:
        loss: The mean of the losses of its batches.
        gradients: Name -> gradient, of the parameters that are trained. The step leaves alone those that are missing.
        rows: Table -> the gradients of the rows of the lookups' ids, of the tables that are trained.
        updates: Name -> new value, of what the framework changes by itself, such as running averages.
        parts: Name -> number, of what the loss function gave beside the loss, to be logged.
    """

    loss: float
    gradients: Mapping[str, Array] = field(default_factory=dict)
    rows: Mapping[str, Array] = field(default_factory=dict)
    updates: Mapping[str, Array] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)


class Model(Protocol):
    """A model of torch, jax or numpy.

    Attributes:
        draws: Whether its loss uses its seeds.
        has_updates: Whether its steps change what is not trained, such as running averages.
    """

    draws: bool
    has_updates: bool

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Its parameters, and what it keeps beside them, by name."""

    @property
    def tables(self) -> Mapping[str, TableParameter]:
        """Its embeddings, by name."""

    def lookups(self, batches: Sequence[Any], seeds: Sequence[int], *, all_of_them: bool = False) -> Lookups:
        """Find out which rows the batches look up.

        Args:
            batches: The batches.
            seeds: A seed for each.
            all_of_them: Go to the end of the loss, where lookups usually come first.
        """

    def step(self, values: Values, batches: Sequence[Any], seeds: Sequence[int]) -> StepResult:
        """Compute the loss of batches, averaged, and its gradients.

        Args:
            values: The parameters, what `lookups` gave, and its rows.
            batches: The batches.
            seeds: A seed for each; any number where nothing is drawn.

        Raises:
            MoreLookupsError: If a batch looks up more rows than were given.
        """

    def put(self, values: Mapping[str, Array]) -> Any:
        """Give the model with these values: a module is changed in place, parameters are made anew."""
