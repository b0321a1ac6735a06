"""Versions of the wire protocol: which a side speaks, and the error for a side that speaks none of them.

A change of the protocol that an older side would misunderstand raises NEWEST; OLDEST follows once nothing of the old
way is left. Releases before this said no version: they count as version 0.

Layer: shared. Pure.
"""

from __future__ import annotations

import functools
import importlib.metadata

from globalstep.errors import FailedPreconditionError
from globalstep.proto import globalstep_pb2 as pb

OLDEST = 5
NEWEST = 5


def own_protocol() -> pb.Protocol:
    """Say what this side speaks."""
    return pb.Protocol(oldest=OLDEST, newest=NEWEST, package=_package())


@functools.cache
def _package() -> str:
    try:
        return importlib.metadata.version("globalstep")
    except importlib.metadata.PackageNotFoundError:
        return ""  # run from a checkout that was not installed


def check_protocol(theirs: pb.Protocol, me: str, them: str) -> None:
    """Refuse a side that speaks no version that this one does.

    Args:
        theirs: What it says; empty where it says nothing.
        me: This side, for messages.
        them: The other.

    Raises:
        FailedPreconditionError: Then; says which side is older, and what to update.

    >>> check_protocol(pb.Protocol(oldest=1, newest=7), "this client", "the PS task")
    """
    if theirs.oldest <= NEWEST and theirs.newest >= OLDEST:
        return
    mine = own_protocol()
    older = them if theirs.newest < OLDEST else me
    raise FailedPreconditionError(
        f"{_capital(me)} speaks {_said(mine)}; {them} speaks {_said(theirs)}. {_capital(older)} is older: update "
        "globalstep there, so that all tasks of the job have one version, and start the job again. Nothing was changed."
    )


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _said(protocol: pb.Protocol) -> str:
    if not protocol.newest:
        return "a protocol from before versions were sent (an older globalstep)"
    versions = (
        f"version {protocol.newest}"
        if protocol.oldest == protocol.newest
        else f"versions {protocol.oldest} to {protocol.newest}"
    )
    return f"{versions} of the protocol (globalstep {protocol.package or 'of an unknown version'})"
