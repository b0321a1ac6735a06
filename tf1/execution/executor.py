"""The executor: runs plans against a cluster.

A run reads the Variables it needs in one cut, evaluates nodes, and sends what changes Variables as one
push a round. Plans are made once for each set of fetched and fed nodes.

Layer: tf1. Threads: runs of several threads may overlap; each has values of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.errors import AbortedError, FailedPreconditionError, JobDoneError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.execution.local_variables import LocalVariables
from globalstep.tf1.execution.plan import Plan
from globalstep.tf1.execution.planner import make_plan
from globalstep.tf1.execution.prefetching import Fresh, Lookup, lookups_of
from globalstep.tf1.execution.pushing import Declarer
from globalstep.tf1.execution.run import PlanRun
from globalstep.tf1.execution.tracing import Trace
from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.variables.graph_program import as_program, program_variable
from globalstep.tf1.variables.own_variables import claim_own_variables
from globalstep.tf1.variables.variables import Variable, variables_of
from globalstep.wire.declarations import Outcome, OutcomeKind, Push, Read
from globalstep.worker.client.causes import why_pushes_wait
from globalstep.worker.client.declared_alike import check_optimizers, check_variables
from globalstep.worker.protocol.push_result import DroppedPushes, PushResult
from globalstep.worker.protocol.pushes_in_flight import PushesInFlight

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient


#: Values that came back with a push are used by the next run up to this age, seconds.
REUSE_SECS = 1.0
_NO_SPAN = contextlib.nullcontext()


class Executor:
    """Runs nodes of one graph against one cluster.

    Args:
        graph: The graph.
        cluster: The client of the cluster.
        clock: Tells the age of reused values.
        reuse_values: Ask each push for the values that the same run reads next time, and start from them.
        in_flight: How many pushes a run need not wait for; see Session.
        own_task: The task whose Variables live in this process; "" for none.
        compiles: Whether jax compiles what it can; see `globalstep.tf1.execution.jax_backend`.

    Attributes:
        last_outcome: What became of the last push of any thread; None before the first.
        dropped: Counts those that the run's policy dropped.
        local: Values of the local Variables.
        own_task: As given.
        trace: Where runs record what they do; None for nowhere.
        in_flight: As given.
        pushes_in_flight: Sends the pushes that runs do not wait for; None where they wait for all.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: ClusterClient,
        clock: Clock = SYSTEM_CLOCK,
        reuse_values: bool = False,
        in_flight: int = 0,
        own_task: str = "",
        compiles: bool = False,
    ) -> None:
        self.graph = graph
        self.cluster = cluster
        self.reuse_values = reuse_values
        self.pushes_in_flight = PushesInFlight(in_flight, lambda: why_pushes_wait(cluster)) if in_flight else None
        self.in_flight = in_flight
        self.last_outcome: Outcome | None = None
        self.dropped = DroppedPushes(cluster.task, clock)
        self.local = LocalVariables(graph)
        self.own_task = own_task
        claim_own_variables(graph, own_task)
        self.trace: Trace | None = None
        self._clock = clock
        self._compiles = compiles
        self._declarer = Declarer(graph, cluster)
        # Names that the graph declares as the run of this incarnation has them. Replaced as a whole, never changed.
        self._alike: tuple[int, frozenset[str]] = (0, frozenset())
        #: Layout of a push -> the incarnation in which what it changes was found declared.
        self._declared: dict[object, int] = {}
        # Guards _position, _announced and the counting of _writes, and what is put into _plans; a leaf: nothing is
        # evaluated or sent under it.
        self._lock = threading.Lock()
        self._plans: dict[tuple[tuple[Node, ...], frozenset[Node]], Plan] = {}
        self._position: dict[Node, int] = {}
        #: Number of the last push begun, and values that are as good as a read while no other begins. These are
        #: replaced as a whole, and known by their push: nearly every run takes and leaves some, and needs no lock.
        self._writes = 0
        self._fresh: Fresh | None = None
        #: What the next run will be fed, for the lookups that the push before it is to bring.
        self._announced: Mapping[Node, Any] | None = None

    def run(self, fetches: tuple[Node, ...], feeds: Mapping[Node, Any]) -> list[Any]:
        """Run nodes once.

        Args:
            fetches: What is wanted.
            feeds: Values to take for nodes instead of their own.

        Returns:
            The value of each fetch; None for an operation. Arrays are the caller's.

        Raises:
            JobDoneError: If a push came after the job had reached its last step.
            FailedPreconditionError: If a Variable has no value.
            InvalidArgumentError: If a placeholder is not fed, or a node cannot take its inputs.
        """
        key = fetches, frozenset(feeds)
        # A plan that is there stays: nearly every run needs no lock.
        plan = self._plans.get(key) or self._made_plan(key)
        if self.pushes_in_flight is not None and not plan.overlaps:
            self.pushes_in_flight.wait()
        if self.trace is None:
            steady = plan.steady
            return PlanRun(self, plan, feeds).results() if steady is None else steady.results(self, plan, feeds)
        run = PlanRun(self, plan, feeds)
        with self.span("run", fetches=len(fetches)):
            return run.results()

    def span(self, name: str, **facts: Any) -> contextlib.AbstractContextManager[None]:
        """Record a `with` block in the trace, if there is one."""
        trace = self.trace
        return _NO_SPAN if trace is None else trace.span(name, **facts)

    def forget_values(self) -> None:
        """Read anew in the next run: something else than this executor has changed Variables."""
        self._fresh = None

    def _made_plan(self, key: tuple[tuple[Node, ...], frozenset[Node]]) -> Plan:
        """Give the plan of these fetches and fed nodes, made if no other thread has made it."""
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                if len(self._position) < len(self.graph.nodes):
                    claim_own_variables(self.graph, self.own_task)
                for node in self.graph.nodes[len(self._position) :]:
                    self._position[node] = len(self._position)
                plan = self._plans[key] = make_plan(*key, self._position, self._compiles)
        return plan

    def fresh_values(
        self, wanted: tuple[Variable, ...], lookups: Sequence[Lookup] = ()
    ) -> tuple[Sequence[Any], list[Any]] | None:
        """Give values from the last push that are fresh enough not to be read again; None where there are none.

        Args:
            wanted: Variables to have whole.
            lookups: Rows to have.

        Returns:
            Values of the Variables, in order, and the rows of each lookup.
        """
        fresh = self._fresh
        # Pushes in flight were not waited for on purpose; they are the only ones that may be missing.
        if fresh is None or self._writes - fresh.write > self.in_flight:
            return None
        if fresh.incarnation != self.cluster.incarnation:
            return None
        if not self.in_flight and self._clock.monotonic() - fresh.at >= REUSE_SECS:
            return None
        values = fresh.values if wanted == fresh.variables else fresh.whole(wanted)
        rows = fresh.found(lookups) if lookups else []
        return None if values is None or rows is None else (values, rows)

    def keep_fresh(
        self, write: int, variables: tuple[Variable, ...], values: Sequence[Any], lookups: Sequence[Lookup] = ()
    ) -> None:
        """Keep what came back with push number `write`, unless another one, that is waited for, has begun since.

        Args:
            write: See begin_write.
            variables: What the push has read whole.
            values: Of these, in order, and then the rows of each lookup.
            lookups: The rows that it has read.
        """
        count, fresh = len(variables), None
        if values and len(values) == count + len(lookups):
            rows = list(zip(lookups, values[count:], strict=True)) if lookups else ()
            whole = values[:count] if lookups else values
            fresh = Fresh(write, self.cluster.incarnation, self._clock.monotonic(), variables, whole, rows)
        if self._writes - write <= self.in_flight:
            self._fresh = fresh

    def announce(self, feeds: Mapping[Node, Any]) -> None:
        """Say what the run after the next one that pushes will be fed; see Session.prefetch."""
        with self._lock:
            self._announced = feeds

    def lookups_ahead(self, plan: Plan) -> list[Lookup]:
        """Give the rows that the announced run looks up, if it is one of `plan`; an announcement serves once."""
        with self._lock:
            feeds, self._announced = self._announced, None
        return [] if feeds is None else lookups_of(plan, feeds)

    def begin_write(self) -> int:
        """Number a push; values kept before it are no longer fresh."""
        with self._lock:
            self._writes += 1
            return self._writes

    def pull(self, reads: Sequence[Read], layout: object = None) -> list[Any]:
        """Read Variables in one cut.

        Args:
            reads: They.
            layout: See ClusterClient.pull.

        Raises:
            FailedPreconditionError: If one has no value.
        """
        if layout is None or self._declared.get(layout) != self.cluster.incarnation:
            self._require_declared([read.variable for read in reads])
            if layout is not None:
                self._declared[layout] = self.cluster.incarnation
        if self.trace is None:
            return self.cluster.pull(reads, layout)
        with self.span("pull", variables=len(reads)):
            return self.cluster.pull(reads, layout)

    def push(
        self,
        push: Push,
        shapes: Mapping[Variable, tuple[int, ...]],
        write: int = 0,
        reads: tuple[Variable, ...] = (),
        lookups: Sequence[Lookup] = (),
    ) -> list[Any] | None:
        """Send a push, after what it needs is declared.

        Args:
            push: The push.
            shapes: The Variables that it gives their whole value, with the value's shape.
            write: Its number, where the next run is to start from what it reads; see keep_fresh.
            reads: What it reads whole for that.
            lookups: The rows that it reads for that.

        Returns:
            Values of its reads; None if the run's policy dropped it.

        Raises:
            JobDoneError: If the job is done.
            AbortedError: If the sequencer gave up on it.
            NotFiniteGradientError: If a gradient was not finite, and the run's policy ends the job with that.
        """
        values = self.taken(self.send(push, shapes))
        if values is not None and (reads or lookups):
            self.keep_fresh(write, reads, values, lookups)
        return values

    def push_again(self, push: Push, reads: tuple[Variable, ...]) -> None:
        """Do as `push` with one that gives no Variable its value, from which the next run is to start.

        Args:
            push: The push.
            reads: What it reads, whole.
        """
        write, incarnation = self.begin_write(), self.cluster.incarnation
        if self._declared.get(push.layout) != incarnation:
            self.push(push, {}, write, reads)
            return
        result = self.cluster.push(push)
        self.last_outcome = result.outcome
        values = self.taken(result)
        if values and len(values) == len(reads) and write == self._writes:
            self._fresh = Fresh(write, incarnation, self._clock.monotonic(), reads, values)

    def send(self, push: Push, shapes: Mapping[Variable, tuple[int, ...]]) -> PushResult:
        """Send a push, and give its own outcome, even if other threads push meanwhile; see push.

        One that was refused, or given up, is an outcome here and no error.
        """
        if shapes or push.layout is None or self._declared.get(push.layout) != self.cluster.incarnation:
            self._declarer.declare(shapes, push.uses)
            self._require_declared([op.variable for op in push.ops])
            self._require_declared([increment.step for increment in push.increments])
            if push.layout is not None:
                self._declared[push.layout] = self.cluster.incarnation
        result = self.cluster.push(push) if self.trace is None else self._traced(push, self.trace)
        self.last_outcome = result.outcome
        return result

    def taken(self, result: PushResult) -> list[Any] | None:
        """Give the values that came with a push; see push, which raises the same."""
        outcome = result.outcome
        if outcome.kind is OutcomeKind.ACCEPTED:
            return result.values
        if outcome.kind is OutcomeKind.REFUSED_DONE:
            steps = ", ".join(f"{name} = {value}" for name, value in sorted(outcome.steps.items()))
            raise JobDoneError(f"The job has reached its last step ({steps}); nothing was applied.")
        if outcome.kind is OutcomeKind.ABANDONED:
            raise AbortedError("The sequencer gave up on a push that was silent for long; run again.")
        self.dropped.take(outcome)
        return None

    def _traced(self, push: Push, trace: Trace) -> PushResult:
        """Send a push, and record when each PS task applied its part."""
        with self.span("push", changes=len(push.ops), reads=len(push.reads)):
            began = trace.now()
            result = self.cluster.push(push)
        labels = self.cluster.run.labels
        for part in result.applied:
            trace.add("apply", began + part.after_secs, part.secs, row=labels[part.shard])
        return result

    def are_initialized(self, variables: Sequence[Variable]) -> list[bool]:
        """Say of each Variable whether it has a value."""
        missing: set[str] | None = None
        if not all(variable.is_local for variable in variables):
            missing = set(self.cluster.run.uninitialized())
        declared = self.cluster.variables
        return [
            self.local.has(variable)
            if missing is None or variable.is_local
            else variable.op_name in declared and variable.op_name not in missing
            for variable in variables
        ]

    def compare_with_run(self) -> None:
        """Refuse a graph that declares a Variable or an optimizer otherwise than the run has it.

        Raises:
            InvalidArgumentError: If it does; see declared_alike.
        """
        run = self.cluster.run.side()
        check_variables(map(program_variable, self._shared()), run)
        check_optimizers(as_program(self.graph).optimizers, run)
        self._alike = (self.cluster.incarnation, frozenset(run.variables))

    def _shared(self) -> list[Variable]:
        return [variable for variable in variables_of(self.graph) if not variable.is_local]

    def _require_declared(self, names: Sequence[str]) -> None:
        incarnation, alike = self._alike
        if incarnation == self.cluster.incarnation and all(map(alike.__contains__, names)):
            return
        if not all(map(self.cluster.where.__contains__, names)):
            self.cluster.refresh()
            where = self.cluster.where
            for name in names:
                if name not in where:
                    raise FailedPreconditionError(f"Attempting to use uninitialized value {name}")
        run = self.cluster.run.side()
        wanted = frozenset(names)
        check_variables([program_variable(item) for item in self._shared() if item.op_name in wanted], run)
        checked = alike if incarnation == self.cluster.incarnation else frozenset[str]()
        self._alike = (self.cluster.incarnation, checked | wanted)
