"""Planner: makes the plans of `globalstep.tf1.execution.plan`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from operator import itemgetter
from typing import Any

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.execution import jax_backend
from globalstep.tf1.execution.plan import EMPTY, Plan, Round, RowRead, Step, slots_of, step_of, taking_nothing
from globalstep.tf1.execution.plan_joining import may_join, specs_of
from globalstep.tf1.execution.plan_order import evaluation_order
from globalstep.tf1.graph.graph import Node, closure_of
from globalstep.tf1.graph.kernels import saving_function_of
from globalstep.tf1.graph.mutations import Mutation, OptimizerSpec
from globalstep.tf1.variables.variables import Variable


def make_plan(fetches: Sequence[Node], fed: Set[Node], position: Mapping[Node, int], compiles: bool = False) -> Plan:
    """Plan a run.

    Args:
        fetches: Nodes whose value (or effect) is wanted.
        fed: Nodes whose value is fed.
        position: Place of every node of the graph in its order of creation.
        compiles: Whether jax compiles what it can; see `globalstep.tf1.execution.jax_backend`.

    Returns:
        The plan.

    Raises:
        InvalidArgumentError: If a placeholder that is needed is not fed.
    """
    return _Planner(fetches, fed, position, compiles).plan()


class _Planner:
    def __init__(self, fetches: Sequence[Node], fed: Set[Node], position: Mapping[Node, int], compiles: bool) -> None:
        self.fetches = fetches
        self.fed = fed
        self.compiles = compiles
        self.hypers: dict[OptimizerSpec, dict[str, Any]] = {}
        # Nodes are made from nodes that exist, so the order of creation is an order of evaluation.
        reached = closure_of(fetches, lambda node: () if node in fed else (*self._sources(node), *node.control_inputs))
        self.nodes = sorted(reached, key=position.__getitem__)
        #: Round in which a node's value can be computed, and in which it reads Variables and has effects.
        self.ready: dict[Node, int] = {}
        self.order: dict[Node, int] = {}
        #: What a node must follow: everything before this round, and these mutations.
        self._floor: dict[Node, int] = {}
        self._follows: dict[Node, frozenset[Mutation]] = {}
        self.pushes: list[list[Mutation]] = []
        self.together: dict[Node, Node] = {}
        for node in self.nodes:
            if node.op_type == "Placeholder" and node not in self.fed:
                unfed = InvalidArgumentError(_unfed(node))
                if node.defined_at:
                    unfed.add_note(f"The placeholder was defined at {node.defined_at}.")
                raise unfed
        consumed = {source for node in self.nodes for source in self._sources(node)}
        self.wanted = frozenset(
            node
            for node in (*consumed, *fetches)
            if isinstance(node, Mutation) and node.value_of is not None and node not in fed
        )

    def _sources(self, node: Node) -> tuple[Node, ...]:
        """The nodes whose values `node` computes from."""
        if node in self.fed or isinstance(node, Variable):
            return ()
        if isinstance(node, Mutation):
            hypers = [
                value
                for spec in specs_of(node)
                for value in self._worker_hypers(spec).values()
                if isinstance(value, Node)
            ]
            return (*node.inputs, *hypers, *(guard for guard, _ in node.guards))
        return node.inputs

    def _worker_hypers(self, spec: OptimizerSpec) -> dict[str, Any]:
        if spec not in self.hypers:
            self.hypers[spec] = spec.worker_hypers()
        return self.hypers[spec]

    def _is_read(self, source: Node) -> bool:
        return isinstance(source, Variable) and source not in self.fed

    def plan(self) -> Plan:
        for node in self.nodes:
            self._place(node)
        self.together = self._evaluated_together()
        count = 1 + max([0, *self.ready.values(), *self.order.values()])
        self.pushes.extend([] for _ in range(count - len(self.pushes)))
        whole, rows = self._reads(count)
        orders = [self._order(number, whole[number], rows[number]) for number in range(count)]
        slots: dict[Node, int] = {}
        places = self._places(orders, rows)
        for found in (item for items in places for item in items if not isinstance(item, Node)):
            slots.update(zip(found.outputs, range(len(slots), len(slots) + len(found.outputs)), strict=True))
        for node in self.nodes:
            if not self._is_read(node) and node not in slots:
                slots[node] = len(slots)
                if node in self.together:
                    slots[self.together[node]] = len(slots)
        size = len(slots)
        read_slots: list[dict[Variable, int]] = []
        for variables in whole:
            # What is read from the PS lies side by side, so that a run puts it there in one go.
            ordered = sorted(variables, key=lambda variable: variable.is_local)
            read_slots.append({variable: size + i for i, variable in enumerate(ordered)})
            size += len(variables)
        constants: list[Any] = [EMPTY] * size
        for node in self.nodes:
            if "value" in node.attrs and node.op_type == "Const" and node not in self.fed:
                constants[slots[node]] = node.attrs["value"]
        plan = Plan(
            rounds=[],
            slots=slots,
            constants=constants,
            read_slots=read_slots,
            round_of=self.order,
            fetches=tuple(
                read_slots[0][node]  # type: ignore[index]
                if self._is_read(node)
                else None
                if node.is_operation and node not in self.fed
                else slots[node]
                for node in self.fetches
            ),
            wanted=self.wanted,
            pushes=any(self.pushes),
            steps=self._steps(),
            worker_hypers={spec: hypers for spec, hypers in self.hypers.items() if hypers},
        )
        for number in range(count):
            early, late = places[2 * number : 2 * number + 2]
            plan.rounds.append(self._round(plan, number, rows[number], early, orders[number][1], late))
        self._free(plan)
        # What only follows the last push, such as a group, leaves a round with nothing to do.
        while len(plan.rounds) > 1 and plan.rounds[-1] == Round():
            plan.rounds.pop()
        return plan

    def _evaluated_together(self) -> dict[Node, Node]:
        """Find the nodes whose function saves something for their gradient, each with the node of that."""
        among = set(self.nodes) - self.fed
        return {
            of: node
            for node in self.nodes
            if node.op_type == "Saved"
            and node not in self.fed
            and (of := node.attrs["of"]) in among
            and self.ready[of] <= self.ready[node]
        }

    def _free(self, plan: Plan) -> None:
        """Say of each step which slots of steps before it nothing uses after it."""
        used = {slot for slot in plan.fetches if slot is not None}
        for node in self.nodes:
            if isinstance(node, Mutation):
                used.update(plan.slot_for(source, node) for source in self._sources(node))
        groups = [(current, name) for current in plan.rounds for name in ("early", "late")]
        steps = [step for current, name in groups for step in getattr(current, name)]
        made = {slot for step in steps for slot in slots_of(step.out)}
        for current, name in reversed(groups):
            freed = []
            for step in reversed(getattr(current, name)):
                last = {*step.inputs, *slots_of(step.out)} - used
                freed.append(step._replace(last_uses=tuple(sorted(last & made))))
                used |= last
            setattr(current, name, tuple(reversed(freed)))
            if name == "late":
                used.update(row.ids for row in current.row_reads)

    def _place(self, node: Node) -> None:
        """Find the rounds of a node whose sources and control inputs have theirs."""
        if node in self.fed or isinstance(node, Variable):
            self._set(node, 0, frozenset(), 0, 0)
            return
        sources = self._sources(node)
        floor = max([0, *(self._floor[n] for n in (*sources, *node.control_inputs))])
        follows: frozenset[Mutation] = frozenset().union(
            *(self._follows[n] for n in (*sources, *node.control_inputs) if self._follows[n])
        )
        after = {m for m in sources if isinstance(m, Mutation) and m not in self.fed}
        if after:
            floor = max(floor, *(self.order[m] + 1 for m in after))
        order = max([floor, *(self.order[m] + 1 for m in follows)])
        if isinstance(node, Mutation):
            earliest = max([floor, *(self.ready[n] for n in sources), *(self.order[m] for m in follows)])
            number = self._push_for(node, earliest)
            self._set(node, 0, frozenset([node]), number + 1, number)
        elif (forward := node.attrs.get("reads_as")) in self.order and forward not in self.fed:
            # It sees the Variables that the node does that it is the gradient of.
            ready = max([self.order[forward], *(self.ready[source] for source in sources)])
            self._set(node, floor, follows, ready, self.order[forward])
        elif after or node.stateful or any(self._is_read(source) for source in sources):
            self._set(node, order, frozenset(), order, order)
        else:
            ready = max([0, *(self.ready[source] for source in sources)])
            self._set(node, floor, follows, ready, order)

    def _set(self, node: Node, floor: int, follows: frozenset[Mutation], ready: int, order: int) -> None:
        self._floor[node], self._follows[node] = floor, follows
        self.ready[node], self.order[node] = ready, order

    def _push_for(self, mutation: Mutation, earliest: int) -> int:
        """Give the first round, from `earliest` on, whose push the mutation can be part of."""
        number = earliest
        while number < len(self.pushes) and not may_join(
            mutation, self.pushes[number], self._follows, self.wanted, self.fed
        ):
            number += 1
        self.pushes.extend([] for _ in range(number + 1 - len(self.pushes)))
        self.pushes[number].append(mutation)
        return number

    def _reads(self, count: int) -> tuple[list[dict[Variable, None]], list[list[Node]]]:
        """Find the Variables that each round reads whole, and the gathers that read rows."""
        whole: list[dict[Variable, None]] = [{} for _ in range(count)]
        gathers: list[Node] = []
        for node in self.nodes:
            if node in self.fed or isinstance(node, Variable):
                continue
            read = [source for source in self._sources(node) if self._is_read(source)]
            if read and _reads_rows(node) and read == [node.inputs[0]]:
                gathers.append(node)
                continue
            whole[self.order[node]].update(dict.fromkeys(read))  # type: ignore[arg-type]
        whole[0].update({node: None for node in self.fetches if self._is_read(node)})  # type: ignore[misc]
        rows: list[list[Node]] = [[] for _ in range(count)]
        for node in gathers:
            variable, number = node.inputs[0], self.order[node]
            if isinstance(variable, Variable) and (variable.is_local or variable in whole[number]):
                whole[number][variable] = None
            else:
                rows[number].append(node)
        if whole[0] or rows[0]:
            whole[0].update(dict.fromkeys(self._steps()))
        return whole, rows

    def _steps(self) -> tuple[Variable, ...]:
        steps = [move.step for push in self.pushes for m in push for move in m.moves]
        return tuple(step for step in dict.fromkeys(steps) if step not in self.fed)

    def _order(
        self, number: int, whole: Mapping[Variable, None], rows: Sequence[Node]
    ) -> tuple[list[Node], list[Node], list[Node]]:
        nodes = [
            node
            for node in self.nodes
            if self.ready[node] == number
            and node not in self.fed
            and node.op_type not in ("Const", "VariableV2")
            and not isinstance(node, Mutation)
        ]
        return evaluation_order(nodes, set(rows), whole)

    def _places(self, orders: Sequence[tuple[Any, Any, Any]], rows: Sequence[Sequence[Node]]) -> Sequence[Any]:
        """Give what each round evaluates early and late: nodes, and the sets of nodes that jax compiles."""
        places = [place for early, _, late in orders for place in (early, late)]
        if not self.compiles:
            return places
        search = jax_backend.Search(
            self.nodes, places, set().union(*rows), self._sources, set(self.fetches), self.fed
        )  # fmt: skip
        found = search.places()
        outside = {item for items in found for item in items}
        self.together = {of: made for of, made in self.together.items() if outside.issuperset((of, made))}
        return found

    def _round(
        self, plan: Plan, number: int, rows: Sequence[Node], early: Any, at_once: Sequence[Node], late: Any
    ) -> Round:
        by_cut, by_rows, done = set(at_once), set(rows), set(self.together.values())

        def steps(ordered: Sequence[Any]) -> tuple[Step, ...]:
            return tuple(
                self._with_saved(_step(plan, item, item in by_rows))
                if isinstance(item, Node)
                else item.step(plan, self.fed)
                for item in ordered
                if not isinstance(item, Node) or (item.op_type != "NoOp" and item not in done)
            )

        slots = plan.read_slots[number]
        reads = tuple(variable for variable in slots if not variable.is_local)
        return Round(
            early=steps(early),
            reads=reads,
            first_slot=slots[reads[0]] if reads else 0,
            local_reads=tuple((v, slot) for v, slot in slots.items() if v.is_local),
            row_reads=tuple(_row_read(plan, node) for node in rows if node in by_cut),
            late=_joined(steps(late)),
            mutations=tuple(self.pushes[number]),
        )

    def _with_saved(self, step: Step) -> Step:
        """Let a step give what its function saves, too, where the run needs that."""
        made = self.together.get(step.node)
        return (
            step if made is None else step._replace(fn=saving_function_of(step.node), out=slice(step.out, step.out + 2))
        )


def _step(plan: Plan, node: Node, by_rows: bool) -> Step:
    if by_rows:
        return Step(None, None, taking_nothing, plan.slots[node], node, (plan.slots[node.inputs[1]],))
    return step_of(plan, node)


def _joined(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Make one step of those that take neighbouring slots out of one tuple: the gradients of many Variables."""
    runs: list[list[Step]] = []
    for step in steps:
        before = runs[-1][-1] if runs else step
        both_items = step.node.op_type == before.node.op_type == "TupleItem"
        if both_items and step.inputs == before.inputs and step.out == before.out + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return tuple(run[0] if len(run) == 1 else _taking_all(run) for run in runs)


def _taking_all(items: Sequence[Step]) -> Step:
    take: Any = itemgetter(*(step.node.attrs["index"] for step in items))
    return items[0]._replace(fn=take, out=slice(items[0].out, items[-1].out + 1))


def _row_read(plan: Plan, node: Node) -> RowRead:
    variable, ids = node.inputs
    assert isinstance(variable, Variable)
    return RowRead(variable, plan.slots[ids], plan.slots[node])


def _unfed(node: Node) -> str:
    kind = {"float32": "float", "float64": "double"}.get(node.dtype.name, node.dtype.name)
    text = f"You must feed a value for placeholder tensor '{node.op_name}' with dtype {kind}"
    shape = node.shape
    if shape.ndims is None:
        return text
    return f"{text} and shape [{','.join('?' if d is None else str(d) for d in shape.as_list())}]"


def _reads_rows(node: Node) -> bool:
    return node.op_type == "GatherV2" and node.attrs.get("axis", 0) == 0 and len(node.inputs) == 2
