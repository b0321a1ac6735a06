"""What jax compiles of a plan, where GLOBALSTEP_BACKEND=jax asks for it: maximal sets of pure nodes, each to one step.

Within what a round evaluates at one place, a node belongs to a set if jax can trace its kernel, it has no effects, and
it need not know more than jax does when it traces it: constants and shapes. A set gets the values from outside by
their slots, and gives those that something outside of it uses. What stays outside is evaluated by numpy between two
sets. What is no array, and numbers that are known from shapes, are found again wherever they are used.

A set's first run is numpy's: most runs that happen once, such as that of the initializers, are not worth a
compilation. jax compiles anew for other shapes. Where numpy refuses a value, or jax fails, numpy evaluates the nodes.

Layer: tf1. Imports jax where it is asked for. Threads: a set may be run by any number of threads.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from operator import itemgetter
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.execution.plan import Plan, Step, step_of, taking_nothing
from globalstep.tf1.graph.graph import Node, closure_of
from globalstep.worker.frameworks.training_model import require_extra

VARIABLE = "GLOBALSTEP_BACKEND"
#: Fewer nodes are evaluated by numpy in less time than it takes to call what jax has compiled.
_LEAST = 3
#: Larger constants are arguments of the compiled function, and no part of it.
_LARGEST_CONSTANT = 1024
_SHAPES = frozenset(("Rank", "Shape", "Size"))
_log = logging.getLogger(__name__)


def is_asked_for() -> bool:
    """Say whether the environment asks for jax.

    Raises:
        InvalidArgumentError: If it asks for something that is not there.
        ImportError: If it asks for jax, and that is not installed.
    """
    backend = os.environ.get(VARIABLE, "numpy")
    if backend not in ("jax", "numpy"):
        raise InvalidArgumentError(f"{VARIABLE} is 'numpy' or 'jax', not {backend!r}.")
    if backend == "jax":
        require_extra("jax", f"{VARIABLE}=jax", "jax")
    return backend == "jax"


def _kernels() -> Any:
    return importlib.import_module("globalstep.tf1.execution.jax_kernels")


class Search:
    """The search for sets.

    Args:
        nodes: Of the plan, in order of creation.
        places: Those that each place of the rounds evaluates, in order.
        rows: Those that read rows of a Variable.
        sources: Gives what a node computes from.
        wanted: Nodes whose value a run needs besides.
        fed: Nodes whose value is fed.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        places: Sequence[Sequence[Node]],
        rows: Set[Node],
        sources: Callable[[Node], Iterable[Node]],
        wanted: Set[Node],
        fed: Set[Node],
    ) -> None:
        self._nodes, self._places, self._sources, self._wanted = nodes, places, sources, wanted
        self._place_of = {node: at for at, evaluated in enumerate(places) for node in evaluated}
        #: Nodes whose value jax knows when it traces them; what is compiled; what is found again wherever it is used.
        self._known: set[Node] = set()
        self._among: set[Node] = set()
        self._again: set[Node] = set()
        #: Of kinds of nodes, why they stay outside.
        self._why_not: dict[str, str] = {}
        #: Place and level of each node: how often, on the way to it, something there had to wait for a set.
        self._levels: dict[Node, tuple[int, int]] = {}
        for node in nodes:
            if node in fed:
                continue
            if node.op_type == "Const" and _is_embedded(node):
                self._known.add(node)
            elif node in self._place_of and node.op_type != "NoOp" and not node.is_operation:
                self._sort(node, node in rows)

    def places(self) -> list[list[Node | NodeSet]]:
        """Give what each place evaluates, with sets in it, and tell the log what is compiled."""
        while True:
            self._find_levels()
            sets: dict[tuple[int, int], list[Node]] = {}
            for node in self._place_of:
                if node in self._among:
                    sets.setdefault(self._levels[node], []).append(node)
            small = {node for inside in sets.values() if len(inside) < _LEAST for node in inside}
            if not small:
                break
            self._among -= small
        used = self._used(sets.values())
        found = [self._in_order(at, sets, used) for at in range(len(self._places))]
        outside = {node.op_type for items in found for node in items if isinstance(node, Node)}
        _log.log(
            logging.INFO if sets else logging.DEBUG,
            "jax compiles %d of the %d nodes of a run (functions: %d).%s",
            len(self._among), len(self._place_of), len(sets),
            "".join(f" {kind} stays outside: {self._why_not[kind]}." for kind in sorted(outside & {*self._why_not})),
        )  # fmt: skip
        return found

    def _sort(self, node: Node, is_read: bool) -> None:
        """Find out what may become of a node, whose inputs were sorted before."""
        why = "it has effects or draws random numbers" if node.stateful or is_read else self._why_outside(node)
        if why:
            self._why_not[node.op_type] = why
        elif not _is_array(node):
            self._again.add(node)
        elif node.op_type in _SHAPES or (node.dtype.is_integer and node.inputs and self._known.issuperset(node.inputs)):
            self._known.add(node)
            self._again.add(node)
        else:
            self._among.add(node)

    def _why_outside(self, node: Node) -> str:
        if node.own_fn is not None:
            return "it is a function of the program"
        is_inner = node.op_type == "Saved" or bool(node.attrs.get("tuple"))
        if not (is_inner or _is_array(node)) or not all(_is_array(one) or one in self._again for one in node.inputs):
            return "its values are no numbers"
        if not _kernels().is_compiled(node):
            return "jax has no kernel for it"
        if not self._known.issuperset(_kernels().known_inputs(node)):
            return "it needs a shape, or numbers, that only a run knows"
        return ""

    def _feeding(self, nodes: Iterable[Node]) -> set[Node]:
        """Give what nodes need that is not found again, and what they need that is."""
        return closure_of(
            [source for node in nodes for source in node.inputs],
            lambda node: node.inputs if node in self._again else (),
        )

    def _find_levels(self) -> None:
        self._levels = {}
        effects: dict[int, int] = {}
        for node, place in self._place_of.items():
            level, inside = 0, node in self._among
            for source in (*(self._feeding([node]) - self._again if inside else node.inputs), *node.control_inputs):
                at, before = self._levels.get(source, (-1, 0))
                if at == place:
                    level = max(level, before + (not inside and source in self._among))
            if node.stateful:
                # Effects keep their order.
                level = effects[place] = max(level, effects.get(place, 0))
            self._levels[node] = place, level

    def _used(self, sets: Iterable[Sequence[Node]]) -> set[Node]:
        """Give the nodes whose values something outside of their set uses."""
        roots = [node for node in self._nodes if node not in self._among and node not in self._again]
        outside = closure_of(
            [*self._wanted, *(source for node in roots for source in self._sources(node))],
            lambda node: node.inputs if node in self._again else (),
        )
        return outside.union(*((self._feeding(inside) - self._again).difference(inside) for inside in sets))

    def _in_order(self, at: int, sets: Mapping[tuple[int, int], list[Node]], used: Set[Node]) -> list[Node | NodeSet]:
        ordered: list[Node | NodeSet] = []
        nodes = [node for node in self._places[at] if node not in self._among]
        for level in range(1 + max((self._levels[node][1] for node in self._places[at]), default=0)):
            here = (at, level)
            ordered += [
                node for node in nodes if self._levels[node] == here and (node not in self._again or node in used)
            ]
            inside = sets.get(here, [])
            outputs = [node for node in inside if node in used]
            # Where nothing but shapes is used, nothing needs to be computed.
            if outputs:
                again = self._feeding(inside) & self._again
                ordered.append(NodeSet([node for node in self._nodes if node in again.union(inside)], outputs))
        return ordered


def _is_array(node: Node) -> bool:
    return node._dtype is not None and np.dtype(node.dtype.as_numpy_dtype).kind in "biuf"


def _is_embedded(constant: Node) -> bool:
    """Say whether a constant is part of what is compiled, and no argument of it."""
    return _is_array(constant) and (constant.dtype.is_integer or constant.attrs["value"].size <= _LARGEST_CONSTANT)


class NodeSet:
    """Nodes that are compiled together: a function of the values of its inputs, to the tuple of its outputs.

    Args:
        nodes: They, and what is found again for them, in order of creation.
        outputs: Those of them whose values are used outside.
    """

    def __init__(self, nodes: Sequence[Node], outputs: Sequence[Node]) -> None:
        self.nodes, self.outputs = nodes, outputs
        self._was_run = self._failed = False
        jax: Any = importlib.import_module("jax")
        self._function = jax.jit(self._traced)
        # So that 64 bits stay 64 bits, here and nowhere else in the program.
        self._wide = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64

    def step(self, plan: Plan, fed: Set[Node]) -> Step:
        """Make the step that evaluates it, in a plan that has its slots; values of some nodes are fed."""
        made = {plan.slots[node] for node in self.nodes}
        sources = {plan.slot_for(source, node): source for node in self.nodes for source in node.inputs}
        self._constants = {
            slot: source.attrs["value"]
            for slot, source in sources.items()
            if source.op_type == "Const" and source not in fed and _is_embedded(source)
        }
        self._plan, self._inputs = plan, tuple(sources.keys() - made - self._constants.keys())
        getter: Any = itemgetter(*self._inputs) if len(self._inputs) > 1 else taking_nothing
        one, first = self._inputs[0] if len(self._inputs) == 1 else None, plan.slots[self.outputs[0]]
        named = next(node for node in self.nodes if node.op_type != "TupleItem")
        return Step(self, one, getter, slice(first, first + len(self.outputs)), named, self._inputs)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Give the outputs."""
        if self._failed or not self._was_run:
            self._was_run = True
            return self._by_numpy(values)
        try:
            with self._wide(True):
                holds, made = self._function(*values)
            if holds is None or holds:
                return tuple(map(np.asarray, made))
        except Exception as error:
            found = self._by_numpy(values)
            self._failed = True
            where = "".join(getattr(error, "__notes__", ()))
            _log.warning("numpy evaluates %d nodes, since jax could not: %s %s", len(self.nodes), error, where)
            return found
        return self._by_numpy(values)

    def _traced(self, *values: Any) -> tuple[Any, tuple[Any, ...]]:
        """Give whether numpy's kernels take the values, None where they take all, and the outputs."""
        kernels, slots = _kernels(), self._plan.slots
        at = {**self._constants, **dict(zip(self._inputs, values, strict=True))}
        saved = {node.attrs["of"]: slots[node] for node in self.nodes if node.op_type == "Saved"}
        holds: list[Any] = []
        token = kernels.HELD.set(holds)
        try:
            for node in self.nodes:
                given = [at[self._plan.slot_for(source, node)] for source in node.inputs]
                if node in saved:
                    at[slots[node]], at[saved[node]] = kernels.value_of(node, given, saving=True)
                elif slots[node] not in at:
                    at[slots[node]] = kernels.value_of(node, given)
        except Exception as error:
            error.add_note(f"In node {node.op_name!r} ({node.op_type}), which jax was to compile.")
            raise
        finally:
            kernels.HELD.reset(token)
        return sum(holds) == len(holds) if holds else None, tuple(at[self._plan.slots[node]] for node in self.outputs)

    def _by_numpy(self, values: Sequence[Any]) -> tuple[Any, ...]:
        from globalstep.tf1.execution.run import evaluate

        at = self._plan.constants.copy()
        for slot, value in zip(self._inputs, values, strict=True):
            at[slot] = value
        try:
            # Every node has a function, so that none needs the executor.
            evaluate([step_of(self._plan, node) for node in self.nodes], at, self._plan, None)  # type: ignore[arg-type]
        except Exception as error:
            error.is_explained = True  # type: ignore[attr-defined]
            raise
        return tuple(at[self._plan.slots[node]] for node in self.outputs)
