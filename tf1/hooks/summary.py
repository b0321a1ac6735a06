"""SummarySaverHook: writes a graph's own summaries.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from globalstep.chief.hooks.summaries import SummarySaver
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.hooks.step import global_step_for
from globalstep.tf1.ops.summaries import SummaryWriterCache


class SummarySaverHook(SummarySaver):
    """Evaluates summaries with a run every so often, the first run among them, and writes them.

    Args:
        save_steps: Every so many global steps.
        save_secs: Or every so many seconds.
        output_dir: Where event files go.
        summary_writer: Or the writer to use.
        scaffold: Its `summary_op` is what is evaluated,
        summary_op: or this: a node of a serialized summary, or a list of them.
        clock: Where time comes from.

    Raises:
        ValueError: Unless exactly one of `scaffold` and `summary_op`, and of `save_steps` and
            `save_secs`, is given.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
        scaffold: Any = None,
        summary_op: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise ValueError("Exactly one of scaffold or summary_op must be provided.")
        self._summary_op = summary_op
        self._scaffold = scaffold
        super().__init__(save_steps, save_secs, output_dir, summary_writer, clock)

    def begin(self) -> None:
        """See SessionRunHook."""
        if self._writer is None and self._output_dir:
            self._writer = SummaryWriterCache.get(self._output_dir)
        super().begin()
        self._step = global_step_for("SummarySaverHook")

    def _find_fetched(self) -> Sequence[Any]:
        summary_op = self._summary_op if self._scaffold is None else self._scaffold.summary_op
        if summary_op is None:
            return ()
        return summary_op if isinstance(summary_op, (list, tuple)) else (summary_op,)
