"""A PyTorch module for `gs.fit`: its loss of a step's batches, and the rows of its embeddings.

Which rows a batch needs is found out by calling the loss function without gradients, up to the last lookup: lookups
usually come first, so that this costs little. Without `gs.torch.Embedding` in the module it is not done.

Layer: worker. Importing this module imports PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.worker.frameworks.torch_embedding import TableModule, torch
from globalstep.worker.frameworks.torch_module import TorchModule
from globalstep.worker.frameworks.training_model import (
    TABLE_BYTES,
    Array,
    Evaluation,
    arguments,
    checked_loss,
    checked_names,
    described,
    mean_of,
    mean_of_parts,
    part_number,
    parted,
    seed_torch,
)
from globalstep.worker.step.model import Lookups, MoreLookupsError, StepResult, TableParameter, Values

_log = logging.getLogger("globalstep")


#: From here on it is said that a sparse embedding of torch's own is dense.
_LARGE_SPARSE_BYTES = 4 << 20
_FLOATS = "Labels that are probabilities, or 0 and 1, are floats: make them so where the batch is made, labels.float()."
#: What PyTorch says of labels that do not fit the loss -> what to do.
_LABELS = {
    "target dtype": "Numbers of classes are integers: make them so where the batch is made, labels.long().",
    "type for target": _FLOATS,
    "desired output type": _FLOATS,
    "multi-target": "Numbers of classes have one dimension less than what the module gives: labels.squeeze(-1).",
    "Target ": "Numbers of classes go from 0 to one less than the module's outputs.",
}


class _EnoughError(Exception):
    """All lookups of a batch were seen: the rest of the loss need not be computed."""


class TorchTraining:
    """A model that is a module; see Model.

    Args:
        module: The module.
        loss_fn: Called as `loss_fn(module, *batch)`; gives a scalar tensor, alone or as
            `parted` takes it.
    """

    def __init__(self, module: Any, loss_fn: Callable[..., Any]) -> None:
        self._module = module
        self._loss_fn = loss_fn
        self._embeddings = {name: part for name, part in module.named_modules() if isinstance(part, TableModule)}
        self.draws = True
        self._expected: int | None = None
        self._parameters = dict(module.named_parameters())
        # PyTorch counts the writes to a tensor: the counts when the parameters had been set for the last batch.
        self._versions: list[int] = []
        self._said_changed = False
        if not module.training:
            _log.warning(
                "%s is in eval(): it trains without dropout, and its running averages stay as they are. Call "
                "model.train() before, unless that is meant.",
                type(module).__name__,
            )
        _warn_of_sparse(module)
        checked_names(name for name, _ in module.named_parameters())
        self._model = TorchModule(torch, module)
        self.tables = dict(self._table(name, part) for name, part in self._embeddings.items())
        self.parameters = {**self._model.parameters, **self._model.buffers}
        self.has_updates = bool(self._model.buffers)
        self._trained = [name for name, parameter in self.parameters.items() if parameter.trained]
        if not self._trained and not any(table.trained for table in self.tables.values()):
            raise InvalidArgumentError(
                f"{type(module).__name__} has no parameter that requires a gradient, so there is nothing to train. "
                "Does it keep its layers in a plain list? Use torch.nn.ModuleList, or call requires_grad_()."
            )
        flags = [parameter.trained for parameter in self.parameters.values()]
        flags += [table.trained for table in self.tables.values()]
        self._wanted = tuple(at for at, trained in enumerate(flags) if trained)

    def lookups(self, batches: Sequence[Any], seeds: Sequence[int], *, all_of_them: bool = False) -> Lookups:
        """See Model."""
        for batch in batches:
            _refuse_gradients(batch)
        if not self.tables:
            return Lookups()
        limit = None if all_of_them else self._expected
        found = [self._seen(batch, seed, limit) for batch, seed in zip(batches, seeds, strict=True)]
        # Batches look up as many rows as those before them, usually.
        self._expected = None if all_of_them else len(found[-1])
        return Lookups({name: _joined(found, at) for at, name in enumerate(self.tables)}, found)

    def put(self, values: Mapping[str, Array]) -> Any:
        """See Model."""
        for (name, table), part in zip(self.tables.items(), self._embeddings.values(), strict=True):
            if name not in values and table.nbytes > TABLE_BYTES:
                part.leave()
        return put_into_module(self._module, values)

    def _table(self, name: str, part: TableModule) -> tuple[str, TableParameter]:
        part.path = name
        shape = (part.num_embeddings, part.embedding_dim)
        draw = None if part.has_values else part.draw
        return f"{name}.weight" if name else "weight", TableParameter(shape, draw, part.given_rows, part.trained)

    def _seen(self, batch: Any, seed: int, limit: int | None) -> list[tuple[int, Any]]:
        """Give the lookups of a batch."""
        seen: list[tuple[int, Any]] = []

        def record(at: int, part: TableModule, ids: Any) -> Any:
            seen.append((at, ids.detach().cpu().clone()))
            if len(seen) == limit:
                raise _EnoughError
            return torch.zeros(len(ids), part.embedding_dim, device=ids.device)

        seed_torch(torch, seed)
        with torch.no_grad(), contextlib.suppress(_EnoughError):
            self._call_served(record, batch)
        return seen

    def step(self, values: Values, batches: Sequence[Any], seeds: Sequence[int]) -> StepResult:
        """See Model."""
        held, wanted = list(values.dense.values()), self._wanted
        dense, first_buffer = len(held), len(self._model.parameters)
        of_batches = values.lookups.of_batches or [[] for _ in batches]
        losses, gradients = [], []
        logged: list[Mapping[str, float]] = []
        row_gradients: list[list[Array]] = [[] for _ in self.tables]
        begins = [0] * len(self.tables)
        split = sum(position < dense for position in wanted)
        found, unused = Evaluation(0.0), None
        for batch, seed, lookups in zip(batches, seeds, of_batches, strict=True):
            counts = [sum(ids.numel() for at, ids in lookups if at == table) for table in range(len(begins))]
            parts = [
                rows[begin : begin + count]
                for rows, begin, count in zip(values.rows.values(), begins, counts, strict=True)
            ]
            begins = [begin + count for begin, count in zip(begins, counts, strict=True)]
            seed_torch(torch, seed)
            self._look_for_changes()
            try:
                found = self._model.evaluate(self._loss_of(batch, lookups, logged), True, [*held, *parts], wanted)
            except RuntimeError as error:
                if "backward through the graph a second time" in str(error):
                    error.add_note("Leave backward(), zero_grad() and step() out of the loss function: gs does them.")
                raise
            # The running averages of one batch are what the next begins with.
            held[first_buffer:] = found.updates
            losses.append(checked_loss(float(found.loss)))
            gradients.append(found.gradients[:split])
            unused = found.unused if unused is None else [at for at in unused if at in found.unused]
            for into, gradient in zip(row_gradients, found.gradients[split:], strict=False):
                into.append(gradient)
        share = np.float32(1.0 / len(batches))
        trained = [name for name, table in self.tables.items() if table.trained]
        of_rows = [parts for parts in row_gradients if parts]
        looked_up = [parts[0] if len(batches) == 1 else np.concatenate(parts) * share for parts in of_rows]
        of_dense = dict(zip(self._trained, mean_of(gradients), strict=True))
        for at in unused or ():
            if at < split:
                del of_dense[self._trained[at]]
        return StepResult(
            losses[0] if len(batches) == 1 else float(np.mean(losses)),
            of_dense,
            dict(zip(trained, looked_up, strict=True)),
            dict(zip(self._model.buffers, found.updates, strict=True)),
            mean_of_parts(logged),
        )

    def _loss_of(
        self, batch: Any, lookups: list[tuple[int, Any]], logged: list[Mapping[str, float]]
    ) -> Callable[..., Any]:
        def loss(module: Any, *rows: Any) -> Any:
            self._versions = [tensor._version for tensor in self._parameters.values()]
            pending = iter(lookups)
            at_row = [0] * len(rows)

            def serve(at: int, part: TableModule, ids: Any) -> Any:
                expected = next(pending, None)
                if expected is None:
                    raise MoreLookupsError
                if expected[0] != at or not torch.equal(expected[1], ids.detach().cpu()):
                    raise InvalidArgumentError(
                        "The loss function looked up other ids than when it was asked which rows it needs. It is "
                        "called twice a step, so ids must come from the batch alone: draw random ones where the "
                        "batches are made, or with torch's generator, which is seeded alike for both."
                    )
                begin, at_row[at] = at_row[at], at_row[at] + ids.numel()
                return rows[at][begin : at_row[at]]

            value, beside = parted(self._call_served(serve, batch))
            logged.append({name: part_number(name, part) for name, part in beside.items()})
            return _scalar(value)

        return loss

    def _look_for_changes(self) -> None:
        """Say it once where the module's parameters were written to since they were set for the step before."""
        if self._said_changed or not self._versions:
            return
        for (name, tensor), version in zip(self._parameters.items(), self._versions, strict=True):
            if tensor._version != version:
                self._said_changed = True
                _log.warning(
                    "The parameter %r was written to in the module (by clamp_, copy_, load_state_dict, or the max_norm "
                    "of an embedding, say). Each step begins with the values of the parameter servers, so that is "
                    'lost: use trainer.assign({"%s": ...}) between steps, or in a callback.',
                    name,
                    name,
                )
                return

    def _call(self, batch: Any) -> Any:
        try:
            return self._loss_fn(self._module, *arguments(batch))
        except (_EnoughError, MoreLookupsError):
            raise
        except Exception as error:
            error.add_note(f"In the loss function, with the batch {described(batch)}; {self._hint(error)}")
            raise

    def _hint(self, error: Exception) -> str:
        first = next(self._module.parameters(), None)
        if first is None:
            return "the module has no parameters."
        dtype = str(first.dtype).removeprefix("torch.")
        text = f"the module's parameters are {dtype} on {first.device}."
        said = str(error)
        if "ndarray" in said:
            return f"{text} Make the batch's arrays tensors where it is made: torch.from_numpy(array)."
        for words, advice in _LABELS.items():
            if words in said:
                return f"{text} {advice}"
        if "device" in said:
            return f"{text} Move the batch there: batch.to({str(first.device)!r})."
        if "dtype" in said or "Double" in said or "scalar type" in said:
            return f"{text} Make the batch's floats {dtype} where it is made: tensor.float(), array.astype(np.float32)."
        if isinstance(error, TypeError) and "argument" in said:
            called = "A batch that is a tuple or list gives loss_fn(module, *batch); any other, loss_fn(module, batch)."
            return f"{text} {called}"
        return text

    def _call_served(self, serve: Callable[[int, TableModule, Any], Any], batch: Any) -> Any:
        for at, part in enumerate(self._embeddings.values()):
            part.serve(functools.partial(serve, at, part))
        try:
            return self._call(batch)
        finally:
            for part in self._embeddings.values():
                part.serve(None)


def put_into_module(module: Any, values: Mapping[str, Array]) -> Any:
    """Set a module's parameters, buffers and tables, in place.

    Args:
        module: The module.
        values: Name in its state dict -> value.

    Returns:
        The module.

    Raises:
        InvalidArgumentError: If a name or shape is not the module's; nothing has changed then.
    """
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tables = {f"{name}.weight" if name else "weight": part for name, part in module.named_modules()
              if isinstance(part, TableModule)}  # fmt: skip
    shapes = {name: tuple(tensor.shape) for name, tensor in held.items()}
    shapes |= {name: (part.num_embeddings, part.embedding_dim) for name, part in tables.items()}
    if unknown := sorted(set(values) - set(shapes)):
        raise InvalidArgumentError(
            f"{type(module).__name__} has no {unknown[0]!r}; it has {', '.join(sorted(shapes)) or 'nothing'}. The "
            "values are of another model."
        )
    for name, value in values.items():
        if tuple(value.shape) != shapes[name]:
            raise InvalidArgumentError(
                f"{name!r} of {type(module).__name__} has shape {list(shapes[name])}, and the value given for it "
                f"{list(value.shape)}: it is of another model."
            )
    with torch.no_grad():
        for name, value in values.items():
            # A copy where the array must not be written to: the module may.
            tensor = torch.from_numpy(value if value.flags.writeable else np.array(value))
            if name in tables:
                tables[name].weight = tensor
                tables[name].path = name.rpartition(".")[0]
            else:
                held[name].copy_(tensor)
    return module


def _warn_of_sparse(module: Any) -> None:
    """Say what torch's sparse embeddings are here, where they are large."""
    for name, part in module.named_modules():
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse:
            nbytes = part.weight.numel() * part.weight.element_size()
            if nbytes > _LARGE_SPARSE_BYTES:
                kind = type(part).__name__
                _log.warning(
                    "%r is a torch.nn.%s(sparse=True) of %d MiB, which each step reads and pushes whole: its gradient "
                    "is dense here. gs.torch.%s(%d, %d) pulls and pushes only the rows of the batch.",
                    name,
                    kind,
                    nbytes >> 20,
                    kind,
                    part.num_embeddings,
                    part.embedding_dim,
                )


def _joined(lookups: Sequence[Sequence[tuple[int, Any]]], table: int) -> Array:
    found = [ids.reshape(-1).numpy() for of_batch in lookups for at, ids in of_batch if at == table]
    return np.concatenate(found).astype(np.int64, copy=False) if found else np.zeros(0, np.int64)


def _scalar(value: Any) -> Any:
    """Check what a loss function gave."""
    if not torch.is_tensor(value):
        what = "None: is `return` missing?" if value is None else f"a {type(value).__name__}."
        rest = ""
        if isinstance(value, (float, int, np.ndarray, np.generic)):
            rest = " Return the tensor itself, not loss.item() or an array."
        elif isinstance(value, (tuple, list, Mapping)):
            rest = ' Return the loss alone. What is only logged goes beside it: loss, {"name": number}.'
        raise InvalidArgumentError(f"The loss function must give a scalar tensor; it gave {what}{rest}")
    if value.shape:
        raise InvalidArgumentError(
            f"The loss function must give a scalar; it gave a tensor of shape {list(value.shape)}. Take its mean() "
            "or sum()."
        )
    if value.is_complex():
        raise InvalidArgumentError("The loss is complex; a loss must be real. Take .real or .abs().")
    if torch.is_grad_enabled() and not value.requires_grad:
        raise InvalidArgumentError(
            "The loss does not depend on the module's parameters by gradients: detach(), .item(), no_grad() or numpy "
            "on the way cuts them, and so does a loss of the batch alone."
        )
    return value


def _refuse_gradients(batch: Any, place: str = "batch", depth: int = 0) -> None:
    if torch.is_tensor(batch):
        if batch.requires_grad:
            raise InvalidArgumentError(
                f"{place}, {described(batch)}, requires a gradient: it would keep the graph of what it was computed "
                "from. Use tensor.detach() where the batch is made."
            )
    elif depth < 3:
        parts = batch if isinstance(batch, Mapping) else dict(enumerate(batch)) if type(batch) in (tuple, list) else {}
        for key, item in parts.items():
            _refuse_gradients(item, f"{place}[{key!r}]", depth + 1)
