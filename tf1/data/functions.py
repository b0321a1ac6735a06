"""Functions of elements: traced once into the graph, evaluated for each element without a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from globalstep.tf1.data.elements import Pass, arrays_of, component_of, joined, nodes_of, parts_of, sparse_like
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, get_default_graph
from globalstep.tf1.loops.body import Body, parameter


class ElementFunction:
    """A function of an element.

    Args:
        function: Takes the parts of an element that is a tuple, else the element.
        element: A nest of Component.
        results: Makes of what `function` returned the nodes, or SparseTensors, to evaluate.

    Attributes:
        returned: What `function` returned.
        captures: The nodes outside that it uses.
        control_inputs: What must have run before it.

    Raises:
        ValueError: If it changes a Variable, or has a node that only a session can evaluate.
    """

    def __init__(
        self, function: Callable[..., Any], element: Any, results: Callable[[Any], tuple[Any, Sequence[Any]]]
    ) -> None:
        start = len(get_default_graph().nodes)
        kinds = nest.flatten(element)
        parameters = [parameter(part.dtype, part.shape, "arg") for kind in kinds for part in parts_of(kind)]
        argument = nest.pack_sequence_as(element, joined(kinds, parameters, sparse_like(kinds)))
        # Not a named tuple: it is one argument.
        self.returned, leaves = results(function(*argument) if type(argument) is tuple else function(argument))
        within = get_default_graph().nodes[start:]
        self._body = Body(parameters, nodes_of(leaves), within) if leaves else None
        self._kinds = [component_of(leaf) for leaf in leaves]
        self.captures = tuple(self._body.captures) if self._body else ()
        self.control_inputs: tuple[Node, ...] = self._body.control_inputs if self._body else ()

    def evaluate(self, run: Pass, values: Sequence[Any]) -> tuple[Any, ...]:
        """Give the results for the components of an element."""
        if self._body is None:
            return ()
        arrays = self._body.evaluate([*arrays_of(values), *(run.values[node] for node in self.captures)])
        return tuple(joined(self._kinds, arrays))
