"""The training loop's frame: sessions with hooks around each run, made anew where one is lost, and the end.

Follows TensorFlow 1.15, python/training/monitored_session.py. What differs: a recovery waits longer each
time and gives up in the end; a run that is refused because the job is done returns normally.

Layer: chief.
"""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from globalstep.chief.hooks.run_report import RunReport
from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.chief.sessions.draining import Drain
from globalstep.chief.sessions.run_model import RunSession
from globalstep.chief.sessions.session_creators import TaskCreator
from globalstep.errors import AbortedError, JobDoneError, OpError, OutOfRangeError, UnavailableError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger("globalstep")

#: Recoveries in a row, without a run that completed in between, before the error is raised.
MAX_RECOVERIES = 20
_FIRST_BACKOFF_SECS = 0.1
_LAST_BACKOFF_SECS = 10.0
#: Time for threads to end, and on the chief for the other workers to leave.
GRACE_SECS = 120.0
#: Errors after which the same run on a new session may succeed.
PREEMPTION_ERRORS = (AbortedError, UnavailableError)

_CALLER = "caller"
_NO_VALUES = SessionRunValues(None)


class HookedSession:
    """Runs the fetches of the caller and of all hooks as one run.

    Args:
        session: The session below.
        hooks: Called in this order.

    Attributes:
        limited: Whether it stops since the step limit has come, or the job is done.
        says_so: Whether it stops since a hook asked for that, for the whole job.
        lost: Why the session cannot be used any more, found by a hook after a run: that run is done, and
            its caller gets its values, but the next needs a new session.
    """

    def __init__(self, session: RunSession, hooks: Sequence[SessionRunHook]) -> None:
        self._session = session
        self._before = [(at, hook.before_run) for at, hook in enumerate(hooks) if _acts(hook, "before_run")]
        self._after = [(at, hook, hook.after_run) for at, hook in enumerate(hooks) if _acts(hook, "after_run")]
        self._stop_requested = False
        self._refused = False
        self.limited = self.says_so = False
        self.lost: OpError | None = None

    @property
    def should_stop(self) -> bool:
        """Whether a hook asked for a stop, or the job is done."""
        return self._stop_requested or self._refused or self._session.cluster.job_done()

    def _stop(self, hook: SessionRunHook | None) -> None:
        """Remember the hook that asked for a stop first."""
        if not self._stop_requested:
            self._stop_requested = True
            self.limited = self.limited or hasattr(hook, "store_limit")
            self.says_so = not (self.limited or getattr(hook, "ends_own_data", False))

    def run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        """Run with hooks; see MonitoredSession.run.

        A run whose push is refused because the job is done returns normally, with the values that were
        computed before the push and None for the others. So does the first one that waits for a queue although the
        job is done; a further one raises, so that a loop without an end of its own comes to one.
        """
        if self._stop_requested:
            raise RuntimeError("Run called even after should_stop requested.")
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict), self._session)
        of_hooks: dict[Any, Any] = {}
        feeds = self._before_run(context, of_hooks, feed_dict)
        # In nearly every run no hook asks for anything.
        asked = {_CALLER: fetches, **of_hooks} if of_hooks else fetches
        try:
            values: Any = self._session.run(asked, feeds, options, run_metadata)
        except JobDoneError as done:
            if self._refused and done.waited:
                raise
            self._refused = self.limited = True
            values = nothing_for(asked) if done.values is None else done.values
        except UnavailableError:
            if not self._session.cluster.job_done():
                raise
            # The PS tasks have ended with the job, as they had said; no push would be accepted any more.
            self._refused = self.limited = True
            values = nothing_for(asked)
        if of_hooks:
            of_hooks, values = values, values[_CALLER]
        given = _NO_VALUES if options is run_metadata is None else SessionRunValues(None, options, run_metadata)
        if context.stop_requested:
            self._stop(None)
        try:
            for position, hook, after_run in self._after:
                own = of_hooks.get(position) if of_hooks else None
                after_run(context, given if own is None else SessionRunValues(own, options, run_metadata))
                if context.stop_requested:
                    self._stop(hook)
        except PREEMPTION_ERRORS as error:
            self.lost = error
        return values

    def _before_run(
        self, context: SessionRunContext, asked: dict[Any, Any], feed_dict: Mapping[Any, Any] | None
    ) -> dict[Any, Any] | None:
        """Collect what the hooks ask for into `asked`, by their positions; give all that is to be fed."""
        hook_feeds: dict[Any, Any] = {}
        for position, before_run in self._before:
            request = before_run(context)
            if request is None:
                continue
            if request.fetches is not None:
                asked[position] = request.fetches
            if request.feed_dict:
                _check_disjoint(hook_feeds, request.feed_dict, "Same tensor is fed by two hooks.")
                hook_feeds.update(request.feed_dict)
        if not feed_dict:
            return hook_feeds or None
        _check_disjoint(feed_dict, hook_feeds, "Same tensor is fed by a SessionRunHook and user.")
        return {**hook_feeds, **feed_dict}


def let_go_of(error: BaseException | None) -> None:
    """Have the frames that an error went through, and what led to it, hold nothing any more: values, a lost session.

    Args:
        error: One that has been dealt with. Frames that still run are left alone.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _acts(hook: SessionRunHook, call: str) -> bool:
    """Whether a hook overrides a method of its base class."""
    return getattr(getattr(hook, call), "__func__", None) is not getattr(SessionRunHook, call)


def _check_disjoint(one: Mapping[Any, Any], other: Mapping[Any, Any], message: str) -> None:
    clash = set(one) & set(other)
    if clash:
        names = sorted(str(getattr(node, "name", node)) for node in clash)
        raise RuntimeError(f"{message} Conflict(s): {names}")


def nothing_for(fetches: Any) -> Any:
    """Give the structure of `fetches` with None for every value.

    >>> nothing_for({"a": ["x", ("y",)]})
    {'a': [None, (None,)]}
    """
    if isinstance(fetches, Mapping):
        return {key: nothing_for(item) for key, item in fetches.items()}
    if isinstance(fetches, tuple) and hasattr(fetches, "_fields"):
        return type(fetches)(*(nothing_for(item) for item in fetches))
    if isinstance(fetches, (list, tuple)):
        return type(fetches)(nothing_for(item) for item in fetches)
    return None


class StopRequested(StopIteration):
    """Ends a loop because its program says so, not because its data have ended."""


class TrainLoop:
    """The loop around training steps: it joins the run, recovers, calls hooks, stops and ends.

    Args:
        session_creator: Makes the sessions.
        hooks: Called around every run, in this order.
        recover: Whether a session that is lost is made anew.
        stop_grace_period_secs: Time for threads to end, and on the chief for the other workers to leave, in seconds.
        clock: Where time comes from.
        report: Tells at the end how the run went; it is among the hooks of this task, or of the chief that it may
            become.

    Threads: belongs to the thread that made it.
    """

    def __init__(
        self,
        session_creator: Any,
        hooks: Sequence[SessionRunHook],
        recover: bool = True,
        stop_grace_period_secs: float = GRACE_SECS,
        clock: Clock = SYSTEM_CLOCK,
        report: RunReport | None = None,
    ) -> None:
        self._hooks = list(hooks)
        self._report = report
        self._creator = session_creator
        self._ours = session_creator if isinstance(session_creator, TaskCreator) else None
        self._role_changes = self._ours is not None and self._ours.may_outdate
        # The hooks of the present session: those of the chief come and go with its lease.
        self._active = self._hooks
        self._recover_errors = PREEMPTION_ERRORS if recover else ()
        self._grace_secs = stop_grace_period_secs
        self._clock = clock
        self._recoveries = 0
        self._closed = False
        self._drain = Drain()
        self._pid = os.getpid()
        # Whether the program asks should_stop(), and so ends by itself when it should.
        self._asks = False
        self._over = False
        # Whether the program has said that the job is to end, whatever the others still have to do.
        self._says_so = False
        # Whether the end of the job is safe: its last step is saved, or none was asked for.
        self._is_safe = False
        # Whether this task, a worker, waits for that.
        self._awaits_save = False
        self._session: Any = None
        self._hooked: HookedSession | None = None
        self._coord: Coordinator | None = None
        if self._ours is not None:
            self._ours.begin(self._hooks, self._drain.attend)
        else:
            for hook in self._hooks:
                hook.begin()
        self._drain.watch()
        try:
            self._session_for_run()
        except JobDoneError as done:
            # There is nothing left to do: should_stop() is True from the start.
            _log.info("%s", done)
            self._over = True
        except BaseException:
            self._drain.unwatch()
            self._leave_model()
            raise

    def should_stop(self) -> bool:
        """Say whether the loop should end: a hook asked, a thread failed, job done, SIGTERM, Ctrl-C, or closed.

        At the step limit the chief saves first, and a worker waits for that: where a PS task loses the last steps
        before they are saved, training goes on.
        """
        self._asks = True
        while not (self._closed or self._over or self._drain.asked):
            try:
                hooked, coord = self._session_for_run(), self._coord
                asked = coord is not None and coord.should_stop()
                if asked and coord is not None:
                    coord.raise_requested_exception()
                if not hooked.should_stop:
                    return asked
                if self._secure(hooked):
                    return True
            except Exception as error:
                if not self._recover_errors:
                    raise
                if not isinstance(error, self._recover_errors):
                    return True
                self._discard(error)
        return True

    def end_job(self) -> None:
        """On the chief: end the job with this session, although other tasks still train."""
        self._says_so = True

    def close(self) -> None:
        """End: the hooks' `end`, then the threads, then the session.

        Raises:
            RuntimeError: If it is closed already.
        """
        self._close(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        ends = kind is not None and issubclass(kind, (SystemExit, KeyboardInterrupt))
        over = self._hooked is not None and self._hooked.should_stop
        # A signal to a whole group ends what a step needs, such as a DataLoader's processes: that is no failure.
        drained = self._drain.asked and kind is not None and (ends or not over)
        if drained and not ends:
            _log.warning("The step that was running when %s came did not finish: %s", self._drain.by, error)
        clean = kind is None or drained or issubclass(kind, (OutOfRangeError, StopIteration))
        self._says_so = self._says_so or isinstance(error, StopRequested)
        self._close(None if clean else kind)
        return clean

    def with_session(self, act: Callable[[Any], Any]) -> Any:
        """Call `act` with the session, without hooks; on a new session if the old one is lost."""
        return self.run_hooked(act=lambda hooked: act(self._session))

    def run_hooked(self, *args: Any, act: Callable[..., Any] = HookedSession.run) -> Any:
        """Run with hooks, or call `act` with the hooked session and `args`; on a new session if the old one is lost."""
        while True:
            if self._closed:
                raise RuntimeError("Attempted to use a closed session.")
            if self._drain.asked and not self._asks:
                raise self._drain.exit()
            try:
                hooked = self._session_for_run()
                try:
                    result = act(hooked, *args)
                except Exception as error:
                    self._raise_cause_of(error)
                    raise
            except self._recover_errors as error:
                self._discard(error)
                continue
            self._recoveries = 0
            # The run was carried out and must not be again; only its session is lost.
            lost = self._hooked.lost if self._hooked is not None else None
            if lost is not None:
                if not self._recover_errors:
                    raise lost
                self._discard(lost)
            return result

    def _raise_cause_of(self, error: Exception) -> None:
        """Raise what a thread has reported, if that was a lost connection: it may be the cause of what a run met."""
        if isinstance(error, PREEMPTION_ERRORS) or self._coord is None:
            return
        try:
            self._coord.raise_requested_exception()
        except PREEMPTION_ERRORS:
            raise
        except Exception as reported:
            _log.debug("A thread had reported: %s", reported)

    def _session_for_run(self) -> HookedSession:
        """Give the session; it is made if there is none, or if this task's role has changed."""
        if self._role_changes and self._ours and self._hooked and (why := self._ours.outdated(self._session)):
            _log.warning("The session is made anew: %s.", why)
            self._release()
        while self._hooked is None:
            try:
                with self._drain.interruptible("made its session"):
                    self._create()
            except self._recover_errors as error:
                self._discard(error)
        return self._hooked

    def _create(self) -> None:
        self._session = self._creator.create_session()
        self._active = self._hooks if self._ours is None else self._ours.active_hooks()
        self._drain.attend(getattr(self._session, "cluster", None))
        # Every exception of a thread counts here: none is a clean stop.
        self._coord = Coordinator(clean_stop_exception_types=(), clock=self._clock)
        try:
            self._start_threads(self._session, self._coord)
            for hook in self._active:
                hook.after_create_session(self._session, self._coord)
        except BaseException:
            # What was started must not outlive the error, which is the one to report.
            with contextlib.suppress(Exception):
                self._release()
            raise
        self._hooked = HookedSession(self._session, self._active)

    def _discard(self, error: BaseException) -> None:
        """Close a session that is lost, and wait a little; raises `error` once that was done too often."""
        if self._drain.asked:
            _log.warning("The step that was running when %s came did not finish: %s", self._drain.by, error)
            raise self._drain.exit() from error
        self._recoveries += 1
        if self._recoveries > MAX_RECOVERIES:
            _log.error("Giving up after %d recoveries without a completed run.", MAX_RECOVERIES)
            raise error
        backoff_secs = min(_FIRST_BACKOFF_SECS * 2 ** (self._recoveries - 1), _LAST_BACKOFF_SECS)
        text = (
            "The session was lost and is closed; a new one is made in %.1f s (recovery %d of at most %d in a row). "
            "Cause: %s: %s"
        )
        _log.warning(text, backoff_secs, self._recoveries, MAX_RECOVERIES, type(error).__name__, error)
        let_go_of(error)
        try:
            self._release()
        except Exception as late:
            _log.info("While closing the lost session: %s: %s", type(late).__name__, late)
        with self._drain.interruptible("had lost its session"):
            self._clock.sleep(backoff_secs)

    def _close(self, failed: type[BaseException] | None) -> None:
        """End, and have the report say how the run went."""
        try:
            self._end_session(failed)
        except SystemExit:
            if self._report is not None:
                self._report.conclude(stopped=True)
            raise
        except BaseException as error:
            if self._report is not None:
                self._report.conclude(failed=failed or type(error))
            raise
        if self._report is not None:
            self._report.conclude(failed=failed)

    def _end_session(self, failed: type[BaseException] | None) -> None:
        if self._closed:
            raise RuntimeError("Session is already closed.")
        if os.getpid() != self._pid:
            self._closed = True  # a forked child: all of it is the parent's, which goes on
            return
        drained = self._drained
        self._drain.leaves = True
        try:
            if failed is None and self._session is not None:
                if not drained:
                    self._end()
                    drained = self._drained
                if drained:
                    self._hand_over()
        finally:
            self._closed = True
            try:
                self._release(for_good=True)
            finally:
                self._leave_model()
                self._drain.unwatch()
        if drained and failed is None:
            raise self._drain.exit()

    @property
    def _drained(self) -> bool:
        """Whether the process ends because it was asked to, while the job goes on."""
        stops = self._hooked is not None and self._hooked.should_stop
        return self._drain.asked and (self._awaits_save or not stops)

    def _secure(self, hooked: HookedSession) -> bool:
        """At the step limit: have the last step saved. False where this task is the chief now, with a new session."""
        ours = self._ours
        if ours is None or self._is_safe or hooked.says_so or self._says_so:
            return True
        if ours.acts:
            ours.secure_last_step(self._session, self._active, self._grace_secs)
        else:
            self._awaits_save = True
            with self._drain.interruptible("waited for the last step to be saved"):
                takes_over = ours.secure_last_step(self._session, self._active, self._grace_secs)
            self._awaits_save = False
            if takes_over:
                self._release()
                self._session_for_run()
                return False
        self._is_safe = True
        return True

    def _end(self) -> None:
        """Do what has to be done at the end of the job; on a new session if the old one is lost meanwhile.

        Returns early where the process is asked to end while this task waits for others.
        """
        hooked, life = self._hooked, self._life
        limited = hooked is not None and hooked.limited
        stops = hooked is not None and hooked.says_so
        self._says_so = self._says_so or stops or (self._coord is not None and self._coord.should_stop())
        ended: set[int] = set()
        while True:
            try:
                self._session_for_run()
                goes_on = limited and not self._is_safe and self._life != life and self._ours is not None
                if not (goes_on and self._ours is not None and self._ours.goes_on(self._session)):
                    if self._finish_training():
                        self._end_hooks(ended)
                    return
            except self._recover_errors as error:
                self._discard(error)
                continue
            except JobDoneError as done:
                if self._session is not None:
                    raise
                _log.info("%s", done)  # as where there is nothing left to do from the start
                return
            raise AbortedError(
                "A PS task lost the last steps before they were saved, and this task's loop is over, so it cannot "
                "train them again: the same command continues. (A loop that asks should_stop() is told to go on.)"
            )

    @property
    def _life(self) -> int:
        """The incarnation of the present session; 0 without one, or with one of another kind of creator."""
        return 0 if self._session is None or self._ours is None else int(self._session.cluster.incarnation)

    def _finish_training(self) -> bool:
        """Have the others end too, and the last step saved; False where the process is asked to end meanwhile."""
        ours = self._ours
        if ours is None or self._is_safe:
            return True
        if not self._says_so:
            ours.await_others(self._session, self._waits, self._keep_watch())
            if self._drained:
                return False
        if self._says_so:
            ours.end_for_all(self._session, self._grace_secs)
        while not self._secure(self._session_for_run()):
            pass
        return True

    def _waits(self) -> bool:
        """Whether nothing keeps this task from waiting for the others."""
        return not (self._drain.asked or self._says_so)

    def _keep_watch(self) -> Callable[[], None]:
        """Make what has the chief's hooks see a step of others."""
        watch = HookedSession(self._session, [hook for hook in self._active if getattr(hook, "keeps_watch", False)])

        def keep_watch() -> None:
            self._session.forget_values()
            watch.run([])
            if watch.lost is not None:
                raise watch.lost
            self._says_so = self._says_so or watch.says_so

        return keep_watch

    def await_rest(self, goes_on: Callable[[], bool]) -> None:
        """Wait, once this task has had its last batches, until the others have trained theirs.

        Args:
            goes_on: Says whether to wait any longer: not where the run has gone back, so that there are batches again.
        """

        def wait(hooked: HookedSession) -> None:
            if self._ours is not None:
                from globalstep.chief.sessions.other_tasks import await_rest

                await_rest(self._session.cluster, self._clock, lambda: goes_on() and self._waits(), self._keep_watch())

        self.run_hooked(act=wait)

    def _end_hooks(self, ended: set[int]) -> None:
        """Call the hooks' `end`, once each, and declare the job done."""
        for hook in self._active:
            if id(hook) not in ended:
                hook.end(self._session)
                ended.add(id(hook))
        if self._ours is not None:
            self._ours.after_end(self._session)

    def _hand_over(self) -> None:
        """Do what has to be done when the process ends and the job goes on: the chief's hooks save."""
        _log.warning("%s: this task hands over its work and exits with %d.", self._drain.by, self._drain.exit_code)
        with self._drain.undisturbed():
            for hook in self._active:
                try:
                    hook.end(self._session)
                except OpError as error:
                    _log.warning("%s could not end as it should: %s", type(hook).__name__, error)

    def _start_threads(self, session: RunSession, coord: Coordinator) -> None:
        """Start what belongs to a new session, and ends with it."""

    def _leave_model(self) -> None:
        """Leave the model as it was before the loop."""

    def _release(self, for_good: bool = False) -> None:
        """Stop the threads, then close the session; for good, the chief's lease is left too."""
        coord, session = self._coord, self._session
        self._hooked = self._coord = self._session = None
        try:
            if coord is not None:
                coord.request_stop()
                self._drain.join(coord, self._grace_secs)
        finally:
            if session is not None:
                if self._ours is not None and (for_good or self._drain.asked):
                    session.cluster.chief_lease.given_up_on_leaving = True
                session.close()
