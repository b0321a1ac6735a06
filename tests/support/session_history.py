"""A hook that writes down what a session's program does and is told (docs/design/histories.md)."""

from __future__ import annotations

import os

from recorded_history import RecordedHistory, in_file

import globalstep as gs
from globalstep.cluster.run_policy import RUN_POLICY_VARIABLE


class SessionHistory(gs.train.SessionRunHook):
    """Writes down each run as an operation: a read of all, a look at the step, or else a push.

    Args:
        path: File of this process.
        everything: Fetches of a read; any other list is none.
        look: Fetch of the step by itself.
        seen: Gives what was read by name, the step first, from the values of `everything`.
        add: What a push adds, by name.
        start: What is read before the first push.
        last_step: Where the job ends.
    """

    def __init__(self, path, everything, look, seen, add, start, last_step):
        self._everything, self._look, self._seen, self._add = everything, look, seen, add
        self._process = self._f = self._last = None
        write = in_file(path)
        durable = "durability=log" in os.environ.get(RUN_POLICY_VARIABLE, "")
        rules = {"start": start, "limit": {"global_step": last_step}, "durable": durable}
        write({"f": "run", "value": rules})
        self._history = RecordedHistory(write)

    def before_run(self, context):
        """See SessionRunHook."""
        fetches, cluster = context.original_args.fetches, context.session.cluster
        if self._process == cluster.client_id:
            self._end("info", {})
        self._process = cluster.client_id
        self._f = "read" if fetches is self._everything else "look" if fetches is self._look else "push"
        given = {"incarnation": cluster.incarnation, **({"add": self._add} if self._f == "push" else {})}
        self._history.note(self._process, "invoke", self._f, given)
        return None if self._f == "push" else gs.train.SessionRunArgs(fetches)

    def after_run(self, context, values):
        """See SessionRunHook."""
        found, outcome = values.results, context.session.last_outcome
        if self._f == "push" and outcome is not self._last:
            self._last = outcome
            told = {"index": outcome.index, "read": dict(outcome.steps)}
            self._end("ok" if outcome.index else "fail", told if outcome.index else {})
        elif self._f == "look" and found is not None:
            self._end("ok", {"read": {"global_step": int(found)}})
        elif self._f == "read" and not any(value is None for value in found):
            self._end("ok", {"read": self._seen(found)})
        else:
            self._end("info", {})

    def _end(self, kind, told):
        self._history.note(self._process, kind, self._f, told)
        self._process = None
