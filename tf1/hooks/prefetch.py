"""PrefetchLookupHook: feeds batches, and fetches the next batch's rows with the push of the present one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues


class PrefetchLookupHook(SessionRunHook):
    """Feeds every run with the next batch, and prefetches the lookups of the one after it.

    The push of a run brings back the embedding rows that the next run looks up, as of right after that push: a
    step takes one round trip instead of two. What other workers push meanwhile is not in those rows, as it is
    not in dense values that come back with a push; `staleness` counts it. See `Session.prefetch` for when
    rows are fetched anew instead.

    A run that failed and is repeated is fed the same batch. After the last batch the hook requests a stop.

    Args:
        feeds: The feed_dict of each run, in order; taken one run early.

    Raises:
        ValueError: When the first run is asked for, if there is no batch at all.

    A program that trains on `(ids, labels)` pairs:

    ```python
    feeds = ({ids: batch_ids, labels: batch_labels} for batch_ids, batch_labels in batches)
    hooks = [gs.train.PrefetchLookupHook(feeds)]
    with gs.train.MonitoredTrainingSession(master, is_chief, hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)
    ```
    """

    #: The stop that it asks for is this task's own: other workers have batches of their own.
    ends_own_data = True

    def __init__(self, feeds: Iterable[Mapping[Any, Any]]) -> None:
        self._feeds = iter(feeds)
        self._present: Mapping[Any, Any] | None = None
        self._next: Mapping[Any, Any] | None = None

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See SessionRunHook."""
        if self._present is None:
            self._present = next(self._feeds, None)
            self._next = next(self._feeds, None)
        if self._present is None:
            raise ValueError("PrefetchLookupHook was given no batches, so there is nothing to feed a run with.")
        if self._next is not None:
            run_context.session.prefetch(self._next)
        return SessionRunArgs(None, feed_dict=self._present)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook."""
        if self._next is None:
            run_context.request_stop()
            return
        self._present, self._next = self._next, next(self._feeds, None)
