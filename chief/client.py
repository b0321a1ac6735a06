"""`gs.connect`: a client of the parameter servers for loops of one's own, by names and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from globalstep.chief.checkpoints.checkpoint_format import read_index
from globalstep.chief.checkpoints.checkpoint_save import saveables_of_program
from globalstep.chief.checkpoints.checkpoint_state import find_checkpoint
from globalstep.chief.checkpoints.cluster_saver import ClusterSaver
from globalstep.chief.sessions.chief_role import own_task, place_of_task
from globalstep.chief.sessions.cluster_start import Found, not_serving, survey
from globalstep.cluster.cluster import ClusterSpec, target_of
from globalstep.cluster.placement import declared_by
from globalstep.cluster.program import ProgramVariable
from globalstep.cluster.run_policy import policy_of
from globalstep.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    JobDoneError,
)
from globalstep.files.storage import storage_for
from globalstep.optimizers.declared import DeclaredModel, declared_model, grouped
from globalstep.optimizers.optimizer_rule import StepSource
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.codec import DTYPES
from globalstep.wire.declarations import Op, OpKind, Outcome, OutcomeKind, Push, Read, VariableDecl
from globalstep.wire.names import GLOBAL_STEP
from globalstep.wire.wire_options import wire_options_of
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.client.client import connect as connect_to
from globalstep.worker.client.declared_alike import check_optimizers, check_variables
from globalstep.worker.protocol.push_result import PushResult
from globalstep.worker.protocol.pushes_in_flight import PushTicket
from globalstep.worker.step.model import Array, Rows
from globalstep.worker.step.step_push import StepPush
from globalstep.worker.waits.polling_wait import PollingWait, wait_for_answers

#: How long a client waits for PS tasks that do not answer yet, and for the client that begins the run.
_WAIT_SECS = 600.0
_CHECKPOINT = "model.ckpt"


@dataclass(frozen=True)
class Pushed:
    """The result of a push, once there is one.

    Attributes:
        step: The global step right after it.
        applied: Whether it was applied; False where the run's policy dropped it: it came too late, or a gradient was
            not finite.
    """

    step: int
    applied: bool


class ClientTicket:
    """Stands for a push that is under way."""

    def __init__(self, ticket: PushTicket[PushResult], step: str) -> None:
        self._ticket = ticket
        self._step = step

    def done(self) -> bool:
        """Whether the push was answered, or has failed. Does not block; thread-safe."""
        return self._ticket.done()

    def result(self) -> Pushed:
        """Wait for the push, and return its result.

        Blocking: until it is answered.
        Thread-safe: yes, and it may be asked again.
        Failure: raises what went wrong with this push; JobDoneError once the job has ended. What was not applied never
        will be, and it may be computed and pushed again.
        """
        return _pushed(self._ticket.result().outcome, self._step)


class Client:
    """A member of a run that has declared parameters; made by `gs.connect`. Use it in a `with` block.

    >>> import numpy as np
    >>> import globalstep as gs
    >>> with gs.connect() as client:
    ...     began = client.declare({"w": np.zeros(2, np.float32)}, gs.optim.SGD(0.5))
    ...     ticket = client.push({"w": np.array([1.0, -2.0], np.float32)})
    ...     ticket.result()
    ...     client.pull()["w"].tolist()
    Pushed(step=1, applied=True)
    [-0.5, 1.0]
    """

    def __init__(self, cluster: ClusterClient, wait_secs: float = _WAIT_SECS) -> None:
        self._cluster = cluster
        self._wait_secs = wait_secs
        self._saver = ClusterSaver()
        self._declared: DeclaredModel | None = None
        # Which parameters and tables are pushed -> their template. Replaced as a whole, never changed.
        self._pushes: dict[tuple[tuple[str, ...], tuple[str, ...]], StepPush] = {}
        # The step that the last pull has read; what is pushed was computed from that, or from newer values.
        self._seen: int | None = None

    def declare(self, parameters: Mapping[str, Any], optimizer: Any, *, restore: str | None = None) -> bool:
        """Say what is trained and how, and make it ready: the first client of a run gives it its values.

        Blocking: until the PS tasks answer, and until the client that was first has given the values.
        Thread-safe: no; call it before the others. All clients of a run declare the same.
        Failure: raises, and nothing of another run has changed. InvalidArgumentError names what differs from the run,
        or cannot be; DeadlineExceededError what was missing. It may be called again, and has to be after an
        AbortedError of another method, which says that PS tasks lost their state.

        Args:
            parameters: Name -> the array that it begins with.
            optimizer: One of `gs.optim`, or a dict from patterns of names to such.
            restore: A directory, or a checkpoint's prefix: the client that begins takes the values from the newest
                checkpoint there, if there is one.

        Returns:
            Whether this client has begun the run, and not found it running.
        """
        arrays = {name: _array(name, value) for name, value in parameters.items()}
        declared = self._described(arrays, optimizer)
        wait = PollingWait(SYSTEM_CLOCK, self._wait_secs, self._cluster)
        statuses = wait_for_answers(self._cluster, SYSTEM_CLOCK, self._wait_secs)
        while (state := survey(statuses)) is not Found.RUNNING:
            # One that this client had begun, when a PS task was started again, it begins anew.
            initializing = [status.owner for status in statuses if status.state == pb.STATE_INITIALIZING]
            if set(initializing) <= {self._cluster.client_id}:
                try:
                    self._begin(statuses, declared, arrays, restore)
                except AbortedError:
                    pass  # another client was first, or a PS task was started again
                else:
                    self._declared, self._pushes, self._seen = declared, {}, None
                    return True
            missing = not_serving(statuses, self._cluster.run.labels) or f"the PS tasks, which are {state.value}"
            if not wait.pause(f"waiting for {missing}"):
                raise DeadlineExceededError(
                    f"The run was not ready after {self._wait_secs:.0f} s; it waited for {missing}. If the client that "
                    "began it has ended, start the PS tasks again."
                )
            statuses = wait_for_answers(self._cluster, SYSTEM_CLOCK, self._wait_secs)
        run = self._cluster.run.side()
        check_variables(declared.program.variables, run)
        check_optimizers(declared.program.optimizers, run)
        if missed := sorted({variable.name for variable in declared.program.variables} - set(run.variables)):
            raise InvalidArgumentError(
                f"The run has no Variable {missed[0]!r}, which this program declares ({run.theirs} declared the run's)."
                " All clients of a run declare the same parameters and optimizer."
            )
        self._declared, self._pushes, self._seen = declared, {}, None
        return False

    def pull(self, names: Sequence[str] | None = None, *, rows: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Read parameters, all as they were at one moment.

        Blocking: until they are here, and until this client's pushes before are answered.
        Thread-safe: yes.
        Failure: raises, and nothing has changed: AbortedError where PS tasks lost their state, UnavailableError where
        one has not answered for half a minute, FailedPreconditionError for a name that is not declared.

        Args:
            names: Which; all that were declared by default, but for those in `rows`.
            rows: Name -> ids of rows: the client reads these rows alone.

        Returns:
            Name -> value, or the rows in the order of their ids. Not to be written to.
        """
        ids = {name: _ids(name, some_ids) for name, some_ids in (rows or {}).items()}
        parameters = self._parameters()
        whole = [name for name in parameters if name not in ids] if names is None else list(names)
        if both := sorted(set(whole) & set(ids)):
            raise InvalidArgumentError(f"pull: {both[0]!r} is asked for as a whole and by rows: give one of them.")
        reads = [Read(name) for name in whole] + [Read(name, some) for name, some in ids.items()]
        *values, step = self._cluster.pull([*reads, Read(self._step)], (self, *whole, None, *ids))
        self._seen = int(step)
        return dict(zip([*whole, *ids], values, strict=True))

    def push(self, gradients: Mapping[str, Any], *, rows: Mapping[str, tuple[Any, Any]] | None = None) -> ClientTicket:
        """Have gradients applied by the optimizer, and the step moved on by one: all of it, exactly once, or nothing.

        Blocking: only while an earlier push of this client is unanswered; ask the ticket to wait for this one.
        Thread-safe: yes; pushes of one thread are applied in their order.
        Failure: raises for what cannot be pushed, before anything is sent; what goes wrong later the ticket raises,
        else the next push. A push whose answer is lost is sent again under its number, and counts once.

        Args:
            gradients: Name -> gradient, of the parameter's shape. Do not change the arrays before it is answered.
            rows: Name -> ids and gradients of rows, [n] and [n, ...]; gradients of an id that repeats are added up.
        """
        declared = self._require_declared()
        variables = {variable.name: variable for variable in declared.program.variables}
        dense = {name: self._fitting(variables, name, value) for name, value in gradients.items()}
        sparse = {name: self._fitting_rows(variables, name, *pair) for name, pair in (rows or {}).items()}
        if not dense and not sparse:
            raise InvalidArgumentError("push() was given no gradient: push({name: gradient}).")
        if both := sorted(set(dense) & set(sparse)):
            raise InvalidArgumentError(f"push: {both[0]!r} has a whole gradient and one by rows; give one of them.")
        key = tuple(dense), tuple(sparse)
        template = self._pushes.get(key)
        if template is None:
            template = StepPush(declared, *key)
            self._pushes = {**self._pushes, key: template}
        push = template.made(list(dense.values()), list(sparse.values()), seen=self._seen)
        return ClientTicket(self._cluster.push(push, wait=False), declared.step)

    def step(self) -> int:
        """Give the global step: how many pushes of all clients were applied.

        Blocking: until the PS tasks answer.
        Thread-safe: yes.
        Failure: raises as `pull`.
        """
        return self._cluster.global_steps()[self._step]

    def save(self, directory: str) -> str:
        """Write a checkpoint of the run as it is at one moment, which `gs.load` and `declare(restore=)` read.

        Blocking: until it is on disk; pushes of other clients go on meanwhile.
        Thread-safe: yes. One client of a run saves; it keeps the last five checkpoints.
        Failure: raises, and the checkpoints of before are still there: OpError or OSError of what could not be written.

        Args:
            directory: Where to; it is made.

        Returns:
            The checkpoint's prefix, which names the step.
        """
        declared = self._require_declared()
        storage = storage_for(directory)
        storage.make_directories(directory)
        saveables = saveables_of_program(declared.program)
        return self._saver.save(self._cluster, saveables, storage.join(directory, _CHECKPOINT), declared.step)

    def close(self) -> None:
        """Leave the run, which goes on; without a cluster it ends with this.

        Blocking: until this client's pushes are answered.
        Thread-safe: yes; a second call does nothing.
        Failure: a push that has failed, and whose ticket nobody asked, is named in the log.
        """
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _step(self) -> str:
        return GLOBAL_STEP if self._declared is None else self._declared.step

    def _parameters(self) -> list[str]:
        if self._declared is not None:
            return [item.name for item in self._declared.program.variables if _is_parameter(item)]
        self._cluster.refresh()
        return [decl.name for decl in self._cluster.variables.values() if _is_parameter(decl)]

    def _require_declared(self) -> DeclaredModel:
        if self._declared is None:
            raise FailedPreconditionError(
                "This client has declared nothing: call declare({name: array}, gs.optim.SGD(0.1)) first."
            )
        return self._declared

    def _described(self, arrays: Mapping[str, Array], optimizer: Any) -> DeclaredModel:
        """Give what parameters declare with an optimizer."""
        parameters = [
            ProgramVariable(name, array.dtype.name, array.shape, trainable=array.dtype.kind == "f")
            for name, array in arrays.items()
        ]
        trained = [parameter.name for parameter in parameters if parameter.trainable]
        if not trained:
            raise InvalidArgumentError("The parameters hold no floating array, so there is nothing to train.")
        source = StepSource(GLOBAL_STEP, lambda: self._seen or 0)
        groups = []
        for one, names in grouped(optimizer, trained):
            if getattr(one, "weight_decay", 0.0):
                raise InvalidArgumentError(
                    f"optimizer: {one!r} has a weight_decay, which is part of the gradients: add it to what you push, "
                    "or give gs.optim.AdamW, which decays on the parameter servers."
                )
            groups.append((one.rule_at(source), names))
        return declared_model(parameters, groups)

    def _begin(
        self, statuses: Sequence[Any], declared: DeclaredModel, arrays: Mapping[str, Array], restore: str | None
    ) -> None:
        cluster, prefix = self._cluster, None if restore is None else find_checkpoint(restore)
        ledger = b"" if prefix is None else read_index(storage_for(prefix), prefix).ledger
        cluster.begin(open=False, expected_tasks=cluster.run.session_tasks, ledger=ledger, statuses=statuses)
        if prefix is not None:
            self._saver.restore(cluster, lambda: declared.program, saveables_of_program(declared.program), prefix)
        else:
            planned = declared_by(declared.program, cluster.shards, cluster.policy)
            cluster.declare(planned.variables, planned.optimizers)
            ops = [Op(OpKind.ASSIGN, name, array) for name, array in arrays.items()]
            ops += [Op(OpKind.ASSIGN, name, fill=number) for name, number in declared.fills.items()]
            cluster.push(Push([*ops, Op(OpKind.ASSIGN, declared.step, fill=0)]))
        cluster.open()

    def _fitting(self, variables: Mapping[str, ProgramVariable], name: str, gradient: Any) -> Array:
        """Give a gradient as an array that can be the parameter's."""
        variable = self._trained(variables, name)
        array = np.asarray(gradient)
        if array.shape != variable.shape or array.dtype.kind not in "fiu":
            raise InvalidArgumentError(
                f"The gradient of {name!r} is {array.dtype.name}{list(array.shape)}, and the parameter "
                f"{variable.dtype}{list(variable.known_shape or ())}: they must be of one shape."
            )
        return np.asarray(array, variable.dtype, order="C")

    def _fitting_rows(self, variables: Mapping[str, ProgramVariable], name: str, ids: Any, gradients: Any) -> Rows:
        variable = self._trained(variables, name)
        shape = variable.known_shape or ()
        rows, array = _ids(name, ids), np.asarray(gradients)
        if not shape or array.shape != (len(rows), *shape[1:]) or array.dtype.kind not in "fiu":
            raise InvalidArgumentError(
                f"The rows' gradients of {name!r} are {array.dtype.name}{list(array.shape)} for {len(rows)} ids, and "
                f"the parameter is {variable.dtype}{list(shape)}: give one row for each id."
            )
        wrong = rows[(rows < 0) | (rows >= shape[0])]
        if wrong.size:
            raise InvalidArgumentError(f"Row {wrong[0]} is not in {name!r}, which has the rows 0 to {shape[0] - 1}.")
        return Rows(rows, np.ascontiguousarray(array, variable.dtype))

    def _trained(self, variables: Mapping[str, ProgramVariable], name: str) -> ProgramVariable:
        if name not in variables or not variables[name].trainable:
            trained = ", ".join(item.name for item in variables.values() if item.trainable)
            raise InvalidArgumentError(f"{name!r} is not a trained parameter; these are: {trained}.")
        return variables[name]


class HasTarget(Protocol):
    """A server in this process."""

    target: str


def connect(cluster: str | ClusterSpec | HasTarget | None = None) -> Client:
    """Become a client of parameter servers, to declare parameters, pull them and push their gradients.

    Args:
        cluster: A target such as "grpc://host:port" of any PS task, a `gs.train.ClusterSpec`, or a server in this
            process. None, as for `gs.fit`: the cluster of TF_CONFIG, which `globalstep launch` and cluster engines
            set; without one, a parameter server in this process, which ends with the client.

    Returns:
        The client; close it, or use it in a `with` block.

    Raises:
        InvalidArgumentError: If it is none of these, or TF_CONFIG is malformed.
        ValueError: If TF_CONFIG says that this process is a PS task.
    """
    target: Any = target_of(cluster) if isinstance(cluster, ClusterSpec) else getattr(cluster, "target", cluster)
    task = ""
    if cluster is None:
        place = place_of_task(own_task())
        target, task = place.target, place.task
    elif not isinstance(target, str) or not target:
        raise InvalidArgumentError(
            f"cluster is {cluster!r}; it must be a target such as 'grpc://host:port', a gs.train.ClusterSpec, a "
            "server, or None for the cluster of TF_CONFIG, or a parameter server in this process."
        )
    # With the policy and the wire options that the environment asks for.
    return Client(connect_to(target, task=task, policy=policy_of(None), wire=wire_options_of(None)))


def _array(name: str, value: Any) -> Array:
    """Give what a parameter begins with, as an array that a PS task can hold."""
    array = np.array(value, order="C")
    if array.dtype.name not in DTYPES:
        raise InvalidArgumentError(
            f"The parameter {name!r} is {array.dtype.name}{list(array.shape)}, and a parameter is one of "
            f"{', '.join(DTYPES)}. Convert it first, for example with .astype(np.float32)."
        )
    return array


def _ids(name: str, value: Any) -> Array:
    ids = np.asarray(value)
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        raise InvalidArgumentError(
            f"The row ids of {name!r} are {ids.dtype.name}{list(ids.shape)}; they must be integers in one dimension: "
            "ids.reshape(-1)."
        )
    return ids.astype(np.int64, copy=False)


def _is_parameter(variable: ProgramVariable | VariableDecl) -> bool:
    return not variable.is_step and not variable.primary and not variable.optimizer


def _pushed(outcome: Outcome, step: str) -> Pushed:
    if outcome.kind is OutcomeKind.REFUSED_DONE:
        raise JobDoneError(
            f"The job has reached its last step ({step} = {outcome.steps.get(step)}); nothing was applied."
        )
    if outcome.kind is OutcomeKind.ABANDONED:
        raise AbortedError("The sequencer gave up on a push that was silent for long; push again.")
    return Pushed(outcome.steps.get(step, 0), outcome.kind is OutcomeKind.ACCEPTED)
