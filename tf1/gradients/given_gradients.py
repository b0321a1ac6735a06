"""Gradients that come with the loss, from a framework, in one call and without a tape.

The node of a loss of PyTorch, jax or plain Python has `attrs["with_gradients"]`: from the values of its inputs, and the
positions of those whose gradients are wanted, it gives its value and these gradients. Where a Gradients node asks for
nothing else, they are its value. In all other cases (a loss that is scaled, or added to another) the tape has them.

Layer: tf1. Threads: GivenGradients are not changed by use.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from globalstep.tf1.gradients.gradient_plan import GradientPlan
from globalstep.tf1.graph.graph import Node

__all__ = ["GivenGradients", "given_gradients"]


_ARRAYS = (np.ndarray, np.generic)
#: What a step's values nearly always are, which is seen at once.
_PLAIN = {np.ndarray}
_dtype_of = attrgetter("dtype")


class GivenGradients:
    """See the module's text; used as a BackwardSchedule is.

    Args:
        source: The node that gives the loss, first of a tuple, and its gradients.
        plan: Of a Gradients node by inputs of `source`, and by Variables whose rows are inputs of it.

    Attributes:
        pairs: The values that it needs, each with the node that is to see it, in order.
        covers: The nodes whose values it gives, in order.
    """

    def __init__(self, source: Node, plan: GradientPlan) -> None:
        self._evaluate = source.attrs["with_gradients"]
        self._inputs = len(source.inputs)
        self.covers = plan.covers
        #: Whether the source stands before the loss, which is first of the source's tuple, among these two.
        self._begins = plan.covers[0] is source
        gathers = [gather for group in plan.gathers.values() for gather in group]
        self.pairs = (
            *((value, source) for value in source.inputs),
            *((gather.inputs[1], gather) for gather in gathers),
        )
        at = {value: position for position, value in enumerate(source.inputs)}
        ids = {gather: len(source.inputs) + position for position, gather in enumerate(gathers)}
        xs = [x for x in plan.xs if x in plan.reached]
        #: Of each x the positions of its gradients, its dtype, and of a sparse one those of its ids and a row's shape.
        self._results = [
            (
                [at[value] for value in plan.gathers.get(x, [x])],
                np.dtype(x.dtype.as_numpy_dtype),
                [ids[gather] for gather in plan.gathers.get(x, ())],
                tuple(int(size) for size in x.shape)[1:] if x in plan.gathers else (),
            )
            for x in xs
        ]
        self._wanted = tuple(sorted({position for positions, *_ in self._results for position in positions}))
        #: Where all are dense: of each x the position of its gradient among the wanted, and its dtype.
        self._dense = None if gathers else [self._wanted.index(positions[0]) for positions, *_ in self._results]
        self._dtypes = [dtype for _, dtype, *_ in self._results]

    def evaluate(
        self, given: Sequence[Any], drawn: MutableMapping[Node, Any] | None = None
    ) -> tuple[tuple[Any, ...], list[Any]] | None:
        """Find the gradients; see BackwardSchedule.evaluate. There is nothing to draw."""
        inputs = given if self._dense is not None else given[: self._inputs]
        if set(map(type, given)) != _PLAIN:
            if not all(isinstance(value, _ARRAYS) for value in given):
                return None
            inputs = list(map(np.asarray, inputs))
        value, gradients = self._evaluate(inputs, self._wanted)
        covered = [value, value[0]] if self._begins else [value[0], value]
        if self._dense is not None:
            dense = tuple(map(gradients.__getitem__, self._dense))
            if list(map(_dtype_of, dense)) == self._dtypes:
                return dense, covered
        by_place = dict(zip(self._wanted, gradients, strict=True))
        results: list[Any] = []
        for positions, dtype, ids, row in self._results:
            if not ids:
                gradient = by_place[positions[0]]
                results.append(gradient if gradient.dtype == dtype else gradient.astype(dtype))
            else:
                parts = [by_place[position].astype(dtype, copy=False) for position in positions]
                results.append(np.concatenate([part.reshape(-1, *row) for part in parts]))
                results.append(np.concatenate([given[place].reshape(-1) for place in ids]).astype(np.int64))
        return tuple(results), covered


def given_gradients(plan: GradientPlan) -> GivenGradients | None:
    """Give the schedule of a plan; None where the plan asks for more than these gradients."""
    sources = [node for node in plan.covers if "with_gradients" in node.attrs]
    if len(sources) != 1 or len(plan.covers) != 2 or len(plan.ys) != 1 or plan.seeds != [None]:
        return None
    (source,), (loss,) = sources, plan.ys
    inputs = set(source.inputs)
    values = {value for x in plan.xs if x in plan.reached for value in plan.gathers.get(x, [x])}
    if loss.op_type != "TupleItem" or loss.inputs != (source,) or loss.attrs["index"] != 0:
        return None
    if len(inputs) != len(source.inputs) or not values <= inputs:
        return None
    return GivenGradients(source, plan)
