"""The tokens by which a PS task knows its callers' roles: a file with a line for each, read again when it changes.

    # who    token
    chief    4d1f...
    worker   90ab...
    ps       77e0...

Several tokens may be of one role, so that one can be changed while both are in use. The file is a secret. A PS task
that asks another one something shows the first token of role ps.

Floor: ps. Threads: a RoleTokens is thread-safe.
"""

from __future__ import annotations

import hmac
import logging
import os
import threading
from collections.abc import Mapping

from globalstep.credentials import check_token, read_secret
from globalstep.errors import FailedPreconditionError

__all__ = ["ROLES", "RoleTokens", "parse_tokens"]

_log = logging.getLogger(__name__)

ROLES = ("chief", "standby", "worker", "ps")


def parse_tokens(text: str, path: str) -> dict[str, list[str]]:
    """Read what such a file says.

    Args:
        text: Its content.
        path: Its name, for messages, which have nothing of the content.

    Returns:
        Role -> its tokens.

    Raises:
        FailedPreconditionError: If a line is none, or one token is of several roles.

    >>> parse_tokens("worker 0123456789abcdef # all workers", "tokens")
    {'worker': ['0123456789abcdef']}
    """
    found: dict[str, list[str]] = {}
    roles: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] not in ROLES:
            raise FailedPreconditionError(
                f"Line {number} of the token file {path} must be a role ({', '.join(ROLES)}), a space, and a token."
            )
        role, token = words
        check_token(token, f"line {number} of {path}")
        if roles.setdefault(token, role) != role:
            raise FailedPreconditionError(f"The token in line {number} of {path} is of two roles.")
        found.setdefault(role, []).append(token)
    if not found:
        raise FailedPreconditionError(f"The token file {path} has no token.")
    return found


class RoleTokens:
    """The tokens of a file. Thread-safe.

    Args:
        path: The file.

    Raises:
        FailedPreconditionError: If it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        # Guards the attributes below; the file is read under it. A leaf.
        self._lock = threading.Lock()
        self._stamp = _stamp_of(path)
        self._tokens: Mapping[str, list[str]] = parse_tokens(read_secret(path), path)

    def role_of(self, token: str) -> str | None:
        """Give whose token it is; None for nobody's. What it takes does not tell how near a guess comes."""
        shown = token.encode(errors="replace")
        role = None
        for name, tokens in self._latest().items():
            for known in tokens:
                if hmac.compare_digest(known.encode(), shown):
                    role = name
        return role

    def of_ps(self) -> str:
        """Give the token that this PS task shows to others; "" for none."""
        return next(iter(self._latest().get("ps", ())), "")

    def _latest(self) -> Mapping[str, list[str]]:
        with self._lock:
            stamp = _stamp_of(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._tokens = parse_tokens(read_secret(self._path), self._path)
                except FailedPreconditionError as error:
                    _log.warning("The tokens stay as they were: %s", error)
            return self._tokens


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    """Give what changes when the file is written or replaced; None where it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
