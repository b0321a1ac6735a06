"""One run of a plan: its values, what it reads, and what it pushes.

Ordinary nodes are evaluated by their functions, and those that the executor knows by it. What all pushes of a plan's
round have in common, a PushForm, is found once; a run only adds its numbers.

Layer: tf1. Threads: a PlanRun belongs to one; a PushForm is not changed by use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from globalstep.errors import GlobalStepError, InternalError, InvalidArgumentError, JobDoneError, NotFoundError
from globalstep.tf1.execution.fetches import fetched
from globalstep.tf1.execution.local_optimizers import LocalUse
from globalstep.tf1.execution.plan import Plan, Round, Step
from globalstep.tf1.execution.plan_joining import specs_of
from globalstep.tf1.execution.prefetching import Lookup
from globalstep.tf1.execution.pushing import as_fill, is_declaring, operand_of
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.mutations import Move, Mutation, MutationPart, OptimizerSpec
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, Push, Read
from globalstep.worker.step.own_optimizer import moved_scalars

if TYPE_CHECKING:
    from globalstep.tf1.execution.executor import Executor


_dtype_of = attrgetter("dtype")
#: Gives the slot of a node's value as a mutation is to see it.
SlotFor = Callable[[Node, Node], int]


class Change(NamedTuple):
    """One part of a mutation, with the slots of its operand and indices, where it has them."""

    part: MutationPart
    #: Of its Op: kind, Variable, source, optimizer, unique, after_increment.
    same: tuple[OpKind, str, str, str, bool, bool]
    dtype: np.dtype[Any]
    operand: int | None
    indices: int | None

    def alike(self) -> Op:
        """Give what the Op of every run has."""
        kind, name, source, optimizer, unique, after = self.same
        return Op(kind, name, None, None, source, None, optimizer, unique, after)

    def made(self, values: Sequence[Any]) -> Op:
        """Give the Op of a run whose slots hold `values`."""
        part, (kind, name, source, optimizer, unique, after), dtype, operand, ids = self
        if operand is None:
            return Op(kind, name, None, part.fill, source, None, optimizer, unique, after)
        value = values[operand]
        if type(value) is not np.ndarray or value.dtype is not dtype:
            value = operand_of(part, value)
        if ids is not None:
            indices = np.asarray(values[ids], dtype=np.int64)
            if indices.ndim != 1:
                value = value.reshape(indices.size, *value.shape[indices.ndim :])
                indices = indices.reshape(-1)
            return Op(kind, name, value, None, source, indices, optimizer, unique, after)
        if part.declare and (fill := as_fill(value)) is not None:
            return Op(kind, name, None, fill, source, None, optimizer, unique, after)
        return Op(kind, name, value, None, source, None, optimizer, unique, after)


class PushForm:
    """See the module's text.

    Args:
        mutations: Of the round, in order.
        slot_for: As above.
        worker_hypers: For each optimizer, the hyper-parameters that this worker evaluates.
        wanted: Mutations whose value is wanted.
        ahead: What the next round reads whole.
        again: What the next run of the plan reads whole.
        steps: Steps that the run has read, each with its slot.

    Attributes:
        local: Changes of Variables that live in the session.
        local_uses: The optimizers that are applied to these.
        wanted: Those of the mutations whose value is wanted, each with its Variable.
        shared: Variables of these that live on the PS.
        ahead: As given.
        again: As given.
        reading: What the push reads: without what the next run of the plan does, and with it.
        declaring: Changes that give a Variable its whole value.
        layout: Of its pushes, which differ in numbers only; None where they may move steps by other numbers, too.
        is_empty: Whether there is nothing to push.
        only_changes: Whether the run has nothing to do with the push but to send it: it changes Variables on the PS
            that have their values, and the run wants none of these.
    """

    def __init__(
        self,
        mutations: Sequence[Mutation],
        slot_for: SlotFor,
        worker_hypers: Mapping[OptimizerSpec, Mapping[str, Any]],
        wanted: frozenset[Mutation],
        ahead: Sequence[Variable],
        again: Sequence[Variable],
        steps: Sequence[tuple[Variable, int]],
    ) -> None:
        changes = [_change(part, mutation, slot_for) for mutation in mutations for part in mutation.changes]
        self._changes = tuple(change for change in changes if not change.part.variable.is_local)
        self.local = tuple(change for change in changes if change.part.variable.is_local)
        self.declaring = tuple(change for change in self._changes if is_declaring(change.part))
        moves = [(move, mutation) for mutation in mutations for move in mutation.moves]
        self._increments = _increments(mutations, moves)
        # Of each of them that a node's value multiplies: its place, the step, and the value's slot.
        self._times = [
            (at, move.step, slot_for(move.times, mutation))
            for at, (move, mutation) in enumerate(moves)
            if move.times is not None
        ]
        self.layout = None if self._times else self
        uses = _uses(mutations, slot_for, worker_hypers)
        self._uses = [(use, hypers) for spec, use, hypers in uses if not spec.is_local]
        self.local_uses = tuple(
            LocalUse(spec, use.finish, partial(_numbers, hypers)) for spec, use, hypers in uses if spec.is_local
        )
        constant = [use for use, hypers in self._uses if not hypers]
        # None where some hyper-parameters are to be evaluated.
        self._known_uses = constant if len(constant) == len(self._uses) else None
        self.wanted = tuple((m, m.value_of) for m in mutations if m in wanted and m.value_of is not None)
        self.shared = tuple(variable for _, variable in self.wanted if not variable.is_local)
        self.ahead, self.again = tuple(ahead), tuple(again)
        self.reading = _reading((*self.shared, *ahead)), _reading((*self.shared, *ahead, *again))
        self._steps = [step.op_name for step, _ in steps]
        self._step_slots = [slot for _, slot in steps]
        # What every push of the round is but for its values; None where more than values differs.
        self._alike: Push | None = None
        fixed = all(c.operand is not None and c.indices is None and not c.part.declare for c in self._changes)
        if fixed and not self._times:
            self._alike = Push([change.alike() for change in self._changes], self._increments)
        # Of each change: its part, where its operand is, and what that is where nothing needs to be converted.
        self._parts = [change.part for change in self._changes]
        self._slots = [change.operand for change in self._changes if change.operand is not None]
        self._types = [np.ndarray] * len(self._changes)
        self._dtypes = [change.dtype for change in self._changes]
        self.is_empty = not (self._changes or self._increments or self._uses)
        more = self.declaring, self.local, self.local_uses, self.wanted, self.ahead, self._times
        self.only_changes = not self.is_empty and not any(more)

    def push(self, values: Sequence[Any]) -> Push:
        """Make the push of a run, without its reads.

        Args:
            values: The run's slots.

        Raises:
            InvalidArgumentError: If an operand does not fit its Variable, or a hyper-parameter or what is added to a
                step is no number.
        """
        uses = self._known_uses
        if uses is None:
            uses = [use if not hypers else _evaluated(use, hypers, values) for use, hypers in self._uses]
        seen_steps = dict(zip(self._steps, map(int, map(values.__getitem__, self._step_slots)), strict=True))
        if self._alike is not None:
            operands: list[Any] = list(map(values.__getitem__, self._slots))
            if list(map(type, operands)) != self._types or list(map(_dtype_of, operands)) != self._dtypes:
                operands = list(map(operand_of, self._parts, operands))
            return self._alike.again(operands, uses, None, seen_steps)
        increments = list(self._increments)
        for at, step, slot in self._times:
            increments[at] = replace(increments[at], by=increments[at].by * _amount(step, values[slot]))
        return Push([change.made(values) for change in self._changes], increments, uses, seen_steps=seen_steps)

    def whole_values(self, values: Sequence[Any]) -> dict[Variable, tuple[int, ...]]:
        """Give the Variables that a run gives their whole value, with the value's shape."""
        shapes: dict[Variable, tuple[int, ...]] = {}
        for change in self.declaring:
            variable = change.part.variable
            if variable.shape.is_fully_defined():
                shapes[variable] = tuple(int(size) for size in variable.shape)
            elif change.operand is not None:
                shapes[variable] = np.shape(values[change.operand])
        return shapes


def _amount(step: Variable, value: Any) -> int:
    if np.shape(value) != ():
        raise InvalidArgumentError(
            f"What is added to step {step.op_name!r} must be one number; this run gave an array of shape "
            f"{list(np.shape(value))}. Use gs.reduce_sum, or gs.squeeze."
        )
    return int(value)


def _increments(mutations: Sequence[Mutation], moves: Sequence[tuple[Move, Mutation]]) -> list[Increment]:
    """The steps that a push moves on, by itself or together with other workers' contributions."""
    steps = [Increment(move.step.op_name, move.by, *mutation.attrs.get("contribution", ())) for move, mutation in moves]
    if not steps and any("contribution" in mutation.attrs for mutation in mutations):
        names = ", ".join(mutation.name for mutation in mutations)
        raise InvalidArgumentError(
            f"{names} belongs to a step that is made of several contributions, and cannot be part of the push that "
            "makes it: what it computes with changes within that push. Average Variables, with a decay that depends on "
            "nothing but the step."
        )
    return steps


def _change(part: MutationPart, mutation: Mutation, slot_for: SlotFor) -> Change:
    return Change(
        part,
        (
            part.kind,
            part.variable.op_name,
            "" if part.source is None else part.source.op_name,
            "" if part.optimizer is None else part.optimizer.name,
            part.unique,
            mutation.after_increment,
        ),
        np.dtype(part.variable.dtype.as_numpy_dtype),
        None if part.operand is None else slot_for(part.operand, mutation),
        None if part.indices is None else slot_for(part.indices, mutation),
    )


def _reading(variables: Sequence[Variable]) -> tuple[tuple[Variable, ...], list[Read]]:
    each = tuple(dict.fromkeys(variables))
    return each, [Read(variable.op_name) for variable in each]


class _Hyper(NamedTuple):
    """A hyper-parameter that the worker evaluates: from a slot, or by a function."""

    spec: OptimizerSpec
    name: str
    slot: int | None
    given: Any


def _uses(
    mutations: Sequence[Mutation], slot_for: SlotFor, worker_hypers: Mapping[OptimizerSpec, Mapping[str, Any]]
) -> list[tuple[OptimizerSpec, OptimizerUse, list[_Hyper]]]:
    """The optimizers that a push uses, each with the hyper-parameters that the worker evaluates."""
    uses: dict[OptimizerSpec, tuple[OptimizerUse, list[_Hyper]]] = {}
    for mutation in mutations:
        for spec in specs_of(mutation):
            use, hypers = uses.get(spec) or (None, [])
            if use is None:
                for name, hyper in worker_hypers.get(spec, {}).items():
                    of_node = isinstance(hyper, Node)
                    hypers.append(_Hyper(spec, name, slot_for(hyper, mutation) if of_node else None, hyper))
            finish = spec in mutation.uses or (use is not None and use.finish)
            uses[spec] = OptimizerUse(spec.name, mutation.after_increment, finish), hypers
    return [(spec, use, hypers) for spec, (use, hypers) in uses.items()]


def _evaluated(use: OptimizerUse, hypers: Sequence[_Hyper], values: Sequence[Any]) -> OptimizerUse:
    return OptimizerUse(use.optimizer, use.after_increment, use.finish, _numbers(hypers, values))


def _numbers(hypers: Sequence[_Hyper], values: Sequence[Any]) -> dict[str, float]:
    return {hyper.name: _number(hyper, values) for hyper in hypers}


def _number(hyper: _Hyper, values: Sequence[Any]) -> float:
    value = hyper.given() if hyper.slot is None else values[hyper.slot]
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"The {hyper.name} of optimizer {hyper.spec.name!r} must be one number; this run gave {value!r}."
        ) from None


# ---- Evaluating -----------------------------------------------------------------------------------


def evaluate(steps: Sequence[Step], values: list[Any], plan: Plan, executor: Executor) -> None:
    """Evaluate steps in order.

    Args:
        steps: The steps.
        values: Slots; their outputs are put there.
        plan: The plan that they belong to.
        executor: For what only the cluster knows.

    Raises:
        InvalidArgumentError: If a function cannot take its inputs; names the node and their shapes.
    """
    node, inputs = steps[0].node, steps[0].inputs
    try:
        for fn, one, getter, out, node, inputs, last_uses in steps:
            if one is not None:
                values[out] = fn(values[one])
            elif fn is not None:
                values[out] = fn(*getter(values))
            else:
                values[out] = _special(node, inputs, values, plan, executor)
            for slot in last_uses:
                values[slot] = None
    except Exception as error:
        _explain(error, node, inputs, values)
        raise


def compiled(steps: Sequence[Step]) -> Callable[[list[Any], Plan, Executor], None]:
    """Give `evaluate` of these steps as a function that is written out, a line for each step.

    It takes less than half of what the loop does besides the steps' own functions, once it is made. Its text has
    nothing but numbers: of functions and of slots.

    Args:
        steps: See evaluate.

    Returns:
        What takes the slots, the plan and the executor, as evaluate does.
    """
    # Of this package, for who looks for the place in the program.
    names: dict[str, Any] = {"__name__": __name__}
    lines = ["def evaluate_all(v, plan, executor):"]
    for at, (fn, _, _, out, node, inputs, last_uses) in enumerate(steps):
        names[f"f{at}"] = partial(_special, node, inputs) if fn is None else fn
        args = "v, plan, executor" if fn is None else ", ".join(f"v[{slot}]" for slot in inputs)
        place = f"{out.start}:{out.stop}" if isinstance(out, slice) else out
        line = f" v[{place}] = f{at}({args})"
        lines.append("; ".join([line, *(f"v[{slot}] = None" for slot in last_uses)]))
    exec(compile("\n".join(lines), "<steps of a plan>", "exec"), names)
    evaluate_all: Any = names.pop("evaluate_all")

    def evaluate_or_explain(values: list[Any], plan: Plan, executor: Executor) -> None:
        try:
            evaluate_all(values, plan, executor)
        except Exception as error:
            failed = steps[_line_in(evaluate_all, error) - 2]
            _explain(error, failed.node, failed.inputs, values)
            raise

    return evaluate_or_explain


def _line_in(function: Any, error: Exception) -> int:
    """Give the line of a function in which it was left by an error."""
    return next(line for frame, line in walk_tb(error.__traceback__) if frame.f_code is function.__code__)


def _explain(error: Exception, node: Node, inputs: Sequence[int], values: Sequence[Any]) -> None:
    """Have the error of a step say where it was, by a note.

    Raises:
        InvalidArgumentError: In its place, where a function cannot take its inputs.
    """
    if getattr(error, "is_explained", False):
        return
    if isinstance(error, GlobalStepError):
        if isinstance(error, (InvalidArgumentError, NotFoundError)):
            error.add_note(_where(node))
    elif node.stateful or getattr(error, "of_program", False) or not isinstance(error, (ValueError, IndexError)):
        # A user's own function, or an input: its exception is part of the program.
        error.add_note(_where(node))
    else:
        shapes = ", ".join(str(np.shape(values[i])) for i in inputs)
        raise InvalidArgumentError(
            f"{error} [node {node.op_name!r} ({node.op_type}), inputs of shapes {shapes}{_defined(node)}]"
        ) from error


def _where(node: Node) -> str:
    return f"In node {node.op_name!r} ({node.op_type}{_defined(node)})."


def _defined(node: Node) -> str:
    return f", defined at {node.defined_at}" if node.defined_at else ""


def _special(node: Node, inputs: Sequence[int], values: list[Any], plan: Plan, executor: Executor) -> Any:
    if node.op_type == "GatherV2":
        ids = np.asarray(values[inputs[0]])
        (rows,) = executor.pull([Read(node.inputs[0].op_name, ids.astype(np.int64).reshape(-1))])
        return rows.reshape(*ids.shape, *rows.shape[1:])
    if "queue" in node.attrs:
        return node.attrs["queue"].held(executor.cluster.queues)
    if node.op_type == "IsVariableInitialized":
        return np.array(executor.are_initialized(node.attrs["variables"]), dtype=np.bool_)
    if node.op_type == "InitializedValue":
        variable = node.attrs["variable"]
        if not executor.are_initialized([variable])[0]:
            return values[inputs[0]]
        if variable.is_local:
            return executor.local.read(variable)
        return executor.pull([Read(variable.op_name)])[0]
    if node.is_operation:
        return None
    raise InternalError(f"Node {node.op_name!r} ({node.op_type}) has no function to evaluate it by.")


# ---- Runs -----------------------------------------------------------------------------------------


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
        """Run it, and give the value of each fetch; see Executor.run."""
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
