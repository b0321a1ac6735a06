"""The tokens by which a PS task knows its callers' roles: a file with a line for each, read again when it changes.

    # who          token
    chief          4d1f...
    worker         90ab...
    worker:alice   c3d8...    variables=emb/*,dense/w
    ps             77e0...

Several tokens may be of one role, so that one can be changed while both are in use, or each worker can have its own,
under a name. A token with `variables=` reads and changes Variables of these names only. The file is a secret. A PS task
that asks another one something shows the first token of role ps.

Layer: ps. Threads: a RoleTokens is thread-safe.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from globalstep.errors import FailedPreconditionError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.security.credentials import RUN_TOKEN, check_token, read_secret
from globalstep.security.token_proofs import token_id

_log = logging.getLogger(__name__)

ROLES = ("chief", "standby", "worker", "ps")
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_VARIABLES = "variables="
#: A file that is written anew is empty for a moment; one that stays so for longer, or is gone, has no tokens.
EMPTY_SECS = 1.0
#: How often the file is looked at for callers that were let in before.
LOOK_SECS = 0.5


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One line of the file.

    Attributes:
        role: Whose it is.
        token: The secret.
        name: Which of that role, "" for any.
        variables: Patterns of the Variables that it may read and change; None for all.
        mark: Stands for the whole line, and tells nothing about the token.
    """

    role: str
    token: str = field(repr=False)
    name: str = ""
    variables: tuple[str, ...] | None = None
    mark: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        whole = "\n".join((self.role, self.token, self.name, *(self.variables or ("",))))
        object.__setattr__(self, "mark", hashlib.sha256(whole.encode()).hexdigest())


def token_lines(text: str, path: str) -> list[TokenLine]:
    """Read the lines of a tokens file.

    Args:
        text: Its content.
        path: Its name, for messages, which have nothing of the content.

    Returns:
        Its lines, in order.

    Raises:
        FailedPreconditionError: If a line is none, or one token is in several lines that differ.
    """
    lines: dict[str, TokenLine] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        role, colon, name = words[0].partition(":")
        patterns = words[2].removeprefix(_VARIABLES).split(",") if len(words) == 3 else []
        good = len(words) == 2 or (len(words) == 3 and words[2].startswith(_VARIABLES) and role == "worker")
        if not good or role not in ROLES or (colon and not _NAME.fullmatch(name)) or not all(patterns):
            raise FailedPreconditionError(
                f"Line {number} of the token file {path} must be a role ({', '.join(ROLES)}; worker:NAME for one of "
                "several), a space, and a token; for workers perhaps variables=PATTERN,... after another space."
            )
        check_token(words[1], f"line {number} of {path}")
        entry = TokenLine(role, words[1], name, tuple(patterns) or None)
        if lines.setdefault(entry.token, entry) != entry:
            raise FailedPreconditionError(
                f"The token in line {number} of {path} is of two roles, names or lists of Variables."
            )
    if not lines:
        raise FailedPreconditionError(f"The token file {path} has no token.")
    return list(lines.values())


def parse_tokens(text: str, path: str) -> dict[str, list[str]]:
    """Read a tokens file as role -> its tokens, those without a name first. Else as `token_lines`.

    >>> parse_tokens("worker 0123456789abcdef # all workers", "tokens")
    {'worker': ['0123456789abcdef']}
    """
    tokens: dict[str, list[str]] = {}
    for line in sorted(token_lines(text, path), key=lambda line: bool(line.name or line.variables)):
        tokens.setdefault(line.role, []).append(line.token)
    return tokens


class RoleTokens:
    """The tokens of a file. Thread-safe.

    Args:
        path: The file.
        clock: Time.

    Raises:
        FailedPreconditionError: If it cannot be read.
    """

    def __init__(self, path: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._clock = clock
        # Guards the attributes below; the file is read under it. A leaf.
        self._lock = threading.Lock()
        self._stamp = _stamp_of(path)
        self._lines: Sequence[TokenLine] = token_lines(read_secret(path), path)
        self._marks = {line.mark for line in self._lines}
        self._empty_since: float | None = None
        self._looked = clock.monotonic()

    def find(self, token: str) -> TokenLine | None:
        """Give the line of a token; None for an unknown one. Its time does not show how near a guess is."""
        shown = token.encode(errors="replace")
        match = None
        for line in self._latest():
            if hmac.compare_digest(line.token.encode(), shown):
                match = line
        return match

    def holds(self, mark: str) -> bool:
        """Whether a line is still in the file, as of at most LOOK_SECS ago."""
        if self._clock.monotonic() - self._looked >= LOOK_SECS:
            self._latest()
        return mark in self._marks

    def token_of(self, name: str) -> str:
        """Give the token of a name that token_id made; "" where none of this file has it."""
        return next((line.token for line in self._latest() if token_id(line.token) == name), "")

    def of_ps(self) -> str:
        """Give the token that this PS task shows to others; "" for none."""
        return next((line.token for line in self._latest() if line.role == "ps"), "")

    def _latest(self) -> Sequence[TokenLine]:
        with self._lock:
            now = self._looked = self._clock.monotonic()
            stamp = _stamp_of(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                self._take_up(stamp is None, now)
            if self._lines and self._empty_since is not None and now - self._empty_since >= EMPTY_SECS:
                _log.error("The token file %s is gone, or empty: all callers are refused.", self._path)
                self._lines, self._marks = (), set()
            return self._lines

    def _take_up(self, gone: bool, now: float) -> None:
        """Read the file, which has changed. Caller holds the lock."""
        try:
            text = "" if gone else read_secret(self._path)
            if not any(line.partition("#")[0].strip() for line in text.splitlines()):
                self._empty_since = now if self._empty_since is None else self._empty_since
                return
            self._empty_since = None
            self._lines = token_lines(text, self._path)
            self._marks = {line.mark for line in self._lines}
        except FailedPreconditionError as error:
            _log.warning("The tokens stay as they were: %s", error)


class RunTokens(RoleTokens):
    """The token of a run whose tasks are all one user's: it stands for the role chief. Thread-safe.

    PS tasks show each other another one, which they make of it.

    Args:
        token: The token.

    Raises:
        FailedPreconditionError: If it is none.
    """

    def __init__(self, token: str) -> None:
        check_token(token, RUN_TOKEN)
        between_ps = hashlib.sha256(f"globalstep ps\0{token}".encode()).hexdigest()
        self._lines = (TokenLine("chief", token), TokenLine("ps", between_ps))
        self._marks = {line.mark for line in self._lines}

    def holds(self, mark: str) -> bool:
        """Whether a line is one of these."""
        return mark in self._marks

    def _latest(self) -> Sequence[TokenLine]:
        return self._lines


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    """Give what changes when the file is written or replaced; None where it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
