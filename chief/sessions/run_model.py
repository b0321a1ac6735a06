"""The model that a run trains, and a session of it, as the chief's part sees them: a graph's or a Trainer's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from globalstep.cluster.placement import Declarations
from globalstep.wire.declarations import Outcome
from globalstep.wire.known_progress import KnownProgress

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient


class GlobalStep(Protocol):
    """A global step: a node of a graph, or its name alone."""

    @property
    def op_name(self) -> str:
        """Its name on the PS tasks."""


class RunSession(Protocol):
    """Trains a model on a cluster, until it is closed or the run's incarnation ends.

    Attributes:
        cluster: The client of the cluster.
        restored_from: Prefix of the checkpoint that the model was restored from when the session was made; "" for none.
        at_close: What is let go of once the session has left its cluster.
        trains_alone: No other thread of the process is to train in its directory with a PS of its own.
    """

    cluster: ClusterClient
    restored_from: str
    at_close: contextlib.ExitStack
    trains_alone: bool

    @property
    def last_outcome(self) -> Outcome | None:
        """The outcome of the last push; None before the first."""

    @property
    def pushes_in_flight(self) -> int:
        """The number of pushes that a run need not wait for."""

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Run what is asked for, the caller's and the hooks', as one."""

    def forget_values(self) -> None:
        """Read anew in the next run."""

    def close(self) -> None:
        """Leave the cluster; a second call does nothing."""


S = TypeVar("S", bound=RunSession)


class RunModel(Protocol[S]):
    """Makes sessions of one model, and gives it its values.

    A model defines only what it needs of `complete`, `building`, `initialize_rest` and `initialize_own`.

    Attributes:
        progress: What the process has heard of the run, through all of its sessions.
    """

    progress: KnownProgress

    @property
    def step(self) -> GlobalStep | None:
        """The global step that pushes move on; None without one."""

    @property
    def restores(self) -> bool:
        """Whether there is anything that a checkpoint could restore."""

    def complete(self) -> None:
        """Make what is missing before the first session; nothing can be added to the model after it."""
        return

    def building(self) -> contextlib.AbstractContextManager[None]:
        """Let hooks that begin late add to the model within the block."""
        return contextlib.nullcontext()

    def session(self, target: Any, task: str, retry_secs: float) -> S:
        """Connect to a cluster."""

    def declarations(self, shards: int) -> Declarations:
        """Give what is declared to so many PS tasks."""

    def compare_with_run(self, session: S) -> None:
        """Refuse a model that declares a Variable or an optimizer otherwise than the run has it."""

    def initialize(self, session: S) -> None:
        """Give all Variables their first values."""

    def restore(self, session: S, prefix: str) -> None:
        """Give all Variables their values from a checkpoint."""

    def initialize_rest(self, session: S) -> str:
        """Give values to what a run that is ready has none for; says what they wait for, "" for nothing."""
        return ""

    def initialize_own(self, session: S) -> str:
        """Give values to what is this task's alone; says what they wait for, "" for nothing."""
        return ""

    def why_not_ready(self, session: S) -> str:
        """Say what is not initialized; "" when the model is ready."""

    def make_ready(self, session: S) -> None:
        """Initialize what is this task's alone, and raise RuntimeError where something is not initialized then."""


def step_now(session: RunSession, step: GlobalStep) -> int:
    """Read a step where it is counted, outside of a training run.

    A session may answer a run from the values that came back with its own last push; other workers push
    meanwhile, so the sequencer itself is asked.
    """
    steps = session.cluster.global_steps()
    return int(steps[step.op_name] if step.op_name in steps else session.run(step))


def why_uninitialized(cluster: ClusterClient, names: list[str]) -> str:
    """Say that Variables have no value, and what they are where no program of the run has initialized them."""
    text, declared = f"Variables not initialized: {', '.join(names)}", cluster.variables
    if not declared or all(name in declared for name in names):
        return text
    task = cluster.task or "/job:worker/task:1"
    missing = next(name for name in names if name not in declared)
    return (
        f"{text}. The run has no Variable {missing!r}: its chief's program has none of that name, and initializes only "
        "its own. All programs of a run build the same model; what is this task's alone, such as an A3C worker's net, "
        f'belongs on its own device, gs.device("{task}"), or into collections=[gs.GraphKeys.LOCAL_VARIABLES]'
    )
