"""Serving one user of this machine: what a PS task on the loopback interface does that was given no tokens.

Layer: ps. Threads: an OwnUser is thread-safe.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from globalstep.security.peer_uid import is_ours, uid_of_connection


class OwnUser:
    """Refuses callers of this machine that run as another user than this process. Thread-safe.

    Root is let in: it may do everything anyway.

    Args:
        uid_of: As `uid_of_connection`.

    Attributes:
        address: "host:port" that the task serves on; to be set before the first call.
    """

    def __init__(self, uid_of: Callable[[str, str, int], int | None] = uid_of_connection) -> None:
        self._uid_of = uid_of
        self.address = "127.0.0.1:0"

    def refusal(self, peer: str) -> tuple[str, bool]:
        """Say why a caller is not served, "" for one that is; and whether its connection is still there.

        The kernel tells the user of each connection within the machine, until it has ended.

        Args:
            peer: The caller as grpc names it.
        """
        host, _, port = self.address.rpartition(":")
        uid = self._uid_of(peer, host, int(port))
        if is_ours(uid):
            return "", True
        who = "has gone before the kernel told its user" if uid is None else f"is a process of user {uid}"
        why = (
            f"the caller {who}, and this PS task has no tokens: so it serves user {os.geteuid()} alone. Give it "
            "--tokens-file, and the caller a token; or --insecure (GLOBALSTEP_INSECURE=1), to serve every user of this "
            "machine. docs/security.md has the steps."
        )
        return why, uid is not None


def kernel_tells() -> bool:
    """Whether this kernel says whose a connection is; some sandboxes have tables that are wrong throughout."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname(), 1.0) as near,
        ):
            host, port = near.getsockname()
            uid = uid_of_connection(f"ipv4:{host}:{port}", *listener.getsockname())
            return uid == os.geteuid()
    except OSError:
        return False
