"""Prefetching of lookups: which rows the next run needs, and rows that came before it.

A program that knows its next batch announces it (`Session.prefetch`, `gs.train.PrefetchLookupHook`). The push of
the present run then asks for the rows that the next one will look up, in the cut right after itself, so that a
step is one round trip instead of two. The next run uses them if it does look up those rows, under the terms on
which values that came back with a push are ever used (`Executor.fresh_values`); else it reads as always.

Layer: tf1. Threads: functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.tf1.execution.plan import EMPTY, Plan, Step, slots_of
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.variables.variables import Variable

Array = npt.NDArray[Any]
#: A Variable, and the int64 [n] ids of its rows.
Lookup = tuple[Variable, Array]


class Fresh(NamedTuple):
    """Values as of right after a push.

    Attributes:
        write: Number of the push among the executor's.
        incarnation: The run's.
        at: When they came, by the executor's clock.
        variables: Those whose whole value is here.
        values: Of these, in order.
        rows: Of lookups.
    """

    write: int
    incarnation: int
    at: float
    variables: tuple[Variable, ...]
    values: Sequence[Any]
    rows: Sequence[tuple[Lookup, Any]] = ()

    def whole(self, wanted: tuple[Variable, ...]) -> Sequence[Any] | None:
        """Give the values of Variables, in order; None if one is not among them."""
        held = dict(zip(self.variables, self.values, strict=True))
        return [held[variable] for variable in wanted] if held.keys() >= set(wanted) else None

    def found(self, lookups: Sequence[Lookup]) -> list[Any] | None:
        """Give the rows of lookups; None if one is not among them."""
        out: list[Any] = []
        for variable, ids in lookups:
            for (held, named), value in self.rows:
                if held is variable and np.array_equal(named, ids):
                    out.append(value)
                    break
            else:
                return None
        return out


def lookups_of(plan: Plan, feeds: Mapping[Node, Any]) -> list[Lookup]:
    """Find the rows that a run of a plan looks up at its beginning.

    Args:
        plan: The plan.
        feeds: What the run will be fed.

    Returns:
        The lookups, in the order of the plan's; none where they cannot be known beforehand: because a feed is
        missing, ids come from what has an effect (a queue, a random number), or an id is no row. The run itself
        then says what is wrong.
    """
    first = plan.rounds[0]
    values = plan.constants.copy()
    for node, value in feeds.items():
        slot = plan.slots.get(node)
        if slot is not None:
            values[slot] = value
    wanted = {row.ids for row in first.row_reads}
    steps: list[Step] = []
    for step in reversed(first.early):
        if not wanted.isdisjoint(slots_of(step.out)):
            steps.append(step)
            wanted.update(step.inputs)
    made = {slot for step in steps for slot in slots_of(step.out)}
    if any(step.fn is None or step.node.stateful for step in steps):
        return []
    if any(values[slot] is EMPTY for slot in wanted - made):
        return []
    try:
        for step in reversed(steps):
            assert step.fn is not None
            values[step.out] = step.fn(*[values[slot] for slot in step.inputs])
    except Exception:
        # The run itself computes them once more, and reports it.
        return []
    lookups: list[Lookup] = []
    for row in first.row_reads:
        # The program may write its next batch into the same array.
        ids = np.array(values[row.ids], np.int64).reshape(-1)
        rows = row.variable.shape.as_list()[0]
        if rows is None or (ids.size and (ids.min() < 0 or ids.max() >= rows)):
            return []
        lookups.append((row.variable, ids))
    return lookups
