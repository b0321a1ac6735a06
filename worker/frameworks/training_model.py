"""Common parts of models of `gs.fit` and `gs.Trainer`: the framework, checks of batches and losses, names.

Layer: worker.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import re
import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError
from globalstep.worker.step.model import Model

#: Larger tables stay on the parameter servers and in checkpoints, from which `gs.load` takes them.
TABLE_BYTES = 256 << 20
#: The name scope of a model's Variables, and what their names begin with in a checkpoint.
SCOPE = "model"


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
    """Seed PyTorch's generators; `torch.manual_seed` takes milliseconds where CUDA is not in use."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def parted(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """Take what a loss function gave apart: the loss, and what is only logged.

    Args:
        result: A loss; a loss and a dict of numbers, `(loss, {"name": number})`; or a dict that has "loss".
    """
    if isinstance(result, Mapping) and "loss" in result:
        return result["loss"], {name: value for name, value in result.items() if name != "loss"}
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
        return result[0], result[1]
    return result, {}


def part_number(name: Any, value: Any) -> float:
    """Return a part of a loss as a number.

    Raises:
        InvalidArgumentError: If it is none.
    """
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"The loss function gave {described(value)} as {name!r} beside the loss, and what is logged must be a "
            "number each. Take its mean(), or leave it out."
        ) from error


def mean_of_parts(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each part over the batches, or steps, that have it."""
    numbers: dict[str, list[float]] = {}
    for of_batch in parts:
        for name, value in of_batch.items():
            numbers.setdefault(str(name), []).append(value)
    return {name: sum(values) / len(values) for name, values in numbers.items()}


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
    return [np.asarray(np.add.reduce(grads) / grads[0].dtype.type(len(parts))) for grads in zip(*parts, strict=True)]


Array = npt.NDArray[Any]

#: Their Variables are float32: a step that is smaller than the distance to the next value of the dtype would be lost.
HALVES = ("bfloat16", "float16")


class Evaluation(NamedTuple):
    """A framework's result for the values of a run.

    Attributes:
        loss: A scalar.
        gradients: One for each wanted position, of the shape of its value.
        updates: New values of what the framework changes by itself, such as running averages.
        unused: Positions among the gradients of those that are zero since the loss does not depend on the value.
    """

    loss: Any
    gradients: Sequence[Array] = ()
    updates: Sequence[Array] = ()
    unused: Sequence[int] = ()


#: Evaluates a loss: from the values of its sources, and the positions of those whose gradients are wanted.
Evaluator = Callable[[Sequence[Array], tuple[int, ...]], Evaluation]


def require_extra(module: str, user: str, extra: str) -> Any:
    """Import a framework when it is first used.

    Args:
        module: The module to import.
        user: Who needs it, for the message.
        extra: The extra of globalstep that brings it.

    Raises:
        ImportError: If it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{user} needs {module}, which cannot be imported: {error}. Run `pip install 'globalstep[{extra}]'`.",
            name=module,
        ) from error


def framework_of(model: Any) -> str:
    """Say which framework a model is of: "torch", "jax" or "numpy".

    Raises:
        InvalidArgumentError: If it is no model.
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(model, torch.nn.Module):
        return "torch"
    if torch is not None and isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise InvalidArgumentError(f"{model.__name__} is a class of modules: give a module, {model.__name__}(...).")
    if jax is not None and any(type(leaf).__module__.startswith(("jax", "globalstep.worker.frameworks.jax"))
                               for leaf in _leaves(model)):  # fmt: skip
        return "jax"
    from globalstep.worker.frameworks.numpy_training import leaves_of

    pairs = list(leaves_of(model))
    if torch is not None and any(torch.is_tensor(leaf) for _, leaf in pairs):
        raise InvalidArgumentError("Tensors by themselves are no model: put them into a torch.nn.Module as Parameters.")
    for path, leaf in pairs:
        if not hasattr(leaf, "dtype"):
            raise InvalidArgumentError(
                f"The model must be a torch module, or arrays in dicts, lists and tuples; {path!r} is a "
                f"{type(leaf).__name__}."
            )
    return "numpy"


def training_model(model: Any, loss_fn: Callable[..., Any]) -> Model:
    """Give a model of the framework that its parameters are of.

    Raises:
        InvalidArgumentError: If it is no model, or the function no function.
    """
    if not callable(loss_fn):
        raise InvalidArgumentError(
            f"loss_fn is {reprlib.repr(loss_fn)}; it must be a function, called as loss_fn(model, *batch), that gives "
            "the loss: gs.fit(model, loss_fn, batches)."
        )
    framework = framework_of(model)
    if framework == "torch":
        from globalstep.worker.frameworks.torch_training import TorchTraining

        return TorchTraining(model, loss_fn)
    if framework == "jax":
        from globalstep.worker.frameworks.jax_training import JaxTraining

        return JaxTraining(model, loss_fn)
    from globalstep.worker.frameworks.numpy_training import NumpyTraining

    return NumpyTraining(model, loss_fn)


def put_values(into: Any, values: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Put values into a model.

    Returns:
        The module, or new parameters.

    Raises:
        InvalidArgumentError: If they are not of this model.
    """
    framework = framework_of(into)
    if framework == "torch":
        from globalstep.worker.frameworks.torch_training import put_into_module

        return put_into_module(into, values)
    if framework == "jax":
        from globalstep.worker.frameworks.jax_training import put_into_pytree

        return put_into_pytree(into, values)
    from globalstep.worker.frameworks.numpy_training import put_into_structure

    return put_into_structure(into, values)


def _leaves(model: Any) -> list[Any]:
    jax = sys.modules["jax"]
    return list(jax.tree_util.tree_leaves(model, is_leaf=lambda leaf: type(leaf).__name__ == "Embedding"))
