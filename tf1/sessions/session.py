"""Sessions: where a program runs the nodes of its graph."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from globalstep.cluster.run_policy import policy_of
from globalstep.config import in_flight_of
from globalstep.errors import JobDoneError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.waiting import at_most
from globalstep.tf1.execution.executor import Executor
from globalstep.tf1.execution.fetches import Fetches, feeds_of
from globalstep.tf1.execution.jax_backend import is_asked_for
from globalstep.tf1.execution.tracing import Trace, traced_run
from globalstep.tf1.graph.graph import Graph, default_sessions, get_default_graph
from globalstep.tf1.variables.own_variables import task_with_own
from globalstep.wire.declarations import Outcome
from globalstep.wire.transports import known_target
from globalstep.wire.wire_options import wire_options_of
from globalstep.worker.client.client import RETRY_SECS, connect
from globalstep.worker.waits.polling_wait import wait_for_answers

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient


_log = logging.getLogger("globalstep")

#: How long a session's first run waits for PS tasks that do not answer: as a MonitoredTrainingSession by default.
_FIRST_ANSWER_SECS = 7200.0


class Session:
    """Runs the nodes of a graph; Variables live on the PS of a cluster, or in this process.

    Args:
        target: "" for a PS of its own in this process, "grpc://host:port" of any PS for its cluster.
        graph: The graph; default the current one.
        config: Its `run_policy` holds for the runs that this session begins, its `wire` for what it sends and reads;
            with `pushes_in_flight` a run that only trains returns before its push is answered, and the next one
            starts from the newest values that have come, so that computing and communicating overlap; its
            staleness counts the pushes it has not seen. At most that many are unanswered, what goes wrong comes to
            light in a later run, and a run that does anything else waits for all of them first. The rest is accepted
            as in TensorFlow.
        cluster: A client to use instead of connecting to `target`; the session does not close it.
        reuse_values: Ask each push for what the same run reads next time, and start the next run that
            pushes from that as long as it is younger than a second: one message a step instead of two.
        task: Name of this task, "/job:worker/task:1", so that others can name it.
        retry_secs: How long a PS task that cannot be reached any more is tried; default 30. For those that do not
            answer yet the first run waits, for two hours.
        clock: Tells the age of such values.

    Attributes:
        graph: The graph.
        cluster: The client of the cluster.
        restored_from: Prefix of the checkpoint that the model was restored from when the session was made; "" for
            none.

    Threads: `run` may be called by several threads at once. The session is the default session only of
    the thread that entered it.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default(), gs.Session() as sess:
    ...     w = gs.Variable([1.0, 2.0])
    ...     sess.run(gs.global_variables_initializer())
    ...     print(sess.run(w.assign_add([1.0, 1.0])))
    [2. 3.]
    """

    def __init__(
        self,
        target: str = "",
        graph: Graph | None = None,
        config: Any = None,
        *,
        cluster: ClusterClient | None = None,
        reuse_values: bool = False,
        task: str = "",
        retry_secs: float = RETRY_SECS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.graph = get_default_graph() if graph is None else graph
        if not isinstance(self.graph, Graph):
            raise TypeError(f"graph must be a gs.Graph, but got {type(graph)}")
        self._target = target or ""
        compiles = is_asked_for()
        self._owns_cluster = cluster is None
        place = known_target(self._target)
        # Whether to wait for the PS tasks. Who passed a client has waited for them; and the program
        # of a PS task uses what that has, its queues, say: another one may have ended by then.
        self._unmet = self._owns_cluster and bool(self._target) and place.program is None
        self.cluster: ClusterClient = (
            connect(
                self._target,
                task=task,
                clock=clock,
                retry_secs=retry_secs,
                policy=policy_of(config),
                wire=wire_options_of(config),
            )
            if cluster is None
            else cluster
        )
        in_flight = in_flight_of(config)
        own_task = task_with_own(task or place.task, place.session_tasks)
        self._executor = Executor(self.graph, self.cluster, clock, reuse_values, in_flight, own_task, compiles)
        self._fetches = Fetches(self.graph)
        self._clock = clock
        # Guards _closed; a leaf.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self.restored_from = ""
        #: What is let go of once the session has left its cluster.
        self.at_close = contextlib.ExitStack()
        self.trains_alone = False  # a program may have an evaluating session beside its training one
        self._entered: list[contextlib.ExitStack] = []

    @property
    def sess_str(self) -> str:
        """The target."""
        return self._target

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def graph_def(self) -> Any:
        """The graph as a GraphDef."""
        return self.graph.as_graph_def()

    @property
    def pushes_in_flight(self) -> int:
        """The number of pushes that a run need not wait for."""
        return self._executor.in_flight

    @property
    def last_outcome(self) -> Outcome | None:
        """The outcome of this session's last push; None before the first."""
        return self._executor.last_outcome

    @property
    def trace(self) -> Trace | None:
        """The Trace that runs are recorded in; None records nothing."""
        return self._executor.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._executor.trace = trace

    def prefetch(self, feed_dict: Mapping[Any, Any]) -> None:
        """Say what the run after the next one will be fed, so that the rows it looks up come with the next push.

        The next run that pushes, and reads rows of Variables, asks for those rows in the consistent read right after
        its push. A run that does look up these rows then starts from them, and from the dense values and steps of
        the same read, and needs no read of its own; what others have pushed since, its staleness counts. It reads
        anew, as without a prefetch, if it looks up other rows, if another push of this session has begun
        in between, if a second has passed, or if the ids could not be known beforehand (they come from a queue or a
        random number).

        Args:
            feed_dict: As for `run`; what is not needed for the ids may be left out.

        Raises:
            TypeError, ValueError: As `run`, for a feed that does not fit.
        """
        self._executor.announce(feeds_of(feed_dict, self.graph))

    def run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        """Run nodes once: each is evaluated at most once, Variables are read in one consistent read.

        Args:
            fetches: A node, operation, name, IndexedSlices, or a nested list, tuple, namedtuple or dict
                of such.
            feed_dict: Values to take for nodes, Variables included, instead of their own.
            options: `gs.RunOptions`; its `trace_level` has the run leave what it did in `run_metadata`, its
                `timeout_in_ms` limits how long the run waits for queues. The rest is accepted as in TensorFlow.
            run_metadata: `gs.RunMetadata`, for such a run.

        Returns:
            The values in the structure of `fetches`: arrays, numpy scalars, None for operations. A
            Variable's value is the one before the run's mutations; a mutation's is the one after it.

        Raises:
            RuntimeError: If the session is closed, or the graph empty.
            TypeError: If a fetch or a feed is of a wrong type.
            ValueError: If one is not in the graph, or a fed shape does not fit.
            JobDoneError: If the job has reached its last step; nothing was applied.
            DeadlineExceededError: If the run has waited longer than its `timeout_in_ms`.
            DeadlineExceededError: If a PS task has not answered for two hours since the session's first run.
            OpError: What went wrong in the run.

        Threads: may be called by several threads at once.
        """
        if options is None:
            return self._run(fetches, feed_dict)
        timeout_ms = getattr(options, "timeout_in_ms", 0)
        trace_level = getattr(options, "trace_level", 0)
        if timeout_ms > 0:
            with at_most(timeout_ms / 1000):
                return self._run(fetches, feed_dict, trace_level, run_metadata)
        return self._run(fetches, feed_dict, trace_level, run_metadata)

    def _run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None, trace_level: int = 0, run_metadata: Any = None
    ) -> Any:
        if self._closed:
            raise RuntimeError("Attempted to use a closed Session.")
        if not self.graph.nodes:
            raise RuntimeError("The Session graph is empty.  Add operations to the graph before calling run().")
        if run_metadata is not None and trace_level:
            with traced_run(self, run_metadata):
                return self._run(fetches, feed_dict)
        nodes, rebuild = self._fetches.flatten(fetches)
        feeds = feeds_of(feed_dict, self.graph) if feed_dict else {}
        if self._unmet:
            self._meet()
        try:
            return rebuild(self._executor.run(nodes, feeds))
        except JobDoneError as done:
            done.values = rebuild(cast("Sequence[Any]", done.values))
            raise

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """Give a function that runs `fetches`, with its arguments fed to `feed_list` in order.

        Args:
            fetches: As for `run`.
            feed_list: Nodes to feed.
            accept_options: Accepted as in TensorFlow.

        Raises:
            TypeError: If `feed_list` is no list.
        """
        if feed_list is not None and not isinstance(feed_list, (list, tuple)):
            raise TypeError("`feed_list` must be a list or tuple.")
        keys = list(feed_list or ())
        nodes, rebuild = self._fetches.flatten(fetches)

        def call(*values: Any) -> Any:
            if self._closed:
                raise RuntimeError("Attempted to use a closed Session.")
            feeds = feeds_of(dict(zip(keys, values, strict=True)), self.graph)
            if self._unmet:
                self._meet()
            return rebuild(self._executor.run(nodes, feeds))

        return call

    def _meet(self) -> None:
        """Wait until every PS task has answered once, as TensorFlow's CreateSession does: they may start later."""
        if not self.cluster.incarnation:
            wait_for_answers(self.cluster, self._clock, _FIRST_ANSWER_SECS)
        self._unmet = False

    def compare_with_run(self) -> None:
        """Refuse a graph that declares a Variable or an optimizer otherwise than the run has it.

        A run of the session does so for the Variables that it uses; this looks at all.

        Raises:
            InvalidArgumentError: If it does; names the Variable, both sides and both tasks.
        """
        self._executor.compare_with_run()

    def has_value(self, variable: Any) -> bool:
        """Whether a Variable has a value."""
        return self.have_values([variable])[0]

    def have_values(self, variables: Sequence[Any]) -> list[bool]:
        """Say of each Variable whether it has a value."""
        return self._executor.are_initialized(variables)

    def forget_values(self) -> None:
        """Read anew in the next run, because something else has changed Variables (a restore)."""
        self._executor.forget_values()

    def as_default(self) -> contextlib.AbstractContextManager[Session]:
        """Make it the thread's default session within a `with` block, without closing it after."""
        return _default_session(self)

    def close(self) -> None:
        """Leave the cluster, or end the PS in this process. A second call does nothing."""
        if os.getpid() != self._pid:
            self._closed = True  # a forked child: all of it is the parent's, which goes on
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        pushes = self._executor.pushes_in_flight
        if pushes is not None and (error := pushes.close()) is not None:
            _log.warning("A push that no run waited for has failed: %s", error)
        # They lie in memory that is shared with the PS tasks.
        self._executor.forget_values()
        with self.at_close:
            if self._owns_cluster:
                self.cluster.close()

    @classmethod
    def reset(cls, target: str, containers: Any = None, config: Any = None) -> None:
        """Accepted as in TensorFlow; Variables are reset by initializing them."""

    def __enter__(self) -> Session:
        stack = contextlib.ExitStack()
        stack.enter_context(self.graph.as_default())
        stack.enter_context(self.as_default())
        self._entered.append(stack)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.pop().close()
        self.close()


class InteractiveSession(Session):
    """A session that is the thread's default session from its construction until it is closed.

    Args:
        target: As for Session.
        graph: As for Session; the default graph too meanwhile.
        config: As for Session.
    """

    def __init__(
        self, target: str = "", graph: Graph | None = None, config: Any = None, *, cluster: ClusterClient | None = None
    ) -> None:
        super().__init__(target, graph, config, cluster=cluster)
        self._installed: contextlib.ExitStack | None = contextlib.ExitStack()
        if graph is not None:
            self._installed.enter_context(graph.as_default())
        self._installed.enter_context(self.as_default())

    def close(self) -> None:
        """Close it, and stop being the default session."""
        super().close()
        if self._installed is not None:
            installed, self._installed = self._installed, None
            installed.close()


def get_default_session() -> Any:
    """Give the thread's default session; None without one."""
    sessions = default_sessions()
    return sessions[-1] if sessions else None


@contextlib.contextmanager
def _default_session(session: Session) -> Iterator[Session]:
    stack = default_sessions()
    stack.append(session)
    try:
        yield session
    finally:
        # An InteractiveSession may be closed out of turn: the innermost entry of this one goes.
        for i in range(len(stack) - 1, -1, -1):
            if stack[i] is session:
                del stack[i]
                break
