"""Operands and declarations of a push; see `run` for the push itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.cluster.placement import Declarations
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.graph.mutations import MutationPart
from globalstep.tf1.variables.graph_program import declarations
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import OpKind, OptimizerUse

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient


#: From this size on, an initial value is looked through for being one number throughout.
_FILL_BYTES = 256


def operand_of(part: MutationPart, value: Any) -> np.ndarray[Any, Any]:
    """Give an operand as an array of its Variable's dtype, if that loses no kind of number."""
    dtype = np.dtype(part.variable.dtype.as_numpy_dtype)
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    if not isinstance(value, (np.ndarray, np.generic)) or np.can_cast(array.dtype, dtype, "same_kind"):
        return array.astype(dtype)
    raise InvalidArgumentError(
        f"Variable {part.variable.op_name!r} has dtype {dtype.name}, its operand has {array.dtype.name}."
    )


def as_fill(value: np.ndarray[Any, Any]) -> float | None:
    """Give the number that an array repeats, bit for bit; None where it does not or is small anyway."""
    if value.nbytes < _FILL_BYTES or value.dtype.kind not in "fiub":
        return None
    flat = value.reshape(-1)
    first = flat[0]
    if flat[-1] != first or not np.array_equal(flat.view(np.uint8), np.full_like(flat, first).view(np.uint8)):
        return None
    return float(first) if value.dtype.type(float(first)) == first else None


def is_declaring(part: MutationPart) -> bool:
    """Whether a part assigns a Variable as a whole, and so can initialize it."""
    return part.declare or (part.kind is OpKind.ASSIGN and part.indices is None and part.source is None)


class Declarer:
    """Tells the PS of a graph's Variables and optimizers when a push first needs them. Thread-safe.

    Args:
        graph: The graph.
        cluster: Where to declare.
    """

    def __init__(self, graph: Graph, cluster: ClusterClient) -> None:
        self._graph = graph
        self._cluster = cluster
        # Guards _planned and _known; a leaf: no call to the cluster is made under it.
        self._lock = threading.Lock()
        self._planned: tuple[Any, Declarations] | None = None
        #: (incarnation, optimizer) pairs that are declared.
        self._known: set[tuple[int, str]] = set()

    def declare(self, shapes: Mapping[Variable, tuple[int, ...]], uses: Iterable[OptimizerUse]) -> None:
        """Declare what a push needs and the PS does not know.

        Args:
            shapes: The Variables that the push gives their whole value, with the value's shape.
            uses: The optimizers that it uses.
        """
        cluster = self._cluster
        if cluster.incarnation == 0:
            cluster.refresh()
        if cluster.incarnation == 0:
            if not shapes:
                return
            cluster.membership.begin_first(self._plan().sequencer)
        incarnation = cluster.incarnation
        used = {use.optimizer for use in uses if (incarnation, use.optimizer) not in self._known}
        new = [variable for variable in shapes if variable.op_name not in cluster.variables]
        if not new and not used:
            return
        plan = self._plan()
        by_name = {decl.name: decl for decl in plan.variables}
        variables = [
            by_name.get(variable.op_name) or variable.declaration(shapes[variable], shard=plan.shards[variable.op_name])
            for variable in new
        ]
        there = set(cluster.variables) | {decl.name for decl in variables}
        optimizers = [
            decl
            for decl in plan.optimizers
            if (incarnation, decl.name) not in self._known
            and there.issuperset(decl.scalars)
            and all(there.issuperset((name, *slots)) for name, slots in decl.slots.items())
        ]
        cluster.declare(variables, optimizers)
        with self._lock:
            self._known.update((incarnation, decl.name) for decl in optimizers)

    def _plan(self) -> Declarations:
        cluster = self._cluster
        placed = dict(cluster.where)
        key = (self._graph.version, len(placed), cluster.incarnation)
        with self._lock:
            if self._planned is None or self._planned[0] != key:
                plan = declarations(
                    self._graph, cluster.shards, cluster.policy, cluster.sequencer, placed, cluster.variables
                )
                self._planned = (key, plan)
            return self._planned[1]
