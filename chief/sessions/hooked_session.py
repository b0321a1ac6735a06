"""Session with hooks around each of its runs.

Follows TensorFlow 1.15, python/training/monitored_session.py.

Layer: chief.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from globalstep.chief.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from globalstep.chief.sessions.run_model import RunSession
from globalstep.errors import AbortedError, JobDoneError, OpError, UnavailableError

__all__ = ["PREEMPTION_ERRORS", "HookedSession", "let_go_of"]

#: Errors after which the same run on a new session may succeed.
PREEMPTION_ERRORS = (AbortedError, UnavailableError)

_CALLER = "caller"


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
        self._before = [(at, hook) for at, hook in enumerate(hooks) if _acts(hook, "before_run")]
        self._after = [(at, hook) for at, hook in enumerate(hooks) if _acts(hook, "after_run")]
        self._stop_requested = False
        self._refused = False
        self.limited = self.says_so = False
        self.lost: OpError | None = None

    @property
    def should_stop(self) -> bool:
        """Whether a hook asked for a stop, or the job is done."""
        return self._stop_requested or self._refused or self._session.cluster.job_done()

    def _stop(self, hook: SessionRunHook | None) -> None:
        """Take note of who has asked for a stop first."""
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
        given = SessionRunValues(None, options, run_metadata)
        if context.stop_requested:
            self._stop(None)
        try:
            for position, hook in self._after:
                own = of_hooks.get(position)
                hook.after_run(context, given if own is None else SessionRunValues(own, options, run_metadata))
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
        for position, hook in self._before:
            request = hook.before_run(context)
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
    """Whether a hook does something at a call, which its base does not."""
    return getattr(getattr(hook, call), "__func__", None) is not getattr(SessionRunHook, call)


def _check_disjoint(one: Mapping[Any, Any], other: Mapping[Any, Any], message: str) -> None:
    clash = set(one) & set(other)
    if clash:
        names = sorted(str(getattr(node, "name", node)) for node in clash)
        raise RuntimeError(f"{message} Conflict(s): {names}")


def nothing_for(fetches: Any) -> Any:
    """Give the structure of `fetches` with None for every value.

    Args:
        fetches: A node, or dicts, lists, tuples and namedtuples of them.

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
