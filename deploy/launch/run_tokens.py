"""Tokens of runs on this machine, kept so that the commands that look at a run find them by a PS task's address.

A folder of the user's own has a file for each address, which no other user can read. A launcher keeps the file while
its run lasts; one that was killed leaves it, and then it is not used.

Layer: deploy. Threads: functions; any number at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import platformdirs

__all__ = ["find_run_token", "kept"]


@contextlib.contextmanager
def kept(addresses: Sequence[str], token: str) -> Iterator[None]:
    """Keep a run's token meanwhile; nothing happens where there is none, or no folder for it.

    Args:
        addresses: Of the PS tasks, "host:port".
        token: The token.
    """
    written: list[Path] = []
    try:
        with contextlib.suppress(
            OSError, RuntimeError
        ):  # a user without a home, or with a full one: commands ask for it
            if token:
                _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            for address in addresses if token else ():
                path = _path(address)
                path.unlink(missing_ok=True)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                written.append(path)
                with open(descriptor, "w", encoding="ascii") as file:
                    json.dump({"token": token, "host": os.uname().nodename, "process": os.getpid()}, file)
        yield
    finally:
        for path in written:
            path.unlink(missing_ok=True)


def find_run_token(address: str) -> str:
    """Give the token of the run that a PS task's address belongs to; "" where none is known.

    Args:
        address: "host:port".
    """
    try:
        path = _path(address)
        if path.stat().st_mode & 0o077:
            return ""
        fields = json.loads(path.read_text("ascii"))
        if fields["host"] == os.uname().nodename and not Path("/proc", str(int(fields["process"]))).exists():
            return ""
        return str(fields["token"])
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return ""


def _folder() -> Path:
    return platformdirs.user_state_path("globalstep") / "tokens"


def _path(address: str) -> Path:
    return _folder() / re.sub(r"[^\w.-]", "_", address)
