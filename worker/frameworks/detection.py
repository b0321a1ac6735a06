"""Which framework a model is of, and what trains it or puts values into it.

Layer: worker. A framework is imported once a model is of it.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from globalstep.errors import InvalidArgumentError
from globalstep.worker.step.model import Model

__all__ = ["framework_of", "put_values", "training_model"]


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

    found = list(leaves_of(model))
    if torch is not None and any(torch.is_tensor(leaf) for _, leaf in found):
        raise InvalidArgumentError("Tensors by themselves are no model: put them into a torch.nn.Module as Parameters.")
    for path, leaf in found:
        if not hasattr(leaf, "dtype"):
            raise InvalidArgumentError(
                f"The model must be a torch module, or arrays in dicts, lists and tuples; {path!r} is a "
                f"{type(leaf).__name__}."
            )
    return "numpy"


def training_model(model: Any, loss_fn: Callable[..., Any]) -> Model:
    """Give a model of the framework that its parameters are of.

    Args:
        model: A torch module, or parameters of jax or numpy.
        loss_fn: Its loss function.

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

    Args:
        into: See `load`.
        values: Name in the model -> value.

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
