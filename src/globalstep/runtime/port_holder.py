"""Holders of ports: why a process cannot listen at an address of this machine, and who does already.

Source: proc(5), /proc/net/tcp and /proc/PID/fd. Another user's processes are seen by root only.

Layer: shared. Linux only; elsewhere no holder is found.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from globalstep.security.peer_uid import tcp_sockets

_MOST_COMMAND = 80


def why_not_bound(host: str, port: int) -> str:
    """Say why no process can listen at an address now; "" where one can."""
    addresses = _addresses(host, port)
    why = "" if addresses else f"this machine knows no address of the name {host!r}"
    for family, kind, protocol, _, address in addresses:
        with contextlib.closing(socket.socket(family, kind, protocol)) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(address)
                tried.listen(1)
            except OSError as error:
                why = why or _reason(error, host, port)
            else:
                return ""
    return why


def _reason(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = holder_of(host, port)
        return "the address is taken" + (f" by {holder}" if holder else "; by which process, cannot be seen from here")
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine"
    if error.errno == errno.EACCES:
        return f"port {port} is for the system's own services, which root starts"
    return error.strerror or str(error)


def holder_of(host: str, port: int) -> str:
    """Name the process that listens at an address of this machine; "" where none is known."""
    wanted = {str(address[0]) for *_, address in _addresses(host, port)}
    if not wanted:
        return ""
    for at, uid, inode in tcp_sockets(port, listening=True):
        anywhere = {"0.0.0.0", "::"} & {at, *wanted}
        if anywhere or at in wanted:
            return _process_with(inode) or f"a process of {_user(uid)}"
    return ""


def _addresses(host: str, port: int) -> Sequence[tuple[int, int, int, str, tuple[Any, ...]]]:
    """Give what getaddrinfo has for a name to listen at; nothing where it knows none."""
    try:
        return socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return []


def _process_with(inode: str) -> str:
    """Name the process that has a socket open; "" where it cannot be seen."""
    wanted = f"socket:[{inode}]"
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(file) == wanted for file in (folder / "fd").iterdir()):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                short = command if len(command) <= _MOST_COMMAND else f"{command[:_MOST_COMMAND]}..."
                return f"pid {folder.name} ({short})"
    return ""


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
