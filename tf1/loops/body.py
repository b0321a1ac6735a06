"""The body of a loop, or a part of a branch: nodes that are evaluated together, as often as a run says.

A body is traced once, into the graph of the program: its parameters are nodes, what its function makes of them are
nodes. The executor never sees them. What the body uses and what does not change from one evaluation to the next (the
Variables that it reads, constants, nodes made before) is captured: the loop's node has it among its inputs.

The gradient of a body is a body too. `uses_of` finds what it needs of the body that it is the gradient of: of each
evaluation, that is kept.

Layer: tf1. Threads: a Body is not changed by use, but for the function that is made when it is first evaluated; that
of a branch is added to by the thread that builds the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from traceback import walk_tb
from typing import Any, NoReturn

import numpy as np

from globalstep.dtypes import DType
from globalstep.errors import GlobalStepError, InvalidArgumentError
from globalstep.tf1.graph.graph import Node, closure_of
from globalstep.tf1.graph.kernels import kernel_of, saving_function_of
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.variables.variables import Variable


def parameter(dtype: DType, shape: TensorShape, name: str = "Identity") -> Node:
    """Make a node that stands for a value that each evaluation of a body gets."""
    return Node("LoopVariable", name=name, dtype=dtype, shape=shape)


@kernel_of("LoopVariable")
def _loop_variable(node: Node) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        raise InvalidArgumentError(
            f"{node.op_name!r} has a value only inside of the loop that it is part of: return what depends on it from "
            "the loop's body, and fetch what the loop gives."
        )

    return refuse


class Body:
    """See the module's text.

    Args:
        parameters: Its parameters.
        results: What it gives.
        within: The nodes that it may evaluate, in order: those that were made as it was traced.
        place: Where errors are said to be: "in a loop" or "in a branch".
        before: Nodes that have been evaluated by then, and need not be waited for.

    Attributes:
        parameters: As given.
        captures: What it uses from outside.
        nodes: What it evaluates, in order.
        within: As given.
        control_inputs: What must have run before it.
        has_effects: Whether one of its nodes does more than draw random numbers.

    Raises:
        ValueError: If it changes a Variable, or has a node that only a session can evaluate.
    """

    _function: Callable[..., list[Any]] | None = None

    def __init__(
        self, parameters: Sequence[Node], results: Sequence[Node], within: Sequence[Node],
        place: str = "in a loop", before: Collection[Node] = (),
    ) -> None:  # fmt: skip
        self.parameters, self.results, self.within, self.place = list(parameters), list(results), list(within), place
        # Of a branch all is evaluated, and nothing of it outside.
        inner = _reachable(results, within) if place == "in a loop" else list(within)
        varying = _varying(inner, {*parameters}, before) if place == "in a loop" else set(inner)
        self.nodes = [node for node in inner if node in varying and node not in parameters and node.op_type != "NoOp"]
        for node in inner:
            _require_evaluable(node, node in varying)
        known = {*varying, *parameters}
        used = [source for node in self.nodes for source in node.inputs]
        self.captures = list(dict.fromkeys(node for node in (*used, *results) if node not in known))
        self.control_inputs = tuple(
            dict.fromkeys(
                source for node in self.nodes for source in node.control_inputs
                if source not in known and source not in self.captures and source not in before
            )
        )  # fmt: skip
        self.has_effects = any(node.stateful and not node.attrs.get("stops_gradient") for node in self.nodes)

    def give(self, node: Node) -> None:
        """Have the body of a branch give one more of its nodes, or what a function of it saves."""
        if node not in self.nodes and node not in self.parameters:
            self.nodes.append(node)
        self.results.append(node)
        self._function = None

    def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
        """Give the results for the values of the parameters and captures."""
        function = self._function or self._compiled()
        try:
            return function(*inputs)
        except Exception as error:
            frame, line = next(at for at in walk_tb(error.__traceback__) if at[0].f_code is function.__code__)
            node = self._lines()[line - 2][0]
            shapes = [np.shape(frame.f_locals[f"x{at}"]) for at in self._places(node.inputs)]
            _raise_named(error, node, shapes, self.place)

    def _lines(self) -> list[tuple[Node, Node | None]]:
        """Return the nodes that are evaluated one by one, each with the node of what its function saves on the way."""
        own = set(self.nodes)
        saved = {node.attrs["of"]: node for node in self.nodes if _saves_for(node, own)}
        return [(node, saved.get(node)) for node in self.nodes if not _saves_for(node, own)]

    def _places(self, nodes: Sequence[Node]) -> list[int]:
        places = {node: at for at, node in enumerate((*self.parameters, *self.captures, *self.nodes))}
        return [places[node] for node in nodes]

    def _compiled(self) -> Callable[..., list[Any]]:
        """Write the function out, a line for each node. Its text has only numbers: of functions and of values."""
        places = {node: at for at, node in enumerate((*self.parameters, *self.captures, *self.nodes))}
        names: dict[str, Any] = {"__name__": __name__}
        inputs = ", ".join(f"x{at}" for at in range(len(self.parameters) + len(self.captures)))
        text = [f"def evaluate_all({inputs}):"]
        for at, (node, saved) in enumerate(self._lines()):
            if node.op_type == "TupleItem":
                text.append(f" x{places[node]} = x{places[node.inputs[0]]}[{int(node.attrs['index'])}]")
                continue
            names[f"f{at}"] = node.fn if saved is None else saving_function_of(node)
            target = f"x{places[node]}" if saved is None else f"x{places[node]}, x{places[saved]}"
            text.append(f" {target} = f{at}({', '.join(f'x{places[source]}' for source in node.inputs)})")
        text.append(f" return [{', '.join(f'x{places[node]}' for node in self.results)}]")
        exec(compile("\n".join(text), "<nodes of a loop>", "exec"), names)
        function: Callable[..., list[Any]] = names.pop("evaluate_all")
        self._function = function
        return function


def uses_of(results: Sequence[Node], made: Sequence[Node], forward: Collection[Node]) -> tuple[list[Node], list[Node]]:
    """Find what the nodes of a gradient use of the nodes that it is the gradient of.

    Args:
        results: The gradients.
        made: The nodes that were made for them.
        forward: The nodes that they are the gradients of.

    Returns:
        Those that they use, with items of these and what their functions save on their way; and the nodes made that are
        needed, without the latter.
    """
    own = _reachable(results, [node for node in made if not _is_of(node, forward)])
    sources = [source for node in own for source in node.inputs]
    used = [node for node in (*sources, *results) if node in forward or _is_of(node, forward)]
    return list(dict.fromkeys(used)), own


def _is_of(node: Node, nodes: Collection[Node]) -> bool:
    """Return whether a node is an item of one of these nodes, or what its function saves."""
    return _saves_for(node, nodes) or (node.op_type == "TupleItem" and node.inputs[0] in nodes)


def _saves_for(node: Node, nodes: Collection[Node]) -> bool:
    return node.op_type == "Saved" and node.attrs["of"] in nodes


def _reachable(results: Sequence[Node], within: Sequence[Node]) -> list[Node]:
    """The nodes of the body that its results need, in order."""
    inner = {node for node in within if not isinstance(node, Variable)}
    reached = closure_of(inner.intersection(results), lambda node: inner & {*node.inputs, *node.control_inputs})
    return [node for node in within if node in reached]


def _varying(inner: Sequence[Node], parameters: set[Node], before: Collection[Node]) -> set[Node]:
    """Return the nodes whose value may change, or that have an effect or wait for one, at each evaluation."""
    varying: set[Node] = set()
    for node in inner:
        changing = any(source in varying or source in parameters for source in (*node.inputs, *node.control_inputs))
        if changing or node in parameters or node.stateful or any(source in before for source in node.control_inputs):
            varying.add(node)
    return varying


def _require_evaluable(node: Node, varying: bool) -> None:
    if isinstance(node, Mutation):
        raise ValueError(
            f"The body of a loop may not change Variables, but {node.op_name!r} does: return the new value from the "
            "loop and assign it after."
        )
    if varying and node.fn is None and node.op_type != "NoOp":
        raise ValueError(
            f"{node.op_name!r} ({node.op_type}) cannot be in the body of a loop: it is evaluated by the session. "
            "Make it before the loop."
        )


def _raise_named(error: Exception, node: Node, shapes: Sequence[Any], place: str) -> NoReturn:
    """Raise the error of a node, whose inputs have these shapes, again, with the node's name, as a run does."""
    where = f", defined at {node.defined_at}" if node.defined_at else ""
    if isinstance(error, (ValueError, IndexError)) and not isinstance(error, GlobalStepError) and not node.stateful:
        raise InvalidArgumentError(
            f"{error} [node {node.op_name!r} ({node.op_type}) {place}, inputs of shapes "
            f"{', '.join(map(str, shapes))}{where}]"
        ) from error
    error.add_note(f"In node {node.op_name!r} ({node.op_type}{where}), {place}.")
    raise error
