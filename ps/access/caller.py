"""Callers of a PS task, with what they have proven of themselves. Values, without a wire.

Layer: ps.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from globalstep.errors import PermissionDeniedError, UnauthenticatedError

if TYPE_CHECKING:
    from globalstep.ps.access.role_tokens import TokenLine


class TokenRevokedError(UnauthenticatedError):
    """The token that a connection was opened with is not valid any more: the connection ends."""


class Role(enum.StrEnum):
    """The role of a caller."""

    CHIEF = "chief"
    #: May take the chief's place at any time, and so may do all that it may.
    STANDBY = "standby"
    WORKER = "worker"
    #: Another PS task of the cluster.
    PS = "ps"


@dataclass(frozen=True, slots=True)
class ProvenCall:
    """The call that a proof was made for; see globalstep.security.token_proofs.

    Attributes:
        digest: The hash that its message must have.
        reply: What its reply shows.
    """

    digest: str
    reply: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of an RPC.

    Attributes:
        role: What it has proven to be; None for a caller without a role where none is asked for.
        peer: Its address, for messages.
        mark: Of the session secret that it has shown; the ids of its clients bear it. "" for none.
        line: Of the tokens file, by which it was let in; None without a token.
        proven: By what it has proven its token; None where it has shown it, or has none.
    """

    role: Role | None = None
    peer: str = ""
    mark: str = ""
    line: TokenLine | None = None
    proven: ProvenCall | None = field(default=None, compare=False)

    @property
    def is_limited(self) -> bool:
        """Whether its token is for some Variables only."""
        return self.line is not None and self.line.variables is not None

    @property
    def may_be_chief(self) -> bool:
        """Whether it may act as chief, now or later; where no roles are asked for, everybody may."""
        return self.role in (None, Role.CHIEF, Role.STANDBY)

    def __str__(self) -> str:
        name = f" {self.line.name!r}" if self.line is not None and self.line.name else ""
        return (f"role {self.role.value!r}{name}" if self.role is not None else "a caller without a role") + (
            f" at {self.peer}" if self.peer else ""
        )


#: A caller that nothing is known of.
ANONYMOUS = Caller()

#: Who makes the unary call that this thread carries out.
CALLER: ContextVar[Caller] = ContextVar("globalstep_caller", default=ANONYMOUS)


class Everybody:
    """Lets everybody do everything, as on a PS task that no server serves; else see Authorization."""

    #: Of a server that serves the task; there is none.
    address = ""

    def revoked(self, caller: Caller) -> bool:
        """See Authorization: never."""
        return False

    def check_method(self, caller: Caller, method: str, request: Any = None) -> None:
        """See Authorization: nothing is refused."""

    def check_request(self, caller: Caller, request: Any) -> None:
        """See Authorization: nothing is refused."""

    def restricts(self, caller: Caller) -> bool:
        """See Authorization: nobody is restricted."""
        return False

    def denied(self, caller: Caller, what: str) -> PermissionDeniedError:
        """Return the error for what only a restricted caller is refused."""
        return PermissionDeniedError(f"{caller} may not {what}.")
