"""Ids of clients, each bound to its process: only who has the process's session secret can use one.

Layer: shared. Imports nothing of globalstep. Threads: functions are pure.
"""

from __future__ import annotations

import hashlib
import re
import secrets

#: By which name a call shows its process's session secret.
SESSION_KEY = "globalstep-session"
_MARK_CHARACTERS = 32
_CLIENT_ID = re.compile(rf"s([0-9a-f]{{{_MARK_CHARACTERS}}})-[0-9a-f]{{12}}")
_SESSION_SECRET = secrets.token_hex(16)


def session_secret() -> str:
    """Give this process's session secret: a random one, which only PS tasks get to see, and which is never stored."""
    return _SESSION_SECRET


def mark_of(secret: str) -> str:
    """Give what everybody may know of a session secret."""
    return hashlib.sha256(secret.encode()).hexdigest()[:_MARK_CHARACTERS]


def new_client_id() -> str:
    """Make an id for a client of this process: a process without the session secret cannot use it.

    >>> holder_of(new_client_id()) == mark_of(session_secret())
    True
    """
    return f"s{mark_of(_SESSION_SECRET)}-{secrets.token_hex(6)}"


def holder_of(client_id: str) -> str:
    """Give the mark of the process that a client id belongs to; "" for one that is bound to none.

    >>> holder_of("another client's")
    ''
    """
    found = _CLIENT_ID.fullmatch(client_id)
    return found[1] if found else ""
