"""Kullback-Leibler divergences, which are registered for pairs of kinds of distributions.

Layer: tf1. Source of names and texts: TensorFlow 1.15 `tf.distributions.kl_divergence`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from globalstep.tf1.graph.graph import Node, name_scope
from globalstep.tf1.ops.control_flow_ops import Assert, with_dependencies
from globalstep.tf1.ops.math_ops import is_nan, logical_not
from globalstep.tf1.ops.reduction_ops import reduce_any

if TYPE_CHECKING:
    from globalstep.tf1.distributions.distribution import Distribution


_Function = TypeVar("_Function", bound=Callable[..., Any])

_DIVERGENCES: dict[tuple[type, type], Callable[..., Node]] = {}


class RegisterKL:
    """Decorator of the function that gives KL(a || b) for two kinds of distributions, and those derived from them.

    Args:
        dist_cls_a: The class of a.
        dist_cls_b: The class of b.
    """

    def __init__(self, dist_cls_a: type, dist_cls_b: type) -> None:
        self._key = dist_cls_a, dist_cls_b

    def __call__(self, kl_fn: _Function) -> _Function:
        """Register a function `(a, b, name)`.

        Raises:
            TypeError: If it cannot be called.
            ValueError: If the pair has one.
        """
        first, second = (kind.__name__ for kind in self._key)
        if not callable(kl_fn):
            raise TypeError(f"kl_fn must be callable, received: {kl_fn}")
        if self._key in _DIVERGENCES:
            raise ValueError(f"KL({first} || {second}) has already been registered to: {_DIVERGENCES[self._key]}")
        _DIVERGENCES[self._key] = kl_fn
        return kl_fn


def kl_divergence(
    distribution_a: Distribution, distribution_b: Distribution, allow_nan_stats: bool = True, name: str | None = None
) -> Node:
    """Give the Kullback-Leibler divergence KL(a || b), one for each of the batch.

    Args:
        distribution_a: a.
        distribution_b: b, whose batch broadcasts with that of a.
        allow_nan_stats: Whether it may be NaN; else the run fails.
        name: Name scope of the nodes.

    Returns:
        A node.

    Raises:
        NotImplementedError: If no function is registered for the two, with TensorFlow's text.
    """
    pairs = (
        (first, second) for first in type(distribution_a).__mro__[:-1] for second in type(distribution_b).__mro__[:-1]
    )
    function = next((_DIVERGENCES[pair] for pair in pairs if pair in _DIVERGENCES), None)
    if function is None:
        first, second = type(distribution_a).__name__, type(distribution_b).__name__
        text = (
            f"No KL(distribution_a || distribution_b) registered for distribution_a type {first} and "
            f"distribution_b type {second}"
        )
        raise NotImplementedError(text)  # It stays abstract.
    with name_scope("KullbackLeibler"):
        kl = function(distribution_a, distribution_b, name=name)
        if allow_nan_stats:
            return kl
        text = (
            f"KL calculation between {distribution_a.name} and {distribution_b.name} returned NaN values "
            "(and was called with allow_nan_stats=False). Values:"
        )
        checked: Node = with_dependencies([Assert(logical_not(reduce_any(is_nan(kl))), [text, kl])], kl)
        return checked
