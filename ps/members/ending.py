"""Whether a PS task may end though the job was not declared done, and what it says while it waits.

Programs end without a word: a loop that breaks, a session that is never closed, a crash before the first call. So a PS
task that is not used any more ends as well, after a time in which a lost client may come back.

Pure: `judge` is a function of what there is; a Vigil has a clock and writes to the log.

Layer: ps. Threads: a Vigil belongs to the thread that serves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from globalstep.errors import InvalidArgumentError
from globalstep.ps.members.presence import LINGER_SECS, Absence, ClientView, State
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import Clock

_log = logging.getLogger("globalstep")

#: Exit code of a PS task that was abandoned: its job was not declared done, and no client came, or came back.
EXIT_ABANDONED = 3
#: The environment variables that set them.
START_VARIABLE = "GLOBALSTEP_PS_START_SECS"
ABANDON_VARIABLE = "GLOBALSTEP_PS_ABANDON_SECS"
#: After so long a wait is worth a line; each further line takes twice as long, up to the second number.
_QUIET_SECS = 5.0
#: And as long as no run has begun here: programs take their time to start.
_START_QUIET_SECS = 30.0
_LONGEST_QUIET_SECS = 600.0
#: Tasks that a line names.
_MOST_NAMED = 8


@dataclass(frozen=True)
class Patience:
    """Times for which a PS task waits when no client is there; 0 is for ever."""

    #: For the first client. As long as a chief waits for the PS tasks.
    start_secs: float = 7200.0
    #: For a client to come back, or for a task of the ClusterSpec that never came. Longer than a container engine
    #: takes to start a task again that has failed many times (300 s); as long as a session tries to reach a PS task.
    abandon_secs: float = 600.0

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Patience:
        """Read it from GLOBALSTEP_PS_START_SECS and GLOBALSTEP_PS_ABANDON_SECS.

        Raises:
            InvalidArgumentError: If one of them is no number of seconds.

        >>> Patience.from_environ({"GLOBALSTEP_PS_ABANDON_SECS": "60"})
        Patience(start_secs=7200.0, abandon_secs=60.0)
        """
        return cls(_secs(environ, START_VARIABLE, cls.start_secs), _secs(environ, ABANDON_VARIABLE, cls.abandon_secs))


def _secs(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name) or ""
    try:
        secs = float(text) if text else default
    except ValueError:
        secs = -1.0
    if not 0 <= secs < math.inf:
        raise InvalidArgumentError(f"{name} is {text!r}; it must be a number of seconds, or 0 for ever.")
    return secs


@dataclass(frozen=True, slots=True)
class Verdict:
    """The wait of a PS task that does not end yet."""

    #: For people.
    why: str
    #: How long this has been so.
    secs: float
    #: After how many it ends; infinity for never.
    limit_secs: float = math.inf
    #: With which exit code, and which option says when.
    code: int = 0
    option: str = ""

    @property
    def due(self) -> bool:
        """Whether the task is to end now."""
        return self.secs >= self.limit_secs

    def text(self) -> str:
        """Say what is waited for, and until when."""
        if self.limit_secs == math.inf:
            return f"{self.why}."
        left = max(self.limit_secs - self.secs, 0.0)
        ends = f"This PS task ends in {left:.0f} s with code {self.code}"
        return f"{self.why}. {ends} unless a client comes ({self.option})."


def judge(state: State, clients: list[ClientView], absence: Absence, patience: Patience) -> Verdict | None:
    """Say what a PS task waits for that is not over; None where it is in use, so that nothing is waited for.

    Args:
        state: The task's.
        clients: Those with a live lease.
        absence: Who is not there, and since when.
        patience: How long to wait for them.
    """
    if clients:
        names = _named(sorted({view.task or view.client for view in clients}))
        if state is State.DONE:
            return Verdict(f"The job is done; waiting for {names} to leave", absence.done_secs)
        if state is State.READY:
            return None
        word = "holds no model" if state is State.VACANT else "is being initialized"
        return Verdict(f"This PS task {word}; {names}: waiting for the chief's model", absence.since_secs)
    if state is State.DONE and absence.herald:
        why = f"The job is done, as {absence.herald} said, which is gone and may not have told all PS tasks"
        return Verdict(why, absence.since_secs, patience.abandon_secs or math.inf, 0, "--abandon-secs")
    if state is State.DONE:
        late = f"waiting up to {LINGER_SECS:.0f} s for {_named(absence.missing)}, which never came"
        return Verdict(f"The job is done; {late}", absence.done_secs)
    if not absence.came:
        return Verdict(
            "No client has come yet; waiting for a chief, or a session, to begin a run",
            absence.since_secs,
            patience.start_secs or math.inf,
            EXIT_ABANDONED,
            "--start-secs",
        )
    limit_secs = patience.abandon_secs or math.inf
    ways = sorted(set(absence.failed.values()))
    reasons = [f"{_named(sorted(task for task, way in absence.failed.items() if way == how))} {how}" for how in ways]
    if absence.missing:
        reasons.append(f"{_named(absence.missing)} never came")
    if state is not State.READY:
        # Only the chief's FINISH says that the last step was saved; a client that leaves says nothing of the kind.
        reasons.append("this task holds no model, and nothing says that the last step was saved")
    code = EXIT_ABANDONED if reasons else 0
    if not reasons:
        reasons.append("all that came have left")
        if absence.expected:
            # Each task of the ClusterSpec has: clients hardly ever come back.
            limit_secs = min(limit_secs, LINGER_SECS)
    why = f"No client is left, and the job was not declared done: {'; '.join(reasons)}"
    return Verdict(why, absence.since_secs, limit_secs, code, "--abandon-secs")


def _named(names: Sequence[str]) -> str:
    """Name some; of many the first, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


class Vigil:
    """Watches over a PS task: says what it waits for, and when it may end.

    Args:
        shard: The task's state.
        patience: How long to wait when no client is there.
        clock: Time.
    """

    def __init__(self, shard: Shard, patience: Patience, clock: Clock) -> None:
        self._shard = shard
        self._patience = patience
        self._clock = clock
        self._busy_at = -math.inf
        self._traffic: object = None
        self._said_of = ""
        self._next_line = _QUIET_SECS
        # Whether a run has begun.
        self._began = False

    def over(self, traffic: object) -> int | None:
        """Look; give the exit code where the task is to end now, and None where it is not.

        Args:
            traffic: What data has come and gone so far: a change is a sign of life, of clients that keep no lease.
        """
        if self._shard.over():
            return 0
        now = self._clock.monotonic()
        if traffic != self._traffic:
            self._traffic, self._busy_at = traffic, now
        state, clients, absence = self._shard.attendance()
        self._began = self._began or state is not State.VACANT
        verdict = judge(state, clients, absence.later(now - self._busy_at), self._patience)
        if verdict is None:
            self._said_of = ""
            return None
        if verdict.due:
            ends = f"It ends with code {verdict.code} ({verdict.option} {verdict.limit_secs:g})."
            _log.warning("%s. No client has come for %.0f s. %s", verdict.why, verdict.secs, ends)
            return verdict.code
        if verdict.why != self._said_of:
            self._said_of, self._next_line = verdict.why, _QUIET_SECS
        if verdict.secs >= (self._next_line if self._began else max(self._next_line, _START_QUIET_SECS)):
            _log.warning("%s (for %.0f s now)", verdict.text(), verdict.secs)
            self._next_line = verdict.secs + min(max(verdict.secs, 25.0), _LONGEST_QUIET_SECS)
        return None
