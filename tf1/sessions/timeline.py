"""`Timeline`: turns what a traced run has left in its RunMetadata into a Chrome trace.

Follows TensorFlow 1.15, python/client/timeline.py: the JSON has the same fields, so what reads TensorFlow's reads it.
"""

from __future__ import annotations

import json
from typing import Any

from globalstep.tf1.execution.tracing import named_row

__all__ = ["Timeline"]


class Timeline:
    """The spans of a run's time, for trace viewers.

    Args:
        step_stats: `RunMetadata.step_stats` of a run with `RunOptions(trace_level=RunOptions.FULL_TRACE)`.
        graph: Accepted as in TensorFlow.
    """

    def __init__(self, step_stats: Any, graph: Any = None) -> None:
        self._step_stats = step_stats

    def generate_chrome_trace_format(self, show_dataflow: bool = True, show_memory: bool = False) -> str:
        """Give the trace as JSON, for https://ui.perfetto.dev or chrome://tracing.

        Args:
            show_dataflow: Accepted as in TensorFlow: spans are those of a whole run, not of single nodes.
            show_memory: Accepted as in TensorFlow.
        """
        events: list[dict[str, Any]] = []
        for process, device in enumerate(self._step_stats.dev_stats, 1):
            events.append(named_row("process_name", process, 0, device.device))
            for thread, name in sorted(device.thread_names.items()):
                events.append(named_row("thread_name", process, thread, name))
            for span in device.node_stats:
                events.append(
                    {
                        "ph": "X",
                        "cat": "Op",
                        "name": span.node_name,
                        "pid": process,
                        "tid": span.thread_id,
                        "ts": span.all_start_micros,
                        "dur": span.all_end_rel_micros,
                        "args": {"name": span.node_name, "op": span.node_name, "label": span.timeline_label},
                    }
                )
        return json.dumps({"traceEvents": events}, indent=4)
