"""What `gs.fit` and `gs.Trainer` need of a framework: a model's Variables, its loss of a batch, and its tables' rows.

A step's batches do not go through the graph: `TrainingModel.take` keeps them, and the loss node, whose inputs are the
Variables alone, computes with them. So a batch may be of any structure. Only the ids that embeddings are asked for
become feeds, because a run pulls just those rows.

Layer: worker.
"""

from __future__ import annotations

import abc
import hashlib
import inspect
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.tf1.ops.embedding_ops import embedding_lookup
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.draws import Draw
from globalstep.worker.frameworks.foreign_loss import Array, Evaluation, Evaluator, LossNode

__all__ = [
    "SCOPE",
    "TABLE_BYTES",
    "MoreLookupsError",
    "Table",
    "TrainingModel",
    "arguments",
    "checked_loss",
    "checked_names",
    "described",
    "mean_of",
    "number_of_at_least",
    "part_seed",
    "seed_torch",
    "takes_rng",
    "where_rows_are",
]

_log = logging.getLogger("globalstep")

#: Larger tables stay on the parameter servers and in checkpoints, from which `gs.load` takes them.
TABLE_BYTES = 256 << 20
#: The name scope of a model's Variables, and what their names begin with in a checkpoint.
SCOPE = "model"


class MoreLookupsError(Exception):
    """The loss looked up more rows than were asked for; nothing was pushed. Trying again asks for all."""


@dataclass(frozen=True)
class Table:
    """An embedding on the parameter servers, as a graph has it.

    Attributes:
        name: Its name in the model.
        variable: The table.
        ids: Placeholder for the ids of a step, one after another.
        rows: Their rows.
        given: Gives the rows that it begins with and that the parameter servers do not draw, in pieces: each with the
            number of its first row.
    """

    name: str
    variable: Variable
    ids: Node
    rows: Node
    given: Callable[[], Iterable[tuple[int, Array]]]

    @property
    def nbytes(self) -> int:
        """Size of the whole."""
        itemsize: int = np.dtype(self.variable.dtype.as_numpy_dtype).itemsize
        return itemsize * math.prod(int(size) for size in self.variable.shape)

    @classmethod
    def of(
        cls,
        name: str,
        shape: Sequence[int],
        draw: Draw | None,
        given: Callable[[], Iterable[tuple[int, Array]]] = tuple,
        trained: bool = True,
    ) -> Table:
        """Make the Variable of a table, which no client ever makes the whole value of.

        Args:
            name: Its name in the model.
            shape: Rows and width.
            draw: What the parameter servers draw its rows by; None for zeros.
            given: See Table.
            trained: Whether it is.
        """
        fill = 0.0 if draw is None else draw
        start = Node("EmbeddingInitial", (), lambda: _filled(fill, shape), name=f"{name}/initial", dtype=np.float32,
                     shape=list(shape), stateful=True, attrs={"fill": fill})  # fmt: skip
        variable = Variable(start, trainable=trained, name=name)
        ids = placeholder(np.int64, [None], name=f"{name}/ids")
        return cls(name, variable, ids, embedding_lookup(variable, ids), given)


def _filled(fill: float | Draw, shape: Sequence[int]) -> Array:
    return fill.rows(shape) if isinstance(fill, Draw) else np.full(tuple(shape), fill, np.float32)


class TrainingModel(abc.ABC):
    """A model in a graph, with the loss of the batches of the present step.

    Attributes:
        loss: The mean of the losses of the step's batches.
        updates: Ops that go with the push, such as those of running averages.
        variables: Name in the model -> Variable, without tables.
        tables: The embeddings.
        draws: Whether its loss uses the seeds that it is given.
    """

    draws = True
    loss: LossNode
    updates: Sequence[Node] = ()
    variables: Mapping[str, Variable]
    tables: Sequence[Table] = ()
    #: What is done with an evaluation, instead of having its gradients pushed.
    around: Callable[[Evaluator, Sequence[Array], tuple[int, ...]], Evaluation] | None = None
    _has_trained = False

    @abc.abstractmethod
    def take(self, batches: Sequence[Any], seeds: Sequence[int]) -> dict[Any, Any]:
        """Keep the batches of the next step.

        Args:
            batches: Its batches; their gradients are averaged.
            seeds: A seed for each; any number where nothing is drawn.

        Returns:
            What is to be fed: the ids of each table's rows.
        """

    @abc.abstractmethod
    def put(self, values: Mapping[str, Array]) -> Any:
        """Give the model with these values: a module is changed in place, parameters are made anew.

        Args:
            values: Name in the model -> value; of tables too, as far as they are given.
        """

    def evaluate(self, values: Sequence[Array], wanted: tuple[int, ...]) -> Evaluation:
        """Give the loss of the batches that were taken, and what is pushed as its gradients; an Evaluator."""
        try:
            if self.around is None:
                found = self._evaluate(values, wanted)
            else:
                found = self.around(self._evaluate, values, wanted)
        except InvalidArgumentError as error:
            names = [*self.variables, *(table.name for table in self.tables)]
            broken = [name for name, value in zip(names, values, strict=False) if not np.isfinite(value).all()]
            if broken:
                error.add_note(
                    f"The parameter {broken[0]!r} was not finite before this step: an earlier one had a finite loss "
                    "and a gradient that was not (sqrt and log have such at 0), or the learning rate is too high."
                )
            raise
        if wanted and not self._has_trained:
            self._has_trained = True
            if not any(np.any(gradient) for gradient in found.gradients):
                _log.warning(
                    "All gradients of the first step are zero. Does the loss depend on the parameters that loss_fn is "
                    "called with? Another model's, detached or constant ones are not trained."
                )
        return found

    @abc.abstractmethod
    def _evaluate(self, values: Sequence[Array], wanted: tuple[int, ...]) -> Evaluation:
        """Give the loss of the batches that were taken, and its gradients."""

    def expect_all(self) -> None:  # noqa: B027 (most have nothing to do)
        """Ask for the rows of every lookup from now on, however many there are."""


def arguments(batch: Any) -> tuple[Any, ...]:
    """Give what a batch is to a loss function: a tuple or list is its arguments, anything else is one.

    >>> arguments((1, 2)), arguments({"x": 1})
    ((1, 2), ({'x': 1},))
    """
    return tuple(batch) if type(batch) in (tuple, list) else (batch,)


def checked_names(names: Iterable[str]) -> None:
    """Refuse names of parameters that no checkpoint can have.

    Raises:
        InvalidArgumentError: If two are the same, or one has characters that a Variable's name has not.
    """
    counts = Counter(names)
    for name, count in counts.items():
        if count > 1:
            raise InvalidArgumentError(f"{count} parameters have the path {name!r}: give one another key.")
        if not re.fullmatch(r"[A-Za-z0-9_.\-/]+", name):
            raise InvalidArgumentError(
                f"A parameter is called {name!r}; a name is made of letters, digits, '_', '.', '-' and '/'. Rename it."
            )


def number_of_at_least(least: int, **numbers: Any) -> None:
    """Refuse what is no whole number, or too small a one; None is left alone.

    >>> number_of_at_least(1, steps=10, every=None)
    >>> number_of_at_least(1, steps=0)
    Traceback (most recent call last):
    globalstep.errors.InvalidArgumentError: steps is 0; it must be a whole number of at least 1.
    """
    for name, value in numbers.items():
        is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if value is not None and (not is_whole or value < least):
            raise InvalidArgumentError(f"{name} is {value!r}; it must be a whole number of at least {least}.")


def where_rows_are(name: str, shape: Sequence[int]) -> str:
    """Say where the rows of a table are that was trained and is too large to be brought into the model."""
    what = f"The table {name!r}" if name else "The table"
    return (
        f"{what} of {shape[0]} rows of {shape[1]} stayed on the parameter servers, since it is larger than "
        f"{TABLE_BYTES >> 20} MiB. gs.load(run_dir, model) brings the rows of a checkpoint, without holding them in "
        "memory; `globalstep checkpoint export` writes them to a file."
    )


def check_table(rows: Any, width: Any) -> None:
    """Refuse sizes that no Embedding has.

    Raises:
        ValueError: If one is no whole number of at least 1.

    >>> check_table(10, 4)
    >>> check_table(10, 2.5)
    Traceback (most recent call last):
    ValueError: An Embedding of 10 rows of 2.5: both must be whole numbers of at least 1.
    """
    try:
        number_of_at_least(1, rows=0 if rows is None else rows, width=0 if width is None else width)
    except InvalidArgumentError:
        raise ValueError(f"An Embedding of {rows} rows of {width}: both must be whole numbers of at least 1.") from None


def misfit(function: Callable[..., Any], *arguments: Any) -> str:
    """Say why a function cannot be called with such arguments; "" where it can, or has no signature.

    >>> misfit(lambda step: None, 0, 0)
    'too many positional arguments'
    """
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass  # as some that are written in C
    return ""


def takes_rng(function: Callable[..., Any]) -> bool:
    """Say whether a loss function has an argument `rng`."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def part_seed(seed: int, rank: int, step: int, part: int = 0) -> int:
    """Give the seed of a step's batch on a worker: always the same, and no other's.

    >>> part_seed(0, 1, 100) == part_seed(0, 1, 100) != part_seed(0, 2, 100)
    True
    """
    text = f"{seed} {rank} {step} {part}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def seed_torch(torch: Any, seed: int) -> None:
    """Seed PyTorch's generators; `torch.manual_seed` takes milliseconds where CUDA is not in use.

    Args:
        torch: PyTorch.
        seed: The seed.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def checked_loss(value: float) -> float:
    """Refuse a loss that is not finite, before its gradients are pushed.

    Raises:
        InvalidArgumentError: If it is not.
    """
    if not math.isfinite(value):
        raise InvalidArgumentError(
            f"The loss is {value}: its gradients were not pushed. Look at the batch (an empty one has no mean; inputs "
            "may be NaN), at the logarithm, root or division in the loss, and at the learning rate; clip_grad_norm=1.0 "
            "may help."
        )
    return value


def described(value: Any, depth: int = 0) -> str:
    """Describe a batch for a message: what it is made of, with dtypes, shapes and devices."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        device = getattr(value, "device", None)
        where = f" on {device}" if getattr(device, "type", None) is not None else ""
        return f"{dtype}{list(value.shape)}{where}"
    if depth > 2:
        return type(value).__name__
    if isinstance(value, Mapping):
        inside = [f"{key!r}: {described(item, depth + 1)}" for key, item in list(value.items())[:8]]
        return "{" + ", ".join(inside) + "}"
    if type(value) in (tuple, list):
        return "(" + ", ".join(described(item, depth + 1) for item in value[:8]) + ")"
    return type(value).__name__


def mean_of(parts: Sequence[Sequence[npt.NDArray[Any]]]) -> list[Array]:
    """Give the mean of the gradients of several batches, one after another of each."""
    if len(parts) == 1:
        return list(parts[0])
    return [np.asarray(np.add.reduce(found) / found[0].dtype.type(len(parts))) for found in zip(*parts, strict=True)]
