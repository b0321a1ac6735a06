"""`gs.logging`: TensorFlow's logging functions over Python's own logging.

Everything goes to the logger "globalstep". Its lines read `INFO:globalstep:loss = 1.396970 at step 1` as
long as the program has not set up logging by itself; then its handlers get them instead. With
GLOBALSTEP_LOG_FORMAT=json they are JSON objects (globalstep.runtime.log_format, which writes them).

Thread-safe, as Python's logging is.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator
from logging import DEBUG, ERROR, FATAL, INFO
from logging import WARNING as WARN
from typing import Any

from globalstep.runtime.log_format import write_to_stderr

__all__ = [
    "DEBUG",
    "ERROR",
    "FATAL",
    "INFO",
    "WARN",
    "debug",
    "error",
    "fatal",
    "flush",
    "get_logger",
    "get_verbosity",
    "info",
    "log",
    "log_every_n",
    "log_first_n",
    "log_if",
    "set_verbosity",
    "vlog",
    "warn",
    "warning",
]

_logger = logging.getLogger("globalstep")
write_to_stderr()


debug = _logger.debug
info = _logger.info
warning = warn = _logger.warning
error = _logger.error
fatal = _logger.critical
log = _logger.log


def get_logger() -> logging.Logger:
    """Give the logger that all of globalstep's lines go through."""
    return _logger


def set_verbosity(level: int) -> None:
    """Log only what is at least as important as `level`, e.g. `gs.logging.INFO`. Default: WARN."""
    _logger.setLevel(level)


def get_verbosity() -> int:
    """Give the level that is in force."""
    return _logger.getEffectiveLevel()


def vlog(level: int, msg: str, *args: Any) -> None:
    """Log at a numeric level of Python's logging."""
    _logger.log(level, msg, *args)


def log_if(level: int, msg: str, condition: object, *args: Any) -> None:
    """Log `msg % args` at `level` (such as `logging.INFO`) if `condition` is true."""
    if condition:
        _logger.log(level, msg, *args)


_counters: dict[object, Iterator[int]] = {}


def log_every_n(level: int, msg: str, n: int, *args: Any) -> None:
    """Log `msg % args` at `level`: the first and then every `n`-th call from the same line of the program."""
    log_if(level, msg, _calls_before(sys._getframe(1)) % n == 0, *args)


def log_first_n(level: int, msg: str, n: int, *args: Any) -> None:
    """Log `msg % args` at `level`: the first `n` calls from the same line of the program."""
    log_if(level, msg, _calls_before(sys._getframe(1)) < n, *args)


def _calls_before(frame: Any) -> int:
    # setdefault and next are atomic in CPython, so that threads on one line share one count.
    line = (frame.f_code.co_filename, frame.f_lineno)
    return next(_counters.setdefault(line, itertools.count()))


def flush() -> None:
    """Write out what the handlers hold back."""
    for handler in _logger.handlers:
        handler.flush()
