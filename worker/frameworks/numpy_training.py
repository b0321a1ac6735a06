"""Parameters in numpy for `gs.fit`: a function gives the loss of a batch and its gradients.

Layer: worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.wire.codec import DTYPES
from globalstep.worker.frameworks.training_model import (
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

_form_of = attrgetter("shape", "dtype")
_PLAIN = {np.ndarray}
_NO_LOOKUPS = Lookups()
_NOTHING_BESIDE: Mapping[str, Any] = {}


class NumpyTraining:
    """A model of numpy arrays; see Model.

    Args:
        params: A numpy array, or dicts, lists and tuples of them.
        loss_fn: Called as `loss_fn(params, *batch)`, and with `rng=` a generator if it has such an argument; gives the
            loss and the gradients, in the structure of `params`.
    """

    def __init__(self, params: Any, loss_fn: Callable[..., Any]) -> None:
        self._params = params
        self._loss_fn = loss_fn
        self.has_updates = False
        self.draws = self._rng = takes_rng(loss_fn)
        checked_names(path for path, _ in leaves_of(params))
        self.parameters = {path: _parameter(path, leaf) for path, leaf in leaves_of(params)}
        self.tables: Mapping[str, TableParameter] = {}
        self._wanted = [path for path, parameter in self.parameters.items() if parameter.trained]
        self._forms = [_form_of(self.parameters[path].value) for path in self._wanted]
        # A dict of arrays, the usual case, is taken apart and put together without a walk through it.
        self._is_flat = type(params) is dict and list(params) == list(self.parameters)
        if not self._wanted:
            raise InvalidArgumentError("The parameters hold no floating array, so there is nothing to train.")

    def lookups(self, batches: Sequence[Any], seeds: Sequence[int], *, all_of_them: bool = False) -> Lookups:
        """See Model."""
        return _NO_LOOKUPS

    def put(self, values: Mapping[str, Array]) -> Any:
        """See Model."""
        return put_into_structure(self._params, values)

    def step(self, values: Values, batches: Sequence[Any], seeds: Sequence[int]) -> StepResult:
        """See Model."""
        dense = values.dense
        params = dict(dense) if self._is_flat else _filled(self._params, iter(dense.values()))
        losses, gradients, logged = [], [], []
        for batch, seed in zip(batches, seeds, strict=True):
            loss, found, beside = self._call(params, batch, seed)
            if beside:
                logged.append({name: part_number(name, part) for name, part in beside.items()})
            losses.append(loss)
            gradients.append(self._gradients(found, dense))
        parts = mean_of_parts(logged) if logged else {}
        if len(losses) == 1:
            return StepResult(losses[0], gradients[0], parts=parts)
        means = mean_of([list(of_batch.values()) for of_batch in gradients])
        return StepResult(sum(losses) / len(losses), dict(zip(self._wanted, means, strict=True)), parts=parts)

    def _call(self, params: Any, batch: Any, seed: int) -> tuple[float, Any, Mapping[str, Any]]:
        given_batch = arguments(batch)
        try:
            if self._rng:
                given = self._loss_fn(params, *given_batch, rng=np.random.default_rng(seed))
            else:
                given = self._loss_fn(params, *given_batch)
        except Exception as error:
            error.add_note(f"In the loss function, with the batch {described(batch)}.{_hint(error)}")
            raise
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            jax = "jax" in type(given).__module__
            raise InvalidArgumentError(
                f"The parameters are numpy arrays, so the loss function must give (loss, gradients); it gave "
                f"{described(given)}."
                + (
                    " For jax to compute the gradients, make the parameters jax arrays: jax.numpy.asarray."
                    if jax
                    else ""
                )
            )
        if type(given[0]) is float:
            return checked_loss(given[0]), given[1], _NOTHING_BESIDE
        value, beside = parted(given[0])
        loss = np.asarray(value)
        if loss.shape or loss.dtype.kind not in "fiu":
            raise InvalidArgumentError(f"The loss must be a real scalar; the loss function gave {described(loss)}.")
        return checked_loss(float(loss)), given[1], beside

    def _by_path(self, found: Any) -> dict[str, Any]:
        """Give the gradients of a structure by the paths of their parameters."""
        if self._is_flat and type(found) is dict and found.keys() == self.parameters.keys():
            return found
        given = dict(leaves_of(found))
        if unknown := sorted(set(given) - set(self.parameters)):
            raise InvalidArgumentError(
                f"The loss function gave a gradient for {unknown[0]!r}; the parameters are "
                f"{', '.join(self.parameters)}. Give (loss, gradients) with gradients in their structure."
            )
        return given

    def _gradients(self, found: Any, values: Mapping[str, Array]) -> Mapping[str, Array]:
        """Give the gradients of the parameters that are trained, in their order."""
        if type(found) is dict and list(found) == self._wanted:
            given = gradients = dict(found)
        else:
            given = self._by_path(found)
            gradients = {path: given.get(path) for path in self._wanted}
        # The usual case is seen at once: arrays as the parameters are.
        if set(map(type, gradients.values())) == _PLAIN and list(map(_form_of, gradients.values())) == self._forms:
            return gradients
        return {path: self._gradient(given, path, values[path]) for path in self._wanted}

    def _gradient(self, given: Mapping[str, Any], path: str, value: Array) -> Array:
        if path not in given:
            raise InvalidArgumentError(
                f"The loss function gave no gradient for {path!r}; it gave those of {', '.join(given) or 'nothing'}. "
                "Give (loss, gradients) with gradients in the structure of the parameters; None stands for zeros."
            )
        if given[path] is None:
            return np.zeros_like(value)
        gradient = np.asarray(given[path])
        if gradient.shape != value.shape or gradient.dtype.kind != "f":
            raise InvalidArgumentError(
                f"The gradient of {path!r} is {described(gradient)}, and the parameter {described(value)}: they must "
                "be of one shape, and floating."
            )
        return gradient.astype(value.dtype, copy=False)


def leaves_of(params: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Give the arrays of a structure of dicts, lists and tuples, each with its path.

    >>> [path for path, _ in leaves_of({"layers": [1, 2], "bias": 3})]
    ['layers/0', 'layers/1', 'bias']
    """
    if isinstance(params, np.ndarray):  # first, since every step asks it of each array
        yield path or "params", params
        return
    if isinstance(params, Mapping):
        inside = [(str(key), item) for key, item in params.items()]
    elif isinstance(params, (list, tuple)):
        inside = [(str(at), item) for at, item in enumerate(params)]
    else:
        yield path or "params", params
        return
    for key, item in inside:
        yield from leaves_of(item, f"{path}/{key}" if path else key)


def put_into_structure(params: Any, values: Mapping[str, Array], path: str = "") -> Any:
    """Give a structure like `params` with other values.

    Args:
        params: An array, or dicts, lists and tuples of them.
        values: Path -> value; an array that is not named stays.
        path: Where `params` is in the whole.

    Raises:
        InvalidArgumentError: If a path or shape is not that of an array.
    """
    if not path:
        known = dict(leaves_of(params))
        for name, value in values.items():
            if name not in known or np.shape(known[name]) != np.shape(value):
                has = f"{name!r} has shape {list(np.shape(known[name]))}" if name in known else f"there is no {name!r}"
                raise InvalidArgumentError(
                    f"In the parameters {has}; the value is of shape {list(np.shape(value))}: it is of another model."
                )
    if isinstance(params, Mapping):
        return {key: put_into_structure(item, values, f"{path}/{key}" if path else str(key))
                for key, item in params.items()}  # fmt: skip
    if isinstance(params, (list, tuple)):
        made = [put_into_structure(item, values, f"{path}/{at}" if path else str(at)) for at, item in enumerate(params)]
        return type(params)(*made) if hasattr(params, "_fields") else type(params)(made)
    return values.get(path or "params", params)


def _filled(params: Any, values: Iterator[Array]) -> Any:
    """Give a structure like `params` with the values in order."""
    if isinstance(params, np.ndarray):
        return next(values)
    if isinstance(params, Mapping):
        return {key: _filled(item, values) for key, item in params.items()}
    if isinstance(params, (list, tuple)):
        made = [_filled(item, values) for item in params]
        return type(params)(*made) if hasattr(params, "_fields") else type(params)(made)
    return next(values)


def _hint(error: Exception) -> str:
    if isinstance(error, TypeError) and "argument" in str(error):
        return " A batch that is a tuple or list gives loss_fn(params, *batch); any other, loss_fn(params, batch)."
    return ""


def _parameter(path: str, leaf: Any) -> Parameter:
    array = np.array(leaf)
    if array.dtype.name not in DTYPES:
        raise InvalidArgumentError(
            f"The parameter {path!r} is {described(array)}, and a parameter is one of {', '.join(DTYPES)}. Convert it "
            "first, for example with .astype(np.float32)."
        )
    return Parameter(array, array.dtype.kind == "f")
