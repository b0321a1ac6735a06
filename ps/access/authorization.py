"""Authorization on a PS task: roles, the tables of what each may call, and how a caller's role is known.

The one place where that is decided. A caller proves its role by a token (in the metadata of every gRPC call), by its
certificate's name, or by both. A stream, and a connection beside gRPC, has the role that it was opened with.

Without a file of tokens, and unless roles are required, a caller that shows no role may do everything, as in a cluster
without roles; what shows one has no more than that.

Layer: ps. Threads: an Authorization is thread-safe; a Caller is a value.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import threading
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from globalstep.errors import OpError, PermissionDeniedError, UnauthenticatedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.caller import ANONYMOUS, CALLER, Caller, ProvenCall, Role, TokenRevokedError
from globalstep.ps.access.log_limit import LogLimit
from globalstep.ps.access.own_user import OwnUser
from globalstep.ps.access.role_tokens import RoleTokens, RunTokens
from globalstep.ps.access.run_paths import RunPaths
from globalstep.runtime.clock import Clock
from globalstep.security.client_ids import SESSION_KEY, holder_of, mark_of
from globalstep.security.credentials import role_in_names
from globalstep.security.token_proofs import TokenClaim, answer, new_number, proof, reply_proof
from globalstep.wire.names import GLOBAL_STEP, shown

__all__ = [
    "CALLER",
    "KINDS",
    "METHODS",
    "ANONYMOUS",
    "Authorization",
    "Caller",
    "Role",
    "TokenRevokedError",
    "UnprovenError",
]

_log = logging.getLogger(__name__)


_CHIEFS = frozenset({Role.CHIEF, Role.STANDBY})
_CLIENTS = _CHIEFS | {Role.WORKER}
_PS_TASKS = frozenset({Role.PS})
_NO_ROLE: frozenset[Role] = frozenset()

#: RPC -> who may call it. Every method of the service is here; no role may call one that is not.
METHODS: Mapping[str, frozenset[Role]] = {
    "Status": _CLIENTS | _PS_TASKS,
    "Heartbeat": _CLIENTS,
    "Leave": _CLIENTS,
    "GetGlobalStep": _CLIENTS,
    # What comes in a stream, or on a connection, is looked at call by call: KINDS.
    "Exchange": _CLIENTS,
    "OpenLane": _CLIENTS,
    # A worker declares what its program has. While a run is being initialized, only the chief's client is served.
    "Declare": _CLIENTS,
    "ClaimChief": _CHIEFS,
    "Begin": _CHIEFS,
    "Open": _CHIEFS,
    "Finish": _CHIEFS,
    "Stop": _CHIEFS,
    "WriteSnapshot": _CHIEFS,
    "ReleaseSnapshot": _CHIEFS,
    "ReadJournal": _CHIEFS,
    "FindLog": _CHIEFS,
    "Recover": _CHIEFS,
    "Settle": _PS_TASKS,
    # A PS task's own program may dequeue: that the workers are done, for example.
    "Queue": _CLIENTS | _PS_TASKS,
}

#: Data-plane request -> who may send it.
KINDS: Mapping[str, frozenset[Role]] = {
    "pull": _CLIENTS,
    "push": _CLIENTS,
    "stage": _CLIENTS,
    "commit": _CLIENTS,
    "await_step": _CLIENTS,
    "await_slower": _CLIENTS,
}

_ASSIGNS = frozenset({int(pb.OP_ASSIGN), int(pb.OP_ASSIGN_ADD), int(pb.OP_ASSIGN_SUB)})
#: What only the acting chief says of itself.
_OF_CHIEFS = ("candidate", "chief_term")
#: Who asks for one of these is named in the log: they begin, end and change a run as a whole, or write files.
_LOGGED = frozenset({"Begin", "Open", "Finish", "Stop", "WriteSnapshot", "Recover", "ClaimChief"})


#: Numbers of calls that are remembered; then the task has all callers prove their tokens anew, for another challenge.
_MOST_NUMBERS = 16_384
_NUMBER_CHARACTERS = 32


class UnprovenError(UnauthenticatedError):
    """The caller has yet to prove that it has the token.

    Attributes:
        challenge: What to prove it with, and this task's own proof; see globalstep.security.token_proofs.
    """

    def __init__(self, message: str, challenge: str) -> None:
        super().__init__(message)
        self.challenge = challenge


class Authorization:
    """Decides for one PS task. Thread-safe.

    Args:
        clock: Time, so that refusals do not flood the log.
        tokens: Token -> role; None for none.
        require_role: Refuse callers without a role also where there are no tokens.
        workers_assign: Whether workers may assign to Variables.
        paths: Where requests may have files written and read.
        own_user: Refuses other users of this machine; None where something else says who may call.

    Attributes:
        refusals: How many callers were refused.
    """

    def __init__(
        self,
        clock: Clock,
        tokens: RoleTokens | None = None,
        *,
        require_role: bool = False,
        workers_assign: bool = True,
        paths: RunPaths | None = None,
        own_user: OwnUser | None = None,
    ) -> None:
        self._clock = clock
        self._tokens = tokens
        self._require_role = require_role or tokens is not None
        self._workers_assign = workers_assign
        self._paths = paths or RunPaths()
        self._own_user = own_user
        #: "host:port" that the task serves on, once it does.
        self.address = ""
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        # Proofs are made for this process alone.
        self._challenge = new_number()
        # Numbers of calls that were proven for it: each is good once.
        self._numbers: set[str] = set()
        #: Client ids that the chief, or a standby, goes by: no other caller may.
        self._chiefs_ids: set[str] = set()
        self._said = LogLimit(clock)
        self.refusals = 0
        #: Who has been named in the log for a privileged call.
        self._logged: set[tuple[str, Role | None, str, str]] = set()

    def identify(self, method: str, metadata: Iterable[Any], names: Iterable[bytes], peer: str) -> Caller:
        """Find out who makes a call.

        Args:
            method: The RPC, for messages.
            metadata: Of the call: pairs.
            names: Of the caller's certificate, which TLS has proven.
            peer: Its address.

        Raises:
            UnauthenticatedError: If it shows a wrong token, or nothing at all where that is needed.
            PermissionDeniedError: If its certificate names another role than its token.
        """
        if self._own_user is not None:
            why, is_there = self._own_user.refusal(peer)
            if why:
                # A client that closes its connection leaves calls behind: no user needs to hear of that.
                level = logging.WARNING if is_there else logging.DEBUG
                raise self._refuse(peer, UnauthenticatedError, f"{method}: {why}", method, level)
        named = _role_in(names)
        shown = line = None
        sent = {key: str(value) for key, value in metadata}
        token, proven = self._token_of(method, sent.get("authorization", ""), peer)
        if token and self._tokens is not None:
            line = self._tokens.find(token)
            if line is None:
                text = f"{method}: the token shown is none of this PS task's."
                raise self._refuse(peer, UnauthenticatedError, text, method)
            shown = Role(line.role)
        if shown is not None and named is not None and shown is not named:
            raise self._refuse(
                peer,
                PermissionDeniedError,
                f"{method}: the token is of role {shown.value!r}, the certificate of role {named.value!r}.",
                method,
            )
        role = shown or named
        if role is None and self._require_role:
            what = "a token (GLOBALSTEP_TOKEN_FILE)" if self._tokens is not None else "a certificate named role=..."
            text = f"{method}: the caller shows no role; it needs {what}."
            raise self._refuse(peer, UnauthenticatedError, text, method)
        return Caller(role, peer, mark_of(sent[SESSION_KEY]) if SESSION_KEY in sent else "", line, proven)

    def revoked(self, caller: Caller) -> bool:
        """Whether the token that a caller was let in with is in the file no more."""
        line, tokens = caller.line, self._tokens
        return line is not None and tokens is not None and not tokens.holds(line.mark)

    def _token_of(self, method: str, header: str, peer: str) -> tuple[str, ProvenCall | None]:
        """Give the token that a caller shows, or proves to have, "" for none; and what was proven.

        Raises:
            UnauthenticatedError: If it is still to be proven, or was not; with what the caller needs for that.
        """
        claim = TokenClaim.parse(header)
        if claim is None:
            return header.removeprefix("Bearer "), None
        token = self._tokens.token_of(claim.token_id) if self._tokens is not None else ""
        if not token:
            return "none of this task's" if self._tokens is not None else "", None
        challenge = self._challenge
        words = challenge, claim.number, claim.address
        shown = proof(token, *words, method, claim.digest)
        if self._is_here(claim.address) and hmac.compare_digest(claim.proof, shown):
            if not self._is_first(challenge, claim.number):
                text = f"{method}: the caller shows a proof that was shown before."
                raise self._refuse(peer, UnauthenticatedError, text, method)
            return token, ProvenCall(claim.digest, reply_proof(token, *words, method))
        if not self._is_here(claim.address):
            text = f"{method}: the caller proves a token for {claim.address}; this PS task is at {self.address}."
            raise self._refuse(peer, UnauthenticatedError, text, method)
        # It has not been asked to yet, or has proven it to a process that was here before.
        raise UnprovenError(f"{method}: the token is to be proven.", f"{challenge} {answer(token, *words)}")

    def _is_first(self, challenge: str, number: str) -> bool:
        """Whether a proof for a challenge is shown for the first time; remembers that it was."""
        with self._lock:
            if challenge != self._challenge or number in self._numbers or len(number) != _NUMBER_CHARACTERS:
                return False
            self._numbers.add(number)
            if len(self._numbers) >= _MOST_NUMBERS:
                self._challenge = new_number()
                self._numbers.clear()
            return True

    def _is_here(self, address: str) -> bool:
        """Whether an address that a caller has dialled is this task's, as far as the task knows."""
        host, _, port = address.rpartition(":")
        own_host, _, own_port = self.address.rpartition(":")
        return port == own_port and (host == own_host or not (_is_literal(host) and _is_literal(own_host)))

    def check_method(self, caller: Caller, method: str, request: Any = None) -> None:
        """Refuse a call that the caller's role may not make.

        Args:
            caller: Who calls.
            method: The RPC.
            request: Its message; None where it is not there yet.

        Raises:
            PermissionDeniedError: If it may not, or not there.
            InvalidArgumentError: If it names a file that cannot be.
        """
        allowed = METHODS.get(method, _NO_ROLE)
        if caller.role is not None and caller.role not in allowed:
            raise self._denied(caller, method, allowed, method)
        if request is None:
            return
        self._paths.check(request)
        if method in _LOGGED:
            self._tell(caller, method, shown(_asker(request)))
        if caller.role is None:
            return
        if caller.role in _CHIEFS:
            self._learn(request)
            return
        for name in _OF_CHIEFS:
            if getattr(request, name, 0):
                raise self._denied(caller, f"{method} as chief", _CHIEFS, method)
        self._check_id(caller, method, _client_of(request))
        if method == "Declare" and caller.is_limited:
            self._check_names(caller, "declare", _declared_names(request))
        if method == "Queue":
            self._check_names(caller, "use queue", {request.queue.name})

    def check_request(self, caller: Caller, request: pb.Request) -> None:
        """Refuse a data-plane request that the caller's role may not make.

        Raises:
            PermissionDeniedError: If it may not.
            TokenRevokedError: If its token is none any more; its connection is to be ended.
        """
        role = caller.role
        if role is None:
            return
        if self.revoked(caller):
            text = f"The token that {caller} was let in with is none of this PS task's any more; its connection ends."
            raise self._refuse(caller.peer, TokenRevokedError, text, "")
        kind = request.WhichOneof("kind") or ""
        allowed = KINDS.get(kind, _NO_ROLE)
        if role not in allowed:
            raise self._denied(caller, kind, allowed, kind)
        if role in _CHIEFS:
            return
        message = getattr(request, kind)
        self._check_id(caller, kind, _client_of(message))
        if kind in ("pull", "push", "stage"):
            self._check_variables(caller, kind, message)
        if kind in ("push", "stage"):
            self._check_ops(caller, kind, message.ops)
        self._check_snapshots(caller, kind, message)

    def restricts(self, caller: Caller) -> bool:
        """Whether a caller may change values by gradients only, as the chief's program has declared."""
        return not self._workers_assign and caller.role is not None and caller.role not in _CHIEFS

    def denied(self, caller: Caller, what: str) -> OpError:
        """Give the error for what is the chief's to do, and say in the log that the caller tried."""
        return self._denied(caller, what, _CHIEFS, "declare")

    def _learn(self, request: Any) -> None:
        """Remember by which id the chief goes."""
        for name in (getattr(request, "owner", ""), _client_of(request)):
            if name and name not in self._chiefs_ids:
                with self._lock:
                    self._chiefs_ids.add(name)

    def _check_id(self, caller: Caller, what: str, client: str) -> None:
        if client in self._chiefs_ids:
            raise self._denied(caller, f"{what} in the name of the chief's client {client}", _CHIEFS, what)
        if _is_of_another(caller, client):
            role = caller.role.value if caller.role is not None else ""
            text = f"Role {role!r} may not {what} in the name of client {client}, which is another process's."
            raise self._refuse(caller.peer, PermissionDeniedError, text, what)

    def _check_snapshots(self, caller: Caller, kind: str, message: Any) -> None:
        """Refuse to take a snapshot, and to read one: they are the chief's."""
        if kind == "push" and message.snapshot:
            raise self._denied(caller, "take a snapshot (push)", _CHIEFS, kind)
        if kind == "pull" and message.HasField("snapshot"):
            raise self._denied(caller, "read a snapshot (pull)", _CHIEFS, kind)

    def _check_ops(self, caller: Caller, what: str, ops: Iterable[pb.Op]) -> None:
        if self._workers_assign:
            return
        for op in ops:
            if int(op.kind) in _ASSIGNS:
                text = f"{what} with an assignment to {shown(op.variable)} (--no-worker-assigns)"
                raise self._denied(caller, text, _CHIEFS, what)

    def _check_variables(self, caller: Caller, what: str, message: Any) -> None:
        """Refuse a message with a Variable that the caller's token is not for; a known layout was looked at before."""
        if not caller.is_limited:
            return
        ops = getattr(message, "ops", ())
        names = {op.variable for op in ops} | {op.source for op in ops if op.HasField("source")}
        # Everybody may know the steps: GetGlobalStep tells them.
        names |= {read.variable for read in message.reads} - {GLOBAL_STEP}
        self._check_names(caller, what, names)

    def _check_names(self, caller: Caller, what: str, names: Iterable[str]) -> None:
        patterns = caller.line.variables if caller.line is not None else None
        if patterns is None:
            return
        for name in sorted(names):
            if not any(fnmatchcase(name, pattern) for pattern in patterns):
                text = f"The token of {caller} is for Variables {', '.join(patterns)}; it may not {what} {shown(name)}."
                raise self._refuse(caller.peer, PermissionDeniedError, text, what)

    def _denied(self, caller: Caller, what: str, allowed: frozenset[Role], method: str) -> OpError:
        whose = " or ".join(repr(role.value) for role in Role if role in allowed) or "no role"
        role = caller.role.value if caller.role is not None else ""
        text = f"Role {role!r} may not {what}; this is for {whose}. SECURITY.md has the roles."
        return self._refuse(caller.peer, PermissionDeniedError, text, method)

    def _tell(self, caller: Caller, method: str, client: str) -> None:
        """Say in the log who makes a privileged call.

        At the level DEBUG only of one that has been named for it, and where every caller is the same: all of a run have
        one token, or callers show no role because the task asks for none.
        """
        who = method, caller.role, caller.line.name if caller.line is not None else "", client
        with self._lock:
            if len(self._logged) > 1000:
                self._logged.clear()
            alike = isinstance(self._tokens, RunTokens) or not (self._require_role or caller.role)
            level = logging.DEBUG if alike or who in self._logged else logging.INFO
            self._logged.add(who)
        _log.log(level, "%s, as client %s, asks for %s.", caller, client, method)

    def _refuse(self, peer: str, kind: type[OpError], text: str, method: str, level: int = logging.WARNING) -> OpError:
        """Say in the log, not too often, that a caller was refused; gives the error.

        Args:
            peer: The caller's address, as gRPC names it.
            kind: Of what type the error is.
            text: What to say. Callers choose some of it: one that says something else each time gets no line more.
            method: What was asked for, of METHODS or KINDS.
            level: Of the line in the log.
        """
        # A port says nothing, and makes every connection look like a new caller.
        whose = peer.rpartition(":")[0] or peer
        with self._lock:
            self.refusals += 1
        if (more := self._said.due((whose, method, kind.__name__, level))) is not None:
            _log.log(level, "Refused %s: %s%s", peer or "a caller", text, more)
        return kind(text)


def _declared_names(request: pb.DeclareRequest) -> set[str]:
    """Give all names of Variables and scalars in a declaration; the run's step is everybody's to name."""
    names = {decl.name for decl in request.variables} | {decl.primary for decl in request.variables}
    names |= {decl.whole for decl in request.variables}
    for optimizer in request.optimizers:
        names.update(optimizer.slots, optimizer.scalars)
        for slots in optimizer.slots.values():
            names.update(slots.names)
        waiting = list(optimizer.hypers.values())
        while waiting:
            expression = waiting.pop()
            waiting.extend(expression.args)
            names.add(expression.name)
    return names - {"", GLOBAL_STEP}


def _asker(request: Any) -> str:
    return str(getattr(request, "owner", "") or getattr(request, "candidate", "") or _client_of(request))


def _is_literal(host: str) -> bool:
    """Whether a host is the address of one interface; a name may mean any, and so does 0.0.0.0."""
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _is_of_another(caller: Caller, client: str) -> bool:
    """Whether a client id bears the mark of another process than the caller's."""
    holder = holder_of(client)
    return bool(holder) and holder != caller.mark


def _client_of(request: Any) -> str:
    """Give the client id that a message bears; "" where it bears none."""
    client = getattr(request, "client", "")
    if client:
        return str(client)
    for name in ("id", "snapshot"):
        inner = getattr(request, name, None)
        if inner is not None:
            return str(inner.client)
    return ""


def _role_in(names: Iterable[bytes]) -> Role | None:
    role = role_in_names(name.decode(errors="replace") for name in names)
    return None if role is None else Role(role)
