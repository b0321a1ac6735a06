"""Console of the launcher: the lines of all tasks, each with its task's name, and one line of progress.

Layer: deploy. Not thread-safe: the launcher writes from its one event loop.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from typing import TextIO

from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.log_format import ERASE_LINE, PROGRESS_MARK, is_terminal, time_stamp, write_line
from globalstep.wire.names import printable

_COLOURS = {"chief": "32", "worker": "36", "ps": "35", "evaluator": "33"}


class Console:
    """Writes the lines of many tasks to one stream.

    On a terminal the newest progress stays visible as the last line; elsewhere progress is written as a
    plain line now and then.

    Args:
        stream: Where to write; nothing is written where it is None, or closed.
        environ: The environment; colours are left out when NO_COLOR is set, as they are off a terminal.
        progress_secs: Shortest time between two plain progress lines, in seconds.
        clock: Where time comes from.
        log_format: Of the lines, as `globalstep launch --log-format` takes it: "timed" puts the time before each; for
            "json" each is a JSON object with its task; one that is an object already gets it.
    """

    def __init__(
        self,
        stream: TextIO | None,
        environ: Mapping[str, str],
        progress_secs: float = 5.0,
        clock: Clock = SYSTEM_CLOCK,
        log_format: str = "text",
    ) -> None:
        self._json_lines = log_format == "json"
        self._timed = log_format == "timed"
        self._stream = stream
        self._live = is_terminal(stream) and environ.get("TERM") != "dumb"
        self._colours = self._live and not environ.get("NO_COLOR")
        self._progress_secs = progress_secs
        self._clock = clock
        self._progress = ""
        self._last_plain: float | None = None

    def stamp(self) -> str:
        """Give what a line begins with: the time and a blank, or nothing."""
        return f"{time_stamp(self._clock.time())} " if self._timed else ""

    def line(self, task: str, text: str) -> None:
        """Write a line of output."""
        if self._json_lines:
            self._write_json(task, text)
        elif text.startswith(PROGRESS_MARK):
            self._show_progress(task, text.removeprefix(PROGRESS_MARK))
        else:
            if not self._live:
                # Progress that was held back would be out of date, and out of order, after this line.
                self._progress = ""
            self._write(f"{self.stamp()}{self._prefix(task)} {text}")

    def say(self, text: str, below: Iterable[str] = ()) -> None:
        """Write a line of the launcher's own, and the output of another process in lines below it."""
        lines = [text, *(f"    {line}" for line in below)]
        if self._json_lines:
            self._write_json("launch", "\n".join(lines))
        else:
            self._write(self.stamp() + "\n".join(map(printable, lines)))

    def finish(self) -> None:
        """Write the newest progress if it has not been shown, and leave the cursor on a new line."""
        if self._progress:
            write_line(self._stream, "" if self._live else self._progress)
        self._progress = ""

    def _write_json(self, task: str, text: str) -> None:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            is_progress = text.startswith(PROGRESS_MARK)
            message = text.removeprefix(PROGRESS_MARK)
            found = {"time": self._clock.time(), "message": message} | ({"progress": True} if is_progress else {})
        write_line(self._stream, json.dumps({"task": task, **found}, ensure_ascii=False))

    def _show_progress(self, task: str, text: str) -> None:
        self._progress = f"{self._prefix(task)} {text}"
        if self._live:
            # A line wider than the terminal would wrap, and then could not be drawn over.
            columns = shutil.get_terminal_size().columns - len(f"[{task}] ") - 1
            self._progress = f"{self._prefix(task)} {text[:columns]}"
            write_line(self._stream, ERASE_LINE + self._progress, end="")
            return
        now = self._clock.monotonic()
        if self._last_plain is None or now - self._last_plain >= self._progress_secs:
            self._last_plain = now
            self._write(self.stamp() + self._progress)
            self._progress = ""

    def _write(self, text: str) -> None:
        if self._live and self._progress:
            write_line(self._stream, f"{ERASE_LINE}{text}\n{self._progress}", end="")
        else:
            write_line(self._stream, text)

    def _prefix(self, task: str) -> str:
        colour = _COLOURS.get(task.partition(":")[0])
        return f"\x1b[{colour}m[{task}]\x1b[0m" if self._colours and colour else f"[{task}]"
