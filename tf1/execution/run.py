"""One run of a plan: its values, what it reads, and what it pushes.

Layer: tf1. Threads: a PlanRun belongs to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.errors import JobDoneError
from globalstep.tf1.execution.evaluation import compiled, evaluate
from globalstep.tf1.execution.fetches import fetched
from globalstep.tf1.execution.plan import Plan, Round
from globalstep.tf1.execution.prefetching import Lookup
from globalstep.tf1.execution.push_form import PushForm
from globalstep.tf1.execution.pushing import operand_of
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import OpKind, Push, Read
from globalstep.worker.step.own_optimizer import moved_scalars

if TYPE_CHECKING:
    from globalstep.tf1.execution.executor import Executor

__all__ = ["PlanRun", "SteadyRun"]


class PlanRun:
    """One run: the values of its nodes, as its plan's slots.

    Args:
        executor: Who runs it.
        plan: How it goes.
        feeds: Values to take for nodes instead of their own.
    """

    def __init__(self, executor: Executor, plan: Plan, feeds: Mapping[Node, Any]) -> None:
        self._executor = executor
        self._plan = plan
        self.values = plan.constants.copy()
        self._feeds = feeds
        for node, value in feeds.items():
            slot = plan.slots.get(node)
            if slot is not None:
                self.values[slot] = value

    @np.errstate(all="ignore")
    def results(self) -> list[Any]:
        """PlanRun, and give the value of each fetch; see Executor.run."""
        plan = self._plan
        carried = False
        try:
            for number, current in enumerate(plan.rounds):
                if current.early:
                    self._evaluate(current.early)
                self._read(current, number, carried)
                if current.late:
                    self._evaluate(current.late)
                carried = bool(current.mutations) and self._push(current, number)
        except JobDoneError as done:
            done.values = fetched(plan, self.values, self._feeds)
            raise
        return fetched(plan, self.values, self._feeds)

    def _evaluate(self, steps: Sequence[Any]) -> None:
        executor = self._executor
        if executor.trace is None:
            evaluate(steps, self.values, self._plan, executor)
            return
        with executor.span("compute", nodes=len(steps)):
            evaluate(steps, self.values, self._plan, executor)

    def _read(self, current: Round, number: int, carried: bool) -> None:
        """Read what the round needs, apart from what came with the push before it."""
        values, executor = self.values, self._executor
        for variable, slot in current.local_reads:
            values[slot] = executor.local.read(variable)
        reads = () if carried else current.reads
        if not reads and not current.row_reads:
            return
        lookups = self._lookups(current) if current.row_reads else ()
        fresh = None
        # A run that changes nothing is asked for the present values: a hook's, or the program's evaluation.
        if number == 0 and self._plan.pushes and (executor.reuse_values or lookups):
            fresh = executor.fresh_values(reads, lookups)
        if fresh is None:
            asked = [Read(variable.op_name) for variable in reads]
            asked += [Read(variable.op_name, rows) for variable, rows in lookups]
            pulled = executor.pull(asked, (self._plan, number, carried))
            fresh = pulled[: len(reads)], pulled[len(reads) :]
        whole, rows = fresh
        # Whole Variables lie side by side.
        values[current.first_slot : current.first_slot + len(reads)] = whole
        if rows:
            for row, value in zip(current.row_reads, rows, strict=True):
                values[row.out] = value.reshape(*np.shape(values[row.ids]), *value.shape[1:])

    def _lookups(self, current: Round) -> list[Lookup]:
        return [
            (row.variable, np.asarray(self.values[row.ids]).astype(np.int64, copy=False).reshape(-1))
            for row in current.row_reads
        ]

    def _push(self, current: Round, number: int) -> bool:
        """Send the round's push; say whether it brought what the next round reads."""
        plan, executor = self._plan, self._executor
        if current.mutations[0].guards and not self._is_taken(current):
            return False
        form = plan.forms.get(number) or self._form_of(current, number)
        # With the last push comes what the next run begins with.
        lookups: list[Lookup] = []
        again = number + 1 == len(plan.rounds)
        if again and plan.rounds[0].row_reads:
            lookups = executor.lookups_ahead(plan)
            again = bool(lookups)
        elif not executor.reuse_values:
            again = False
        reads, named = form.reading[again]
        reply: list[Any] | None = []
        if not form.is_empty:
            push = form.push(self.values)
            push.reads = [*named, *(Read(variable.op_name, ids) for variable, ids in lookups)] if lookups else named
            # A plan's push, with and without lookups, is always the same but for its numbers: it is described once.
            push.layout = (form, len(lookups)) if lookups and form.layout else form.layout
            shapes = form.whole_values(self.values) if form.declaring else {}
            sent = push, shapes, executor.begin_write(), reads if again else (), lookups
            if executor.pushes_in_flight is not None and plan.overlaps:
                self._keep_from_caller(push)
                executor.pushes_in_flight.submit(partial(executor.push, *sent))
            else:
                reply = executor.push(*sent)
        if form.local or form.local_uses:
            self._change_local(form)
        if not form.wanted and not form.ahead:
            return False
        return self._take_answer(form, reads, reply, number)

    def _take_answer(self, form: PushForm, reads: Sequence[Variable], reply: Sequence[Any] | None, number: int) -> bool:
        """Take the values that the push's mutations have, and what it brought for the next round, if it did."""
        plan, executor = self._plan, self._executor
        values: Mapping[Variable, Any] = dict(zip(reads, reply or (), strict=False))
        if reply is None:
            values = dict(zip(form.shared, executor.pull([Read(v.op_name) for v in form.shared]), strict=True))
        for mutation, variable in form.wanted:
            local = variable.is_local
            self.values[plan.slots[mutation]] = executor.local.read(variable) if local else values[variable]
        if not form.ahead or reply is None or not values.keys() >= set(form.ahead):
            return False
        following = plan.rounds[number + 1]
        self.values[following.first_slot : following.first_slot + len(form.ahead)] = [
            values[variable] for variable in form.ahead
        ]
        return True

    def _is_taken(self, current: Round) -> bool:
        """Say whether the round's mutations happen; if not, something stands for their values, which nobody uses."""
        plan = self._plan
        first = current.mutations[0]
        if all(bool(self.values[plan.slot_for(guard, first)]) is holds for guard, holds in first.guards):
            return True
        for mutation in current.mutations:
            if mutation in plan.wanted:
                self.values[plan.slots[mutation]] = np.zeros((), mutation.dtype.as_numpy_dtype)
        return False

    def _form_of(self, current: Round, number: int) -> PushForm:
        """Find the form of the round's push, when it is first sent."""
        plan, executor = self._plan, self._executor
        first, following = plan.rounds[0], plan.rounds[number + 1 : number + 2]
        form = plan.forms[number] = PushForm(
            current.mutations,
            plan.slot_for,
            plan.worker_hypers,
            plan.wanted,
            # A row read needs ids that are not there yet; what else the round reads waits for it, for one cut.
            ahead=[variable for after in following if not after.row_reads for variable in after.reads],
            again=first.reads,
            steps=[(step, plan.read_slots[0][step]) for step in plan.steps if step in plan.read_slots[0]],
        )
        plan.steady = steady_run_of(executor, plan, form)
        return form

    def _keep_from_caller(self, push: Push) -> None:
        """Copy what the caller fed and may write into, since the push outlives this run."""
        for at, op in enumerate(push.ops):
            if op.value is not None and self._is_fed(op.value):
                push.set_value(at, op.value.copy())
            if op.indices is not None and self._is_fed(op.indices):
                op.indices = op.indices.copy()

    def _is_fed(self, array: Any) -> bool:
        feeds = self._feeds.values()
        return any(np.may_share_memory(array, feed) for feed in feeds if isinstance(feed, np.ndarray))

    def _change_local(self, form: PushForm) -> None:
        local, values = self._executor.local, self.values
        hypers = {use.spec: use.hypers(values, lambda v: float(local.read(v))) for use in form.local_uses}
        for part, _, _, operand_slot, indices_slot in form.local:
            if operand_slot is None:
                operand: Any = part.fill if part.source is None else local.read(part.source)
                if part.declare:
                    operand = np.full([int(size) for size in part.variable.shape], operand)
            else:
                operand = operand_of(part, values[operand_slot])
            rows = None if indices_slot is None else np.asarray(values[indices_slot])
            if part.optimizer is None:
                local.change(part.kind, part.variable, operand, rows)
            else:
                local.apply(part.optimizer, part.variable, operand, rows, hypers[part.optimizer])
        for use in form.local_uses:
            if use.finish and use.spec.scalars:
                for scalar, moved in zip(use.spec.scalars, moved_scalars(use.spec.kind, hypers[use.spec]), strict=True):
                    local.change(OpKind.ASSIGN, scalar, moved)


class SteadyRun:
    """A run of a plan after the first, as nearly all of a training loop are: what the plan says of it is seen once.

    It reads what the push before it has not brought, evaluates, and pushes in a form that is known. Any number of
    threads may run it at once; each run has values of its own.

    Args:
        plan: One that `steady_run_of` takes.
        form: Of its push.
    """

    def __init__(self, plan: Plan, form: PushForm) -> None:
        (only,) = plan.rounds
        self._form = form
        self._reads = only.reads
        self._asked = [Read(variable.op_name) for variable in only.reads]
        self._read_slots = slice(only.first_slot, only.first_slot + len(only.reads))
        self._early = compiled(only.early) if only.early else None
        self._late = compiled(only.late) if only.late else None

    @np.errstate(all="ignore")
    def results(self, executor: Executor, plan: Plan, feeds: Mapping[Node, Any]) -> list[Any]:
        """Run it, and give the value of each fetch; see Executor.run.

        Args:
            executor: Who runs it.
            plan: Its plan.
            feeds: Values to take for nodes instead of their own.
        """
        values = plan.constants.copy()
        for node, value in feeds.items():
            slot = plan.slots.get(node)
            if slot is not None:
                values[slot] = value
        try:
            if self._early is not None:
                self._early(values, plan, executor)
            reuses = executor.reuse_values
            if self._reads:
                fresh = executor.fresh_values(self._reads) if reuses else None
                values[self._read_slots] = executor.pull(self._asked, self) if fresh is None else fresh[0]
            if self._late is not None:
                self._late(values, plan, executor)
            push = self._form.push(values)
            reads, push.reads = self._form.reading[reuses]
            push.layout = self._form
            executor.push_again(push, reads)
        except JobDoneError as done:
            done.values = fetched(plan, values, feeds)
            raise
        return fetched(plan, values, feeds)


def steady_run_of(executor: Executor, plan: Plan, form: PushForm) -> SteadyRun | None:
    """Give what makes the further runs of a plan whose first push has just been given its form; None where runs differ.

    Args:
        executor: Who runs the plan.
        plan: The plan.
        form: The form of its push.
    """
    if executor.pushes_in_flight is not None:
        return None
    if len(plan.rounds) > 1 or not form.only_changes:
        return None
    (only,) = plan.rounds
    if only.row_reads or only.local_reads or only.mutations[0].guards:
        return None
    return SteadyRun(plan, form)
