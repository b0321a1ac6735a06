"""The body of a loop: a part of the graph that is evaluated again and again, and how gradients go through it.

A body is traced once, into the graph of the program: its parameters are nodes, what its function makes of them are
nodes. The executor never sees them. What the body uses and what does not change from one evaluation to the next (the
Variables that it reads, constants, nodes made before) is captured: the loop's node has it among its inputs.

Layer: tf1. Threads: a Body is not changed by use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from globalstep.dtypes import DType
from globalstep.errors import GlobalStepError, InvalidArgumentError
from globalstep.tf1.gradients.gradient_plan import GradientPlan
from globalstep.tf1.gradients.gradients import evaluate_gradients
from globalstep.tf1.gradients.tape import vjp_by_tape
from globalstep.tf1.gradients.vjps import vjp_of
from globalstep.tf1.graph.graph import Node, closure_of
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.variables.variables import Variable

__all__ = ["Body", "Record", "parameter", "raise_named"]


def parameter(dtype: DType, shape: TensorShape, name: str = "Identity") -> Node:
    """Make a node that stands for a value that each evaluation of a body gets."""

    def refuse() -> Any:
        raise InvalidArgumentError(
            f"{node.op_name!r} has a value only inside of the loop that it is part of: return what depends on it from "
            "the loop's body, and fetch what the loop gives."
        )

    node = Node("LoopVariable", (), refuse, name=name, dtype=dtype, shape=shape)
    return node


class _BodyStep(NamedTuple):
    """One node of the body: from the values at places `inputs` to the one at `out`."""

    fn: Any
    inputs: tuple[int, ...]
    out: int
    node: Node
    vjp: Any
    #: Of the inputs that a gradient goes on to: position among the inputs, place.
    reached: tuple[tuple[int, int], ...]


class Body:
    """See the module's text.

    Args:
        parameters: Its parameters.
        results: What it gives.
        start: How many nodes the graph had before it was traced, and its parameters made.
        differentiable: Whether gradients may go through it.

    Attributes:
        captures: What it uses from outside.
        control_inputs: What must have run before it.
        has_effects: Whether one of its nodes does more than draw random numbers.
        has_no_gradient: Whether a function in it has none.

    Raises:
        ValueError: If it changes a Variable, or has a node that only a session can evaluate.
    """

    def __init__(
        self, parameters: Sequence[Node], results: Sequence[Node], start: int, differentiable: bool = True
    ) -> None:
        graph = results[0].graph
        position = {node: at for at, node in enumerate(graph.nodes[start:])}
        inner = _reachable(results, position)
        varying = _varying(inner, set(parameters))
        steps = [node for node in inner if node in varying and node not in parameters and not _is_nothing(node)]
        for node in inner:
            _require_evaluable(node, node in varying)
        used = [source for node in steps for source in _sources(node)]
        self.captures = tuple(
            dict.fromkeys(node for node in (*used, *results) if node not in varying and node not in parameters)
        )
        self.control_inputs = tuple(
            dict.fromkeys(
                source for node in steps for source in node.control_inputs
                if source not in varying and source not in self.captures
            )
        )  # fmt: skip
        self.has_effects = any(node.stateful and not node.attrs.get("stops_gradient") for node in steps)
        places = {node: at for at, node in enumerate((*parameters, *self.captures))}
        self._inputs = len(places)
        for node in steps:
            places[node] = len(places)
        self._size = len(places)
        self._results = tuple(places[node] for node in results)
        self.has_no_gradient = False
        flows = self._flows(parameters, results) if differentiable else {}
        self._steps = tuple(_step(node, places, flows.get(node, {})) for node in steps)

    def _flows(self, parameters: Sequence[Node], results: Sequence[Node]) -> dict[Node, dict[Node, None]]:
        ends = [*parameters, *self.captures]
        ys = [node for node in results if node.dtype.is_floating]
        xs = [node for node in ends if not node.is_operation and node.dtype.is_floating]
        try:
            return GradientPlan(ys, xs, [None] * len(ys), ends).flows if ys else {}
        except LookupError:
            self.has_no_gradient = True
            return {}

    def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
        """Give the results for the values of the parameters and captures."""
        values = [*inputs, *[None] * (self._size - self._inputs)]
        step = None
        try:
            for step in self._steps:
                values[step.out] = step.fn(*[values[at] for at in step.inputs])
        except Exception as error:
            _raise_named(error, step, values)
        return [values[at] for at in self._results]

    def record(self, inputs: Sequence[Any]) -> tuple[list[Any], Record]:
        """Give the results, and what the way back from them needs."""
        values = [*inputs, *[None] * (self._size - self._inputs)]
        ways: list[Any] = []
        step = None
        try:
            for step in self._steps:
                arguments = [values[at] for at in step.inputs]
                if not step.reached:
                    values[step.out] = step.fn(*arguments)
                    continue
                result = None if step.vjp is None else step.vjp(*arguments)
                way: Any
                if result is None:
                    values[step.out], way = vjp_by_tape(step.fn, arguments, [at for at, _ in step.reached])
                else:
                    values[step.out], each = result
                    way = [each[at] for at, _ in step.reached]
                ways.append((step, way))
        except Exception as error:
            _raise_named(error, step, values)
        return [values[at] for at in self._results], Record(ways, self._results, self._inputs)


class Record:
    """One evaluation of a body, from whose end gradients can go back.

    Args:
        ways: The steps that a gradient goes through, each with the ways to its inputs.
        results: Places of the results.
        inputs: How many places are parameters and captures; they are the first.
    """

    __slots__ = ("_inputs", "_results", "_ways")

    def __init__(self, ways: Sequence[tuple[_BodyStep, Any]], results: tuple[int, ...], inputs: int) -> None:
        self._ways = ways
        self._results = results
        self._inputs = inputs

    def backward(self, gradients: Sequence[Any]) -> list[Any]:
        """Give the gradients of the parameters and captures, None for zero.

        Args:
            gradients: Those of the results, None for zero.
        """
        flowing: dict[int, Any] = {}

        def flow(place: int, part: Any) -> None:
            before = flowing.get(place)
            flowing[place] = part if before is None else before + part

        for place, gradient in zip(self._results, gradients, strict=True):
            if gradient is not None:
                flow(place, gradient)
        for step, ways in reversed(self._ways):
            gradient = flowing.pop(step.out, None)
            if gradient is None:
                continue
            parts = ways(gradient) if callable(ways) else [way(gradient) for way in ways]
            for (_, place), part in zip(step.reached, parts, strict=True):
                if part is not None:
                    flow(place, part)
        return [flowing.get(place) for place in range(self._inputs)]


def _is_nothing(node: Node) -> bool:
    return node.op_type == "NoOp"


def _sources(node: Node) -> tuple[Node, ...]:
    """The nodes whose values it computes from."""
    if node.op_type == "Gradients":
        return tuple(source for source in node.attrs["needs"] if not source.is_operation)
    return node.inputs


def _reachable(results: Sequence[Node], within: dict[Node, int]) -> list[Node]:
    """The nodes of the body that its results need, in order of creation."""
    inner = {node for node in within if not isinstance(node, Variable)}
    reached = closure_of(inner.intersection(results), lambda node: inner & {*_sources(node), *node.control_inputs})
    return sorted(reached, key=within.__getitem__)


def _varying(inner: Sequence[Node], parameters: set[Node]) -> set[Node]:
    """Return the nodes whose value may change, or that have an effect, at each evaluation."""
    varying: set[Node] = set()
    for node in inner:
        sources = (*_sources(node), *node.control_inputs)
        if node in parameters or node.stateful or any(source in varying for source in sources):
            varying.add(node)
    return varying


def _require_evaluable(node: Node, varying: bool) -> None:
    if isinstance(node, Mutation):
        raise ValueError(
            f"The body of a loop may not change Variables, but {node.op_name!r} does: return the new value from the "
            "loop and assign it after."
        )
    if varying and node.fn is None and node.op_type != "Gradients" and not _is_nothing(node):
        raise ValueError(
            f"{node.op_name!r} ({node.op_type}) cannot be in the body of a loop: it is evaluated by the session. "
            "Make it before the loop."
        )


def _step(node: Node, places: dict[Node, int], inlets: dict[Node, None]) -> _BodyStep:
    sources = _sources(node)
    inputs = tuple(places[source] for source in sources)
    fn: Any = node.fn
    if node.op_type == "Gradients":
        fn = _gradients_of(node, sources)
    elif getattr(fn, "_is_autograd_primitive", False) and not inlets:
        fn = fn.fun
    reached = tuple((at, places[source]) for at, source in enumerate(sources) if source in inlets)
    vjp = vjp_of(node.fn)
    if node.op_type == "TupleItem":
        vjp = _tuple_item(node.attrs["index"])
    return _BodyStep(fn, inputs, places[node], node, vjp, reached)


def _gradients_of(node: Node, sources: Sequence[Node]) -> Callable[..., Any]:
    def evaluate(*inputs: Any) -> Any:
        values = dict(zip(sources, inputs, strict=True))
        return evaluate_gradients(node, lambda source, consumer: values[source])[0]

    return evaluate


def _tuple_item(index: int) -> Callable[[Any], Any]:
    def vjp(values: Any) -> Any:
        def way(gradient: Any) -> Any:
            gradients = np.zeros(len(values), object)
            gradients[index] = gradient
            return gradients

        return values[index], (way,)

    return vjp


def _raise_named(error: Exception, step: _BodyStep | None, values: Sequence[Any]) -> NoReturn:
    assert step is not None
    raise_named(error, step.node, [np.shape(values[at]) for at in step.inputs], "in a loop")


def raise_named(error: Exception, node: Node, shapes: Sequence[Any], place: str) -> NoReturn:
    """Raise the error of a node within a loop or a branch again, with the node's name, as a run does.

    Args:
        error: What was raised.
        node: What raised it.
        shapes: Those of its inputs.
        place: "in a loop" or "in a branch".
    """
    where = f", defined at {node.defined_at}" if node.defined_at else ""
    if isinstance(error, (ValueError, IndexError)) and not isinstance(error, GlobalStepError) and not node.stateful:
        raise InvalidArgumentError(
            f"{error} [node {node.op_name!r} ({node.op_type}) {place}, inputs of shapes "
            f"{', '.join(map(str, shapes))}{where}]"
        ) from error
    error.add_note(f"In node {node.op_name!r} ({node.op_type}{where}), {place}.")
    raise error
