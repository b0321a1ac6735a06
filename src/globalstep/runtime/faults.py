"""Named points at which a test may make something fail: the one seam for it.

A PS task says `at(BEFORE, method)` when a request has come and `at(AFTER, method)` when it has been carried out; a
client's transport (tests/support/faulty_transport.py) says `at(SEND, method)` and `at(REPLY, method)`. Methods are
those of proto/globalstep.proto in small letters ("stage", "push", "commit", "begin", "declare", "open",
"write_snapshot", ...), and on a PS task "apply" and "cut", which are no requests: an entry is applied, and a
snapshot's values are copied. docs/design/testing.md maps them to the points P1 to P10 of
docs/design/push-protocol.md. In production nothing is there: NO_FAULTS.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

import enum
import importlib
import os
import re
from functools import cache
from typing import Any

#: Of the environment: what a test makes fail in a process, see tests/support/planned_faults.py.
FAULTS_VARIABLE = "GLOBALSTEP_FAULTS"

#: A request has arrived; nothing has been done about it.
BEFORE = "before"
#: The request has been carried out; its reply has not been sent.
AFTER = "after"
#: A client is about to send a request.
SEND = "send"
#: A client has got the reply; its program has not seen it.
REPLY = "reply"

#: A push that has its place is applied to the Variables of a shard. Within a critical section: what raises here takes
#: the shard out of service, back to its log or a checkpoint.
APPLY = "apply"
#: The values of a snapshot are copied. Within a critical section, as above.
CUT = "cut"


class TransportFault(enum.Enum):
    """What a client's transport is to do."""

    #: At SEND: send the request twice.
    TWICE = "twice"
    #: At SEND: take the request's deadline for passed, and send it later, behind others.
    LATE = "late"
    #: Break the connection off: the request is not sent, or its reply is lost.
    CUT = "cut"


class ConnectionCutError(ConnectionError):
    """Raised at a point of a PS task: its connection ends here, without a reply."""


class Faults:
    """What may fail, and when: nothing."""

    def at(self, point: str, method: str) -> TransportFault | None:
        """Note that a thread is at a point of a method. Thread-safe.

        On a PS task what is raised is the answer (ConnectionCutError: there is none). On a client it is what the
        caller gets instead of a reply.
        """


NO_FAULTS = Faults()


def planned_faults() -> Any:
    """Return the tests' module of planned faults where GLOBALSTEP_FAULTS is set; None in every other process."""
    return importlib.import_module("planned_faults") if os.environ.get(FAULTS_VARIABLE) else None


@cache
def method_name(rpc: str) -> str:
    """Give the name of an RPC as points have it.

    >>> method_name("WriteSnapshot")
    'write_snapshot'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", rpc).lower()
