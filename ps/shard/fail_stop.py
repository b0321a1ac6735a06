"""What a shard does when a push that has its place cannot be carried out as a whole: it goes out of service.

Everything that can be wrong with a push is looked for before it is admitted. What fails all the same, from then until
the write-ahead log has its event, is a bug, an update rule's exception, or a machine without memory; and what it
leaves may hold half of a push. So it is served to no client: the shard forgets all that it has, as if its process had
been started again, and comes back from its log or from a checkpoint.

Layer: ps. Threads: called under the shard's lock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType

from globalstep.errors import InternalError, LostStateError, OpError

__all__ = ["FailStop"]

_MOST_SAID = 500
_KINDS_KEPT = 64
#: After so many failures of one kind the error says that trying again does not help.
_ENOUGH = 3


class FailStop:
    """Makes a block of code one that a shard comes through as a whole, or loses its state in.

    >>> lost = []
    >>> stop = FailStop(lambda: lost.append("all"))
    >>> with stop.during("push 1"):  # doctest: +ELLIPSIS
    ...     raise ValueError("no such operation")
    Traceback (most recent call last):
    globalstep.errors.LostStateError: ...
    >>> lost, len(stop.reports)
    (['all'], 1)

    Args:
        lose: Forgets the shard's state.
        armed: As the attribute.

    Attributes:
        armed: False to let exceptions through as they are: no client sees the state, whatever is left of it.
        reports: What failed, newest last; for the settler, which writes it to the task's own log.
    """

    def __init__(self, lose: Callable[[], None], armed: bool = True) -> None:
        self.armed = armed
        self.reports: deque[str] = deque(maxlen=16)
        self._lose = lose
        self._seen: Counter[str] = Counter()
        self._what: object = ""

    def during(self, what: object) -> FailStop:
        """Give a context for a `with` block that makes a change; `what` names it. Not to be nested.

        Within it any exception but one that ends the program (KeyboardInterrupt, ...) becomes:

        Raises:
            LostStateError: The state is gone: the client waits until it is recovered, or restored, and tries again.
            InternalError: As above, where the same has failed before again and again: trying once more is no use.
        """
        self._what = what
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self.armed:
            return
        lost = self._failed(self._what, error)
        if isinstance(error, Exception):
            raise lost from error

    def _failed(self, what: object, error: BaseException) -> OpError:
        """Drop the state; gives the error for the caller."""
        self._lose()
        name = type(error).__name__
        text = (
            f"{what} had its place, and could not be carried out: {name}: {str(error)[:_MOST_SAID]}. What it left may "
            "hold half of it, so this PS task has dropped its state, and serves nothing until it is back from its "
            "write-ahead log or the chief has restored a checkpoint."
        )
        self.reports.append(text)
        kind = f"{name}: {str(error)[:_MOST_SAID]}"
        if kind not in self._seen and len(self._seen) >= _KINDS_KEPT:
            self._seen.clear()
        self._seen[kind] += 1
        if self._seen[kind] >= _ENOUGH and not isinstance(error, MemoryError):
            return InternalError(
                f"{text} This was time {self._seen[kind]}: it will fail again. Look at the update rule or the "
                "operation that it names."
            )
        return LostStateError(text)
