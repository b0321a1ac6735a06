"""Parameters of jax for `gs.fit`: the loss of a step's batches, compiled, and the rows of its embeddings.

Which rows a batch needs, a compiled function tells that is traced from the loss function and gives the ids of its
lookups: jax leaves out all that is not needed for them.

Layer: worker. Importing this module imports jax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.files.disk_arrays import IN_MEMORY_BYTES
from globalstep.worker.frameworks.jax_embedding import Embedding, checked_ids, jax
from globalstep.worker.frameworks.jax_values import array_of, half_of
from globalstep.worker.frameworks.training_model import (
    TABLE_BYTES,
    arguments,
    checked_loss,
    checked_names,
    described,
    mean_of,
    mean_of_parts,
    part_number,
    parted,
    takes_rng,
)
from globalstep.worker.step.model import Array, Lookups, Parameter, StepResult, TableParameter, Values


class JaxTraining:
    """A model of jax arrays; see Model.

    Args:
        params: Pytree of arrays; leaves may be Embeddings. Of bfloat16 and float16 arrays the parameters
            are float32; the loss function gets rounded values.
        loss_fn: Called as `loss_fn(params, *batch)`, and with `rng=` a key if it has such an argument; gives a scalar.
            A pure function.
    """

    def __init__(self, params: Any, loss_fn: Callable[..., Any]) -> None:
        self._loss_fn = loss_fn
        self._rng = takes_rng(loss_fn)
        leaves, self._structure, paths = _leaves(params)
        self._params = params
        checked_names(paths)
        self._embeddings = {at: leaf for at, leaf in enumerate(leaves) if isinstance(leaf, Embedding)}
        self.draws = True
        self.has_updates = False
        self.tables = {
            paths[at]: TableParameter(
                (leaf.num_embeddings, leaf.embedding_dim), None if leaf.has_values else leaf.draw, leaf.given_rows
            )
            for at, leaf in self._embeddings.items()
        }
        dense = [(path, leaf) for at, (path, leaf) in enumerate(zip(paths, leaves, strict=True))
                 if at not in self._embeddings]  # fmt: skip
        self.parameters = {path: _parameter(path, leaf) for path, leaf in dense}
        self._trained = [path for path, parameter in self.parameters.items() if parameter.trained]
        if not self.tables and not self._trained:
            raise InvalidArgumentError("The parameters hold no floating array, so there is nothing to train.")
        flags = [parameter.trained for parameter in self.parameters.values()] + [True] * len(self.tables)
        wanted = tuple(at for at, trained in enumerate(flags) if trained)
        #: Of the parameters; None for their own.
        self._halves = [half_of(jax, leaf) for _, leaf in dense]
        self._split = len(self._trained)
        self._ids_of = jax.jit(self._traced_ids)

        def loss(trained: list[Any], parameters: list[Any], ids: Any, batch: Any, key: Any) -> Any:
            values = list(parameters)
            for position, value in zip(wanted, trained, strict=True):
                values[position] = value
            return self._loss(values, ids, batch, key)

        gradients = jax.value_and_grad(loss, has_aux=True)
        self._compiled = jax.jit(
            lambda given, ids, batch, key: gradients([given[at] for at in wanted], given, ids, batch, key)
        )

    def lookups(self, batches: Sequence[Any], seeds: Sequence[int], *, all_of_them: bool = False) -> Lookups:
        """See Model."""
        if not self.tables:
            return Lookups()
        of_batches = [
            [
                [np.asarray(ids) for ids in of_table]
                for of_table in self._called(self._ids_of, arguments(batch), _key(seed))
            ]
            for batch, seed in zip(batches, seeds, strict=True)
        ]
        joined = {}
        for at, (name, embedding) in enumerate(zip(self.tables, self._embeddings.values(), strict=True)):
            parts = [ids.reshape(-1) for of_batch in of_batches for ids in of_batch[at]]
            ids = np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
            wrong = ids[(ids < 0) | (ids >= embedding.num_embeddings)]
            if wrong.size:
                raise InvalidArgumentError(
                    f"Id {wrong[0]} is not in {name!r}, an Embedding of {embedding.num_embeddings} rows: ids are "
                    f"0 to {embedding.num_embeddings - 1}."
                )
            joined[name] = ids
        return Lookups(joined, of_batches)

    def put(self, values: Mapping[str, Array]) -> Any:
        """See Model."""
        made = put_into_pytree(self._params, values)
        left = {name for name, table in self.tables.items() if name not in values and table.nbytes > TABLE_BYTES}
        if not left:
            return made
        leaves, structure, paths = _leaves(made)
        return structure.unflatten(
            [leaf.left() if path in left else leaf for path, leaf in zip(paths, leaves, strict=True)]
        )

    def step(self, values: Values, batches: Sequence[Any], seeds: Sequence[int]) -> StepResult:
        """See Model."""
        held, rows = list(values.dense.values()), list(values.rows.values())
        losses, gradients = [], []
        logged: list[Mapping[str, float]] = []
        row_gradients: list[list[Array]] = [[] for _ in rows]
        begins = [0] * len(rows)
        of_batches = values.lookups.of_batches or [[] for _ in batches]
        for batch, seed, ids in zip(batches, seeds, of_batches, strict=True):
            counts = [sum(part.size for part in of_table) for of_table in ids]
            parts = [rows[at][begins[at] : begins[at] + count] for at, count in enumerate(counts)]
            begins = [begin + count for begin, count in zip(begins, counts, strict=True)]
            (loss, (same, beside)), grads = self._called(
                self._compiled, [*held, *parts], ids, arguments(batch), _key(seed)
            )
            arrays = [np.asarray(gradient) for gradient in grads]
            gradients.append(arrays[: self._split])
            for into, gradient in zip(row_gradients, arrays[self._split :], strict=True):
                into.append(gradient)
            if not bool(same):
                raise InvalidArgumentError(
                    "The ids of a lookup depend on the parameters. Rows are asked for before the loss is computed: the "
                    "ids must come from the batch."
                )
            losses.append(checked_loss(float(loss)))
            logged.append({name: part_number(name, part) for name, part in beside.items()})
        share = np.float32(1.0 / len(batches))
        looked_up = [parts[0] if len(batches) == 1 else np.concatenate(parts) * share for parts in row_gradients]
        return StepResult(
            float(np.mean(losses)),
            dict(zip(self._trained, mean_of(gradients), strict=True)),
            dict(zip(self.tables, looked_up, strict=True)),
            parts=mean_of_parts(logged),
        )

    def _loss(self, arrays: Sequence[Any], ids: Any, batch: Any, key: Any) -> Any:
        """Give the loss, whether the ids were those that the rows are of, and what is logged beside the loss."""
        dense = len(self.parameters)
        serving = [_Rows(rows, table_ids) for rows, table_ids in zip(arrays[dense:], ids, strict=True)]
        loss, beside = parted(self._call(self._filled(arrays[:dense], serving), batch, key))
        same = jax.numpy.asarray(True)
        for table in serving:
            same = same & table.same
        return _scalar(loss), (same, dict(beside))

    def _traced_ids(self, batch: Any, key: Any) -> list[list[Any]]:
        recording = [_Recording(embedding.embedding_dim) for embedding in self._embeddings.values()]
        zeros = [jax.numpy.zeros(one.value.shape, one.value.dtype) for one in self.parameters.values()]
        self._call(self._filled(zeros, recording), batch, key)
        return [table.ids for table in recording]

    def _filled(self, dense: Sequence[Any], tables: Sequence[Any]) -> Any:
        rounded = [
            value if half is None else value.astype(half) for value, half in zip(dense, self._halves, strict=True)
        ]
        arrays, lookups = iter(rounded), iter(tables)
        leaves = [next(lookups) if at in self._embeddings else next(arrays)
                  for at in range(self._structure.num_leaves)]  # fmt: skip
        return self._structure.unflatten(leaves)

    def _call(self, params: Any, batch: Sequence[Any], key: Any) -> Any:
        return self._loss_fn(params, *batch, **({"rng": key} if self._rng else {}))

    def _called(self, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except InvalidArgumentError:
            raise
        except Exception as error:
            batch = next(arg for arg in args if isinstance(arg, tuple))
            error.add_note(
                f"In the loss function, with the batch {described(batch)}. A batch that is a tuple or list gives "
                "loss_fn(params, *batch). jax compiles the function: all of the batch must be arrays, and float(), "
                ".item(), numpy and `if` are not for what is computed from them."
            )
            raise


def _key(seed: int) -> Array:
    """Give a raw key of jax's: two words."""
    return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def _parameter(path: str, leaf: Any) -> Parameter:
    array = array_of(jax, path, leaf)
    return Parameter(array, array.dtype.kind == "f")


class _Rows:
    """A table while the loss is computed: the rows of its lookups, one after another."""

    def __init__(self, rows: Any, ids: Sequence[Any]) -> None:
        self._rows = rows
        self._known = iter(ids)
        self._at = 0
        self.same: Any = jax.numpy.asarray(True)

    def __call__(self, ids: Any) -> Any:
        wanted = checked_ids(ids)
        self.same = self.same & jax.numpy.all(wanted == next(self._known))
        begin, self._at = self._at, self._at + wanted.size
        return self._rows[begin : self._at].reshape(*wanted.shape, self._rows.shape[1])


class _Recording:
    """A table that takes note of the ids that it is asked for."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.ids: list[Any] = []

    def __call__(self, ids: Any) -> Any:
        wanted = checked_ids(ids)
        self.ids.append(wanted)
        return jax.numpy.zeros((*wanted.shape, self._width))


def put_into_pytree(params: Any, values: Mapping[str, Array]) -> Any:
    """Give parameters of the same structure with other values.

    Args:
        params: Pytree.
        values: Path of a leaf -> value; a leaf that is not named stays.

    Raises:
        InvalidArgumentError: If a path or shape is not that of a leaf.
    """
    leaves, structure, paths = _leaves(params)
    if unknown := sorted(set(values) - set(paths)):
        raise InvalidArgumentError(
            f"The parameters have no {unknown[0]!r}; they have {', '.join(paths)}. The values are of another model."
        )
    made = []
    for path, leaf in zip(paths, leaves, strict=True):
        is_table = isinstance(leaf, Embedding)
        shape = (leaf.num_embeddings, leaf.embedding_dim) if is_table else np.shape(leaf)
        if path in values and tuple(values[path].shape) != tuple(shape):
            raise InvalidArgumentError(
                f"{path!r} of the parameters has shape {list(shape)}, and the value given for it "
                f"{list(values[path].shape)}: it is of another model."
            )
        if path not in values:
            made.append(leaf)
        else:
            is_large = is_table and values[path].nbytes > IN_MEMORY_BYTES
            value = (
                values[path] if is_large else jax.numpy.asarray(values[path], None if is_table else half_of(jax, leaf))
            )
            made.append(leaf.with_weight(value) if is_table else value)
    return structure.unflatten(made)


def _leaves(params: Any) -> tuple[list[Any], Any, list[str]]:
    pairs, structure = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda leaf: isinstance(leaf, Embedding))
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") or "params" for path, _ in pairs]
    return [leaf for _, leaf in pairs], structure, paths


def _scalar(loss: Any) -> Any:
    if loss is None:
        raise InvalidArgumentError("The loss function must give a scalar; it gave None: is `return` missing?")
    if isinstance(loss, (tuple, list, Mapping)):
        raise InvalidArgumentError(
            f"The loss function must give a scalar; it gave a {type(loss).__name__}. Give the loss alone: jax "
            'computes the gradients. What is only logged goes beside it: loss, {"name": number}.'
        )
    shape, dtype = jax.numpy.shape(loss), jax.numpy.result_type(loss)
    if shape:
        raise InvalidArgumentError(
            f"The loss function must give a scalar; it gave an array of shape {list(shape)}. Take its mean() or sum()."
        )
    if not jax.numpy.issubdtype(dtype, jax.numpy.floating):
        raise InvalidArgumentError(f"The loss is {dtype.name}; it must be a real floating number.")
    return loss
