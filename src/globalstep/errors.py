"""The one error tree of globalstep.

Every error that globalstep raises for its users is a `GlobalStepError`; those that TensorFlow 1.x
programs catch keep TensorFlow's names (`tf.errors.AbortedError`, ...) and canonical codes, which are
also gRPC's. `error_from_code` is the single table from a wire status to a type; nothing else in the
project translates statuses.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "CheckpointError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "GlobalStepError",
    "InternalError",
    "InvalidArgumentError",
    "JobDoneError",
    "LayoutUnknownError",
    "LostStateError",
    "NotFiniteGradientError",
    "NotFoundError",
    "OpError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
    "code_of",
    "error_from_code",
]


class GlobalStepError(Exception):
    """Base of every error raised by globalstep itself."""


class OpError(GlobalStepError):
    """An operation failed, here or on a parameter server.

    Args:
        *args: The message: what happened, naming the task, the Variable and the next thing to do. Or, as TensorFlow has
            them, node_def, op and message, and for an OpError itself its error_code.
        message: The message by name.
        node_def: Definition of the operation, for programs that make an error of their own.
        op: The operation, likewise.

    Attributes:
        code: The canonical (gRPC) status code of the type.
        message: The text given.
        node_def: As given, or None.
        op: As given, or None.

    >>> OutOfRangeError(None, None, "no more rows").message
    'no more rows'
    """

    code: int = 2

    def __init__(self, *args: Any, message: str = "", node_def: Any = None, op: Any = None) -> None:
        if len(args) == 1:
            (message,) = args
        elif args:
            # (node_def, op, message, error_code), of which TensorFlow's subclasses take the first three.
            named = dict(zip(("node_def", "op", "message", "error_code"), args, strict=False))
            node_def, op = named["node_def"], named["op"]
            message, self.code = named.get("message", message), named.get("error_code", self.code)
        super().__init__(message)
        self.message, self.node_def, self.op = message, node_def, op

    @property
    def error_code(self) -> int:
        """The canonical status code, under TensorFlow's name."""
        return self.code


class CancelledError(OpError):
    """The operation was cancelled, for example because its queue or session was closed."""

    code = 1


class UnknownError(OpError):
    """An error that has no better type."""

    code = 2


class InvalidArgumentError(OpError):
    """An argument was wrong: a shape, a dtype, an index, a name."""

    code = 3


class DeadlineExceededError(OpError):
    """A wait or a call took longer than its limit."""

    code = 4


class NotFoundError(OpError):
    """Something named does not exist: a Variable, a file, a checkpoint key."""

    code = 5


class AlreadyExistsError(OpError):
    """Something to be made exists already."""

    code = 6


class PermissionDeniedError(OpError):
    """The caller's role may not do this."""

    code = 7


class ResourceExhaustedError(OpError):
    """A limit was reached: memory, disk, a queue.

    Args:
        message: What happened.
        retry_secs: After how long the same call may succeed; 0 where waiting does not help.
    """

    code = 8

    def __init__(self, *args: Any, retry_secs: float = 0.0, **named: Any) -> None:
        super().__init__(*args, **named)
        self.retry_secs = retry_secs


class FailedPreconditionError(OpError):
    """The system is not in a state for this, for example a Variable is not initialized."""

    code = 9


class AbortedError(OpError):
    """The work belongs to an incarnation that is over; a recovering session starts it anew."""

    code = 10


class OutOfRangeError(OpError):
    """An input is exhausted."""

    code = 11


class UnimplementedError(OpError):
    """The operation is not supported."""

    code = 12


class InternalError(OpError):
    """An invariant of globalstep itself broke: please report it."""

    code = 13


class UnavailableError(OpError):
    """A task cannot be reached at the moment."""

    code = 14


class DataLossError(OpError):
    """Stored data is missing or corrupt."""

    code = 15


class UnauthenticatedError(OpError):
    """The caller did not prove who it is."""

    code = 16


class JobDoneError(OutOfRangeError):
    """A push came after the job had reached its last step, and nothing was applied; or a wait outlasted the job.

    A monitored session turns it into a normal return with `should_stop()` True; a wait that comes again it raises. It
    is an OutOfRangeError, so loops that end on one end on this too.

    Attributes:
        values: What the run had computed of its fetches before the push, in their structure, with None
            for the rest; None altogether when it is not known.
        waited: Whether it ended a wait for what nobody will do any more; the same call would only wait again.
    """

    def __init__(self, message: str = "", waited: bool = False) -> None:
        super().__init__(message)
        self.values: object = None
        self.waited = waited


class NotFiniteGradientError(InvalidArgumentError):
    """A gradient held a NaN or an infinity; nothing was applied.

    With the run's policy on_nan="stop" the job ends with it: no push moves a step on any more, and the other workers
    end as at the last step. A `gs.Trainer` raises it after `max_bad_steps` such steps in a row.
    """


class LayoutUnknownError(FailedPreconditionError):
    """A push named a layout that its receiver does not have; the client sends it in full."""


class LostStateError(AbortedError):
    """A PS task holds nothing: it has just started, or lost what it had, or dropped it since a change failed halfway.

    In a run with durability="log" it is brought back to what it had acknowledged, and the call is tried again
    under the same push id; else the run starts anew from a checkpoint, as after any AbortedError.
    """


class CheckpointError(DataLossError):
    """A checkpoint is incomplete or corrupt; the message names the file."""


#: Each is a type of its own; others are of these.
_BY_CODE: dict[int, type[OpError]] = {kind.code: kind for kind in OpError.__subclasses__()}


# Types that a program tells apart although they share a code with others; they cross the wire by name.
_BY_NAME: dict[str, type[OpError]] = {
    kind.__name__: kind for kind in (JobDoneError, LayoutUnknownError, LostStateError)
}


def error_from_code(code: int, message: str, type_name: str = "", retry_secs: float = 0.0) -> OpError:
    """Make the error for a canonical status code.

    Args:
        code: A canonical (gRPC) status code, not 0.
        message: The text of the status.
        type_name: Name of the type at the sender, for the few types that share a code.
        retry_secs: After how long to try again, where the sender says so.

    Returns:
        An instance of the type of that code; UnknownError for a code that has none.

    >>> type(error_from_code(14, "ps 0 is down")).__name__
    'UnavailableError'
    """
    error = (_BY_NAME.get(type_name) or _BY_CODE.get(code, UnknownError))(message)
    if isinstance(error, ResourceExhaustedError):
        error.retry_secs = retry_secs
    return error


def code_of(error: BaseException) -> int:
    """Give the canonical status code for an error.

    Returns:
        Its code: its own for an OpError; 3 (invalid argument) for ValueError and TypeError, 14 (unavailable) for
        ConnectionError and 8 (resource exhausted) for MemoryError, which are how Python code says the same; 13
        (internal) otherwise.

    >>> code_of(ValueError("x"))
    3
    """
    if isinstance(error, OpError):
        return error.code
    if isinstance(error, ConnectionError):
        return 14
    if isinstance(error, MemoryError):
        return 8
    return 3 if isinstance(error, (ValueError, TypeError)) else 13
