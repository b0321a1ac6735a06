"""A graph as what a run trains: how its sessions are made, and how its Variables get their values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from globalstep.cluster.placement import Declarations
from globalstep.cluster.run_policy import policy_of
from globalstep.tf1.graph.graph import Graph, get_default_graph
from globalstep.tf1.sessions.readiness import initialize_own, initialize_rest, why_not_ready
from globalstep.tf1.sessions.scaffold import Scaffold
from globalstep.tf1.sessions.session import Session
from globalstep.tf1.variables.graph_program import declarations
from globalstep.tf1.variables.training_util import integer_step
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.known_progress import KnownProgress


@dataclass(frozen=True)
class GivenOps:
    """The arguments of a SessionManager's caller, in place of a Scaffold."""

    saver: Any = None
    init_op: Any = None
    init_feed_dict: Any = None
    init_fn: Callable[[Any], Any] | None = None
    local_init_op: Any = None
    local_init_feed_dict: Any = None
    ready_op: Any = None
    ready_for_local_init_op: Any = None

    def finalize(self) -> None:
        """Does nothing: unlike in a Scaffold, nothing is missing."""


class GraphModel:
    """Makes sessions of a graph, and runs the operations that make its model ready; a `RunModel`.

    Args:
        ops: These operations; a Scaffold makes those that are missing before the first session.
        config: Configuration of the sessions.
        graph: The graph; default the current one when a session is made.
    """

    def __init__(self, ops: Scaffold | GivenOps, config: Any = None, graph: Graph | None = None) -> None:
        self._ops, self._config, self._given = ops, config, graph

    @property
    def _graph(self) -> Graph:
        return self._given or get_default_graph()

    @property
    def progress(self) -> KnownProgress:
        """See RunModel: one for all who make sessions of the graph."""
        progress: KnownProgress = self._graph.extras.setdefault(__name__, KnownProgress())
        return progress

    @progress.setter
    def progress(self, progress: KnownProgress) -> None:
        self._graph.extras[__name__] = progress

    @property
    def step(self) -> Variable | None:
        """See RunModel."""
        return integer_step(self._graph)

    @property
    def restores(self) -> bool:
        """See RunModel."""
        return self._ops.saver is not None

    def complete(self) -> None:
        """See RunModel."""
        self._ops.finalize()

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """See RunModel: the graph is not frozen within the block."""
        graph = self._graph
        frozen, graph.finalized = graph.finalized, False
        try:
            yield
        finally:
            graph.finalized = frozen

    def session(self, target: Any, task: str, retry_secs: float) -> Session:
        """See RunModel."""
        return Session(target, self._graph, self._config, reuse_values=True, task=task, retry_secs=retry_secs)

    def declarations(self, shards: int) -> Declarations:
        """See RunModel."""
        return declarations(self._graph, shards, policy_of(self._config))

    def compare_with_run(self, session: Session) -> None:
        """See RunModel."""
        session.compare_with_run()

    def initialize(self, session: Session) -> None:
        """See RunModel."""
        ops = self._ops
        if ops.init_op is None and not ops.init_fn and ops.local_init_op is None:
            raise RuntimeError("Model is not initialized and no init_op or init_fn or local_init_op was given")
        if ops.init_op is not None:
            session.run(ops.init_op, feed_dict=ops.init_feed_dict)
        if ops.init_fn:
            ops.init_fn(session)

    def restore(self, session: Session, prefix: str) -> None:
        """See RunModel."""
        self._ops.saver.restore(session, prefix)

    def initialize_rest(self, session: Session) -> str:
        """See RunModel."""
        return initialize_rest(session)

    def initialize_own(self, session: Session) -> str:
        """See RunModel: runs local_init_op once the model is ready for it."""
        ops, problem = self._ops, initialize_own(session)
        if problem or ops.local_init_op is None:
            return problem
        problem = why_not_ready(ops.ready_for_local_init_op, session, "Model not ready for local init")
        if not problem:
            session.run(ops.local_init_op, feed_dict=ops.local_init_feed_dict)
        return problem

    def why_not_ready(self, session: Session) -> str:
        """See RunModel."""
        return why_not_ready(self._ops.ready_op, session, "Model not ready")

    def make_ready(self, session: Session) -> None:
        """See RunModel."""
        ops, problem = self._ops, self.initialize_own(session)
        if problem:
            raise RuntimeError(
                "Init operations did not make model ready for local_init.  Init op: "
                f"{_name(ops.init_op)}, init fn: {ops.init_fn}, error: {problem}"
            )
        problem = self.why_not_ready(session)
        if problem:
            raise RuntimeError(
                f"Init operations did not make model ready.  Init op: {_name(ops.init_op)}, init fn: "
                f"{ops.init_fn}, local_init_op: {_name(ops.local_init_op)}, error: {problem}"
            )


def _name(node: Any) -> str:
    return str(getattr(node, "name", node))
