"""The backward schedule of a gradient: a fixed list of calls instead of a tape of all functions.

A BackwardSchedule is made once for a Gradients node: which functions to call forwards, and in which order to call the
functions that their VJPs give. A run then only calls them. Its sums are those of autograd's tape, term by term in the
same order, so that the result is the same to the last bit. A function without a VJP gets a tape of its own.

Layer: tf1. Threads: a BackwardSchedule is not changed by use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from autograd.util import toposort

from globalstep.tf1.execution.offered_work import Offered
from globalstep.tf1.execution.products import halved, offered
from globalstep.tf1.gradients.given_gradients import GivenGradients, given_gradients
from globalstep.tf1.gradients.gradient_plan import GradientPlan
from globalstep.tf1.gradients.tape import vjp_by_tape
from globalstep.tf1.gradients.vjps import Costly
from globalstep.tf1.graph.graph import Node

__all__ = ["BackwardSchedule", "Schedule", "schedule_of"]


class _ForwardCall(NamedTuple):
    """One covered node: places of its inputs, and, where a gradient goes on, of those among them that it reaches."""

    fn: Any
    vjp: Any
    inputs: tuple[int, ...]
    out: int
    #: (position among the inputs, place)
    reached: tuple[tuple[int, int], ...]
    #: Of these, those that another thread may find meanwhile.
    apart: tuple[tuple[int, int], ...] = ()


class _Result(NamedTuple):
    """One of the gradients: its place, and the rows of a sparse one."""

    #: The place of x; of a sparse gradient, those of the gathers that read rows of x.
    places: tuple[int, ...]
    dtype: Any
    #: For each gather the place of its ids, and the shape of a row; None for a gradient of all of x.
    ids: tuple[int, ...] | None = None
    row: tuple[int, ...] = ()


class _Mark:
    """Stands for a place where autograd gives the order of the backward pass."""

    def __init__(self, place: int, parents: Sequence[_Mark]) -> None:
        self.place = place
        self.parents = parents


class BackwardSchedule:
    """See the module's text.

    Args:
        node: The Gradients node.
        plan: Its plan.

    Attributes:
        pairs: The values that it needs, each with the node that is to see it, in order.
        covers: The nodes whose values it gives, in order.
    """

    def __init__(self, node: Node, plan: GradientPlan) -> None:
        self.covers = plan.covers
        self._stateful = [(at, covered) for at, covered in enumerate(plan.covers) if covered.stateful]
        places: dict[Any, int] = {}
        marks: dict[int, _Mark] = {}

        def place_of(source: Node, consumer: Node) -> int:
            """A covered node has one place; whatever else is used has one for each node that sees it."""
            key = source if source in places else (source, consumer)
            return places.setdefault(key, len(places))

        calls: list[_ForwardCall] = []
        covers = set(plan.covers)
        #: Where each leaf among xs lies; its other consumers' places must turn out to hold the same value.
        leaves: dict[Node, int] = {}
        seen_as: dict[Node, set[int]] = {}
        for covered in plan.covers:
            inputs = tuple(place_of(source, covered) for source in covered.inputs)
            inlets = plan.flows.get(covered, {})
            reached = []
            for at, (source, place) in enumerate(zip(covered.inputs, inputs, strict=True)):
                if source not in inlets:
                    continue
                if source not in covers:
                    seen_as.setdefault(source, set()).add(place)
                    place = leaves.setdefault(source, place)
                marks.setdefault(place, _Mark(place, ()))
                reached.append((at, place))
            out = places[covered] = len(places)
            if reached:
                marks[out] = _Mark(out, [marks[place] for _, place in reached])
            calls.append(
                _ForwardCall(covered.fn, plan.vjps.get(covered) if reached else None, inputs, out, tuple(reached))
            )
        self._ends: list[tuple[int, int | None]] = []
        for y, seed in zip(plan.ys, plan.seeds, strict=True):
            if y in plan.reached:
                marks.setdefault(places[y], _Mark(places[y], ()))
                self._ends.append((places[y], None if seed is None else place_of(seed, node)))
        end = _Mark(-1, [marks[place] for place, _ in self._ends])
        ways = {call.out: at for at, call in enumerate(calls) if call.reached}
        apart = _found_apart(calls, {*ways, *(place for place, _ in self._ends)})
        self._calls = tuple(
            call._replace(apart=tuple(pair for pair in call.reached if pair[1] in apart)) for call in calls
        )
        self._back = tuple((mark.place, ways.get(mark.place)) for mark in islice(toposort(end), 1, None))
        self._results = tuple(
            _Result(
                tuple(leaves[gather] for gather in plan.gathers[x]),
                x.dtype.as_numpy_dtype,
                tuple(place_of(gather.inputs[1], gather) for gather in plan.gathers[x]),
                tuple(int(size) for size in x.shape)[1:],
            )
            if x in plan.gathers
            else _Result((leaves[x] if x in leaves else places[x],), x.dtype.as_numpy_dtype)
            for x in plan.xs
            if x in plan.reached
        )
        self._same = [tuple(group) for group in seen_as.values() if len(group) > 1]
        self._size = len(places)
        needed = [(key, place) for key, place in places.items() if isinstance(key, tuple)]
        self.pairs: tuple[tuple[Node, Node], ...] = tuple(key for key, _ in needed)
        self._given = tuple(place for _, place in needed)

    def evaluate(
        self, given: Sequence[Any], drawn: MutableMapping[Node, Any] | None = None
    ) -> tuple[tuple[Any, ...], list[Any]] | None:
        """Find the gradients.

        Args:
            given: The value of each of `pairs`.
            drawn: Where None is given, gets the values of those stateful nodes that have been evaluated: they are not
                to be evaluated again.

        Returns:
            The Gradients node's value and the values of `covers`; None where the tape is needed after all, because
            a value is no array or a Variable was read twice.
        """
        values: list[Any] = [None] * self._size
        for place, value in zip(self._given, given, strict=True):
            values[place] = value
        if any(values[place] is not values[places[0]] for places in self._same for place in places):
            return None
        ways: list[Any] = [None] * len(self._calls)
        for at, (fn, vjp, inputs, out, reached, _) in enumerate(self._calls):
            arguments = [values[place] for place in inputs]
            if not reached:
                values[out] = fn(*arguments)
                continue
            for argument in arguments:
                if not isinstance(argument, _ARRAYS):
                    self._note_drawn(values, at, drawn)
                    return None
            pair = None if vjp is None else vjp(*arguments)
            if pair is None:
                values[out], ways[at] = vjp_by_tape(fn, arguments, [position for position, _ in reached])
            else:
                values[out], ways[at] = pair
        flowing: list[Any] = [None] * self._size
        for place, seed in self._ends:
            weight = np.ones_like(values[place]) if seed is None else values[seed]
            if not isinstance(weight, _ARRAYS):
                self._note_drawn(values, len(self._calls), drawn)
                return None
            _flow(flowing, place, weight)
        apart: list[tuple[int, Offered[Any]]] = []
        for place, way in self._back:
            gradient = flowing[place]
            if way is None or gradient is None:
                continue
            back, call = ways[way], self._calls[way]
            if callable(back):
                for (_, to), part in zip(call.reached, back(gradient), strict=True):
                    if part is not None:
                        _flow(flowing, to, part)
            elif call.apart:
                apart += _go_apart(call, back, gradient, flowing)
            else:
                for at, to in call.reached:
                    _flow(flowing, to, back[at](gradient))
        # Another thread begins with the first of them, so this one takes back the last.
        for place, one in reversed(apart):
            flowing[place] = one.result()
        gradients: list[Any] = []
        for result in self._results:
            parts = [_of_dtype(flowing[place], values[place], result.dtype) for place in result.places]
            if result.ids is None:
                gradients += parts
            else:
                rows = [part.reshape(-1, *result.row) for part in parts]
                ids = [np.asarray(values[place]).reshape(-1) for place in result.ids]
                gradients += [_joined(rows), _joined(ids).astype(np.int64)]
        return tuple(gradients), [values[call.out] for call in self._calls]

    def _note_drawn(self, values: Sequence[Any], before: int, drawn: MutableMapping[Node, Any] | None) -> None:
        """Give the values of the stateful nodes among the first calls."""
        if drawn is not None:
            drawn.update({node: values[self._calls[at].out] for at, node in self._stateful if at < before})


_ARRAYS = (np.ndarray, np.generic)


def _found_apart(calls: Sequence[_ForwardCall], others: set[int]) -> frozenset[int]:
    """Give the places whose gradients nothing waits for but the result, and that have one term only.

    Such a gradient may be found by another thread, if the same call has one that the backward pass goes on with.

    Args:
        calls: The forward calls.
        others: Places that have a way back, or weights of the ys.
    """
    terms = Counter(place for call in calls for _, place in call.reached)
    return frozenset(
        place
        for call in calls
        if any(other in others for _, other in call.reached)
        for _, place in call.reached
        if terms[place] == 1 and place not in others
    )


def _go_apart(
    call: _ForwardCall, back: Sequence[Any], gradient: Any, flowing: list[Any]
) -> list[tuple[int, Offered[Any]]]:
    """Take a gradient back to a call's inputs; gives the places for which that was offered to another thread."""
    offers: dict[int, Offered[Any]] = {}
    for at, to in call.apart:
        way = back[at]
        if isinstance(way, Costly):
            with halved():
                offer = offered(partial(way.way, gradient), way.multiplications)
            if offer is not None:
                offers[to] = offer
    with halved() if offers else nullcontext():
        for at, to in call.reached:
            if to not in offers:
                _flow(flowing, to, back[at](gradient))
    return list(offers.items())


def _of_dtype(gradient: Any, value: Any, dtype: Any) -> Any:
    """Give the gradient at a value, None for zero, in a dtype."""
    if gradient is None:
        return np.zeros_like(value)
    return gradient if gradient.dtype == dtype else gradient.astype(dtype)


def _joined(parts: Sequence[Any]) -> Any:
    """Concatenate arrays; one by itself is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _flow(flowing: list[Any], place: int, part: Any) -> None:
    before = flowing[place]
    flowing[place] = part if before is None else before + part


#: What gives a Gradients node's value without a tape.
Schedule = BackwardSchedule | GivenGradients


def schedule_of(node: Node) -> Schedule | None:
    """Give the schedule of a Gradients node, made at the first call; None where its plan needs the tape."""
    if "schedule" not in node.attrs:
        node.attrs["schedule"] = _find(node, node.attrs["plan"])
    schedule: Schedule | None = node.attrs["schedule"]
    return schedule


def _find(node: Node, plan: GradientPlan) -> Schedule | None:
    straight = all(covered.fn is not None for covered in plan.covers) and all(
        y in plan.covers for y in plan.ys if y in plan.reached
    )
    for covered in plan.covers:
        if plan.flows.get(covered) and covered not in plan.vjps:
            # A tuple's gradient is no array, and what has an effect is called as it is.
            tuples = any(one.attrs.get("tuple") for one in (covered, *covered.inputs))
            straight = straight and not tuples and not covered.stateful
    return BackwardSchedule(node, plan) if straight else given_gradients(plan)
