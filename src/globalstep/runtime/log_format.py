"""Standard streams, and formats of log lines: plain text, with the time, or one JSON object a line for collectors.

Plain text is the default: what reads the logs of programs for TensorFlow 1.x looks for lines that begin with the level.
GLOBALSTEP_LOG_FORMAT chooses for every process that globalstep logs in by itself; a program that has set up Python's
logging keeps what it has set up.

Layer: shared. Threads: a JsonFormatter is thread-safe. Imports nothing of globalstep but errors.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn, TextIO

from globalstep.errors import InvalidArgumentError

FORMATS = ("text", "timed", "json")
VARIABLE = "GLOBALSTEP_LOG_FORMAT"
#: Start lines of a task that are for its launcher: the progress to show, and, as JSON, where the run has ended.
PROGRESS_MARK, CONCLUSION_MARK = "\x1eprogress ", "\x1econclusion "
#: Begins a line of a terminal anew.
ERASE_LINE = "\r\x1b[K"
_TEXT = "%(levelname)s:globalstep:%(message)s"
#: What ends a line, or speaks to a terminal; in a traceback its own ends of lines are none of these.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_CONTROLS_OF_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON: time (seconds since the epoch), level, logger, message, pid, traceback.

    >>> record = logging.LogRecord("globalstep", logging.INFO, "", 0, "loss = %.1f", (0.5,), None)
    >>> json.loads(JsonFormatter().format(record))["message"]
    'loss = 0.5'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Give the line."""
        line = {
            "time": round(record.created, 6),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    r"""Writes a record as text. Text from other processes cannot pass for a log line: further lines are indented.

    What speaks to a terminal is escaped.

    >>> record = logging.LogRecord("globalstep", logging.INFO, "", 0, "%s is gone", ("x\nWARNING:\x1b[2J",), None)
    >>> TextFormatter().format(record)
    'INFO:globalstep:x\n    WARNING:\\x1b[2J is gone'

    Args:
        timed: Begin with the time.
    """

    def __init__(self, timed: bool = False) -> None:
        super().__init__(_TEXT)
        self._timed = timed

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Give the line, without a traceback."""
        line = _CONTROLS.sub(_escaped, super().formatMessage(record))
        return f"{time_stamp(record.created)} {line}" if self._timed else line

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's own name
        """Give a traceback; its own lines stay."""
        return _CONTROLS_OF_LINES.sub(_escaped, super().formatException(ei))


def _escaped(match: re.Match[str]) -> str:
    return "\n    " if match[0] == "\n" else match[0].encode("unicode_escape").decode("ascii")


def time_stamp(secs: float) -> str:
    """Give a time as a log line has it: UTC, with milliseconds.

    Args:
        secs: Since the epoch.

    >>> time_stamp(1_700_000_000.25)
    '2023-11-14T22:13:20.250Z'
    """
    whole, millis = divmod(int(secs * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{millis:03d}Z"


def chosen_format(asked: str = "", environ: Mapping[str, str] | None = None) -> str:
    """Decide between "text", "timed" and "json": what is asked for, else GLOBALSTEP_LOG_FORMAT, else text.

    Raises:
        InvalidArgumentError: If it is none of these.
    """
    chosen = asked or (os.environ if environ is None else environ).get(VARIABLE, "") or "text"
    if chosen not in FORMATS:
        raise InvalidArgumentError(f"The log format (or {VARIABLE}) is {chosen!r}; it must be one of {FORMATS}.")
    return chosen


def formatter(chosen: str) -> logging.Formatter:
    """Give the formatter of a format."""
    return JsonFormatter() if chosen == "json" else TextFormatter(timed=chosen == "timed")


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is at the moment, unless the program has set up logging by itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        # A word that is no format is no reason for a program not to start: the PS and the launcher refuse it.
        self.setFormatter(formatter(os.environ.get(VARIABLE, "text")))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The present sys.stderr."""
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        if is_open(sys.stderr) and not logging.getLogger().handlers:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Say on sys.stderr what went wrong, where that can be written."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            super().handleError(record)


def write_to_stderr() -> None:
    """Have the lines of the logger "globalstep" written, from all modules of globalstep.

    What a program begins with calls this: a session, a trainer, a client, a server. A second call changes nothing.
    """
    logger = logging.getLogger("globalstep")
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        logger.addHandler(_StderrHandler())


def is_open(stream: Any) -> bool:
    """Whether a stream can be written to."""
    return stream is not None and not getattr(stream, "closed", False)


def is_terminal(stream: Any) -> bool:
    """Whether a stream says that it is a terminal.

    >>> is_terminal(None), is_terminal(object())
    (False, False)
    """
    asked = getattr(stream, "isatty", None)
    try:
        return bool(is_open(stream) and asked is not None and asked())
    except (OSError, ValueError):  # it was closed underneath
        return False


def write_line(stream: Any, text: str, end: str = "\n") -> None:
    """Write a line, unless the stream takes none: a report on a program must not end it."""
    if not is_open(stream):
        return
    with contextlib.suppress(OSError, ValueError):
        # One write, so that no other line of this process comes between.
        stream.write(f"{text}{end}")
        if flush := getattr(stream, "flush", None):
            flush()


def end_process(code: int) -> NoReturn:
    """End this process at once, whatever its threads do; what was printed is written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
