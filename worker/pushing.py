"""From mutations and the values of their operands to a push, and to declarations where it needs them.

Floor: worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.declarations import Increment, Op, OpKind, OptimizerUse, Push
from globalstep.errors import InvalidArgumentError
from globalstep.graph import Graph, Node
from globalstep.mutations import Mutation, OptimizerSpec, Part
from globalstep.placement import Declarations, declarations
from globalstep.variables import Variable

if TYPE_CHECKING:
    from globalstep.worker.client import ClusterClient

__all__ = ["Declarer", "build_push", "is_declaring", "operand_of"]

#: From this size on, an initial value is looked through for being one number throughout.
_FILL_BYTES = 256

ValueOf = Callable[[Node, Node], Any]


def build_push(
    mutations: Sequence[Mutation], value_of: ValueOf, worker_hypers: Mapping[OptimizerSpec, Mapping[str, Any]]
) -> Push:
    """Make the push of mutations; parts of local Variables are left out.

    Args:
        mutations: In order.
        value_of: Gives the value of a node as a mutation is to see it.
        worker_hypers: For each optimizer, the hyper-parameters that this worker evaluates.

    Raises:
        InvalidArgumentError: If such a hyper-parameter is no number.
    """
    push = Push()
    uses: dict[OptimizerSpec, OptimizerUse] = {}
    for mutation in mutations:
        for part in mutation.parts:
            if not part.variable.is_local:
                push.ops.append(_op(part, mutation, value_of))
        push.increments += [Increment(step.op_name, by) for step, by in mutation.increments]
        applied = [part.optimizer for part in mutation.parts if part.optimizer is not None]
        for spec in dict.fromkeys((*mutation.uses, *applied)):
            before = uses.get(spec)
            uses[spec] = OptimizerUse(
                optimizer=spec.name,
                after_increment=mutation.after_increment,
                finish=spec in mutation.uses or (before is not None and before.finish),
                overrides=before.overrides
                if before is not None
                else {
                    name: _number(spec, name, hyper, mutation, value_of)
                    for name, hyper in worker_hypers.get(spec, {}).items()
                },
            )
    push.uses = list(uses.values())
    return push


def _op(part: Part, mutation: Mutation, value_of: ValueOf) -> Op:
    op = Op(
        kind=part.kind,
        variable=part.variable.op_name,
        fill=part.fill,
        source="" if part.source is None else part.source.op_name,
        optimizer="" if part.optimizer is None else part.optimizer.name,
        unique=part.unique,
        after_increment=mutation.after_increment,
    )
    if part.operand is None:
        return op
    value = operand_of(part, value_of(part.operand, mutation))
    if part.indices is not None:
        op.indices = np.asarray(value_of(part.indices, mutation), dtype=np.int64)
        if op.indices.ndim != 1:
            value = value.reshape(op.indices.size, *value.shape[op.indices.ndim :])
            op.indices = op.indices.reshape(-1)
    elif part.declare and (fill := _as_fill(value)) is not None:
        op.fill = fill
        return op
    op.value = value
    return op


def operand_of(part: Part, value: Any) -> np.ndarray[Any, Any]:
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


def _as_fill(value: np.ndarray[Any, Any]) -> float | None:
    """The number that an array repeats, bit for bit; None where it does not or is small anyway."""
    if value.nbytes < _FILL_BYTES or value.dtype.kind not in "fiub":
        return None
    flat = value.reshape(-1)
    first = flat[0]
    if flat[-1] != first or not np.array_equal(flat.view(np.uint8), np.full_like(flat, first).view(np.uint8)):
        return None
    return float(first) if value.dtype.type(float(first)) == first else None


def _number(spec: OptimizerSpec, name: str, hyper: Any, mutation: Mutation, value_of: ValueOf) -> float:
    value = value_of(hyper, mutation) if isinstance(hyper, Node) else hyper()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"The {name} of optimizer {spec.name!r} must be one number; this run gave {value!r}."
        ) from None


def is_declaring(part: Part) -> bool:
    """Whether a part gives a Variable all of its value, so that it may come into being by it."""
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
            cluster.begin(sequencer=self._plan().sequencer, open=True)
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
        begun = cluster.incarnation != 0
        key = (self._graph.version, len(placed), cluster.incarnation)
        with self._lock:
            if self._planned is None or self._planned[0] != key:
                plan = declarations(
                    self._graph, cluster.shards, cluster.sequencer if begun else None, placed, cluster.variables
                )
                self._planned = (key, plan)
            return self._planned[1]
