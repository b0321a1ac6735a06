"""What a framework gives for the values of a step: a loss with its gradients.

Layer: worker.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

__all__ = ["HALVES", "Array", "Evaluation", "Evaluator", "require_extra"]

Array = npt.NDArray[Any]

#: Their Variables are float32: a step that is smaller than the distance to the next value of the dtype would be lost.
HALVES = ("bfloat16", "float16")


class Evaluation(NamedTuple):
    """What a framework gives for the values of a run.

    Attributes:
        loss: A scalar.
        gradients: One for each wanted position, of the shape of its value.
        updates: New values of what the framework changes by itself, such as running averages.
    """

    loss: Any
    gradients: Sequence[Array] = ()
    updates: Sequence[Array] = ()


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
