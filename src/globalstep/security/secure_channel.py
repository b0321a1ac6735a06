"""gRPC channels of clients: made with this process's certificates, made anew when those are renewed.

Layer: shared. Threads: a SecureChannel is thread-safe.
"""

from __future__ import annotations

import hmac
import logging
import os
import threading
from dataclasses import dataclass, field
from typing import Any

import grpc

from globalstep.errors import FailedPreconditionError, OpError, UnauthenticatedError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.security.certificates import ServerRole, find_tls_mistake
from globalstep.security.client_ids import SESSION_KEY, session_secret
from globalstep.security.credentials import Credentials, CurrentTls, is_loopback
from globalstep.security.peer_uid import is_ours, tells_listeners, uid_of_listener
from globalstep.security.rpc import CHANNEL_OPTIONS
from globalstep.security.token_proofs import (
    CHALLENGE_KEY,
    REPLY_KEY,
    STREAM,
    TokenClaim,
    answer,
    digest_of,
    new_number,
    proof,
    reply_proof,
    token_id,
)

_log = logging.getLogger(__name__)

#: How long a TLS mistake may be the other side's that is just being fixed: a restart, a renewal.
PATIENCE_SECS = 5.0
#: A mistake is looked for no more often than this.
_PROBE_SECS = 1.0
#: Tries of a call: the task may want proofs for another challenge, and have to prove itself before each.
TRIES = 5
#: What is asked of who may be anyone.
_LOOKS = pb.StatusRequest(brief=True)
#: Without a second try by gRPC itself, which might reach another process than the one that has proven itself.
_NO_RETRIES = ("grpc.enable_retries", 0)


@dataclass(frozen=True, slots=True)
class BeginningCall:
    """The call to make now, and its metadata.

    Attributes:
        method: The RPC: that which was asked for, or the one that has the task prove itself.
        request: Its message.
        metadata: What it shows.
        asks: Whether it has the task prove itself.
        number: The caller's, of this call.
        challenge: The task's, that it proves its token for.
        reply: What the reply must show; "" for nothing.
    """

    method: str
    request: Any
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    asks: bool = False
    number: str = ""
    challenge: str = ""
    reply: str = field(default="", repr=False)


class SecureChannel:
    """A channel to one address. Thread-safe.

    Raises:
        FailedPreconditionError: If the credentials cannot be used, or a token would leave this machine without TLS.
    """

    def __init__(self, address: str, credentials: Credentials, clock: Clock = SYSTEM_CLOCK) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self.credentials = credentials
        self._clock = clock
        self._tls = CurrentTls(credentials.tls) if credentials.tls is not None else None
        self._server = ServerRole(address, credentials.tls) if credentials.tls is not None else None
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        self._stamp: object = None
        self._answered = False
        self._since: float | None = None
        self._probed: float | None = None
        self._mistake = ""
        #: What is dialled: a name of this machine has several addresses, and a task listens at one of them.
        self.dialled = f"127.0.0.1:{port}" if host == "localhost" and self._tls is None else address
        # Of the process at the address; "" before it has proven that it has the token.
        self._challenge = ""
        # The channel that was made last.
        self._channel: Any = None
        # Whether the kernel has said whose process it is that gRPC is connected to.
        self._known = False
        # Whether it has to; None before a name was looked up, which may take long.
        self._looks: bool | None = False if self._tls is not None or credentials.insecure else None
        self._token = credentials.shown_token()
        if self._token and self._tls is None and not credentials.insecure and not is_loopback(host):
            raise FailedPreconditionError(
                f"What is sent to {address} could be read and changed on the way, in spite of the token. Set "
                "GLOBALSTEP_TLS_CERT, _KEY and _CA, or GLOBALSTEP_INSECURE=1 where the network is trusted."
            )

    def begin(self, method: str, request: Any = None) -> BeginningCall:
        """Give the call to make, with its metadata: the token where TLS proves who serves, else a proof of the token.

        A task that has yet to prove that it has this process's token, since gRPC connected to it, is asked for its
        status first, which tells it nothing.
        """
        try:
            token = self.credentials.shown_token()
        except FailedPreconditionError as error:
            # It is being replaced, or was: the old one may still do.
            _log.warning("The token stays as it was: %s", error)
            token = self._token
        secret = ((SESSION_KEY, session_secret()),)
        if self._tls is not None:
            # A process that shows no certificate has no role, and checks no other's.
            shown = [("authorization", f"Bearer {token}")] if token else []
            return BeginningCall(method, request, (*shown, *secret))
        connected = self._is_connected()
        if not token:
            if self._looks is None:
                self._looks = is_loopback(self.dialled.rpartition(":")[0])
            is_known = not self._looks or (connected and self._known) or self._look()
            # It may reach anyone, who is looked at when there is an answer.
            return BeginningCall(method, request) if is_known else BeginningCall("Status", _LOOKS, asks=True)
        with self._lock:
            if token != self._token or not connected:
                self._token, self._challenge = token, ""
            challenge = self._challenge
        number, name = new_number(), token_id(token)
        if not challenge:
            # It may reach anyone: it shows no secret.
            claim = TokenClaim(name, self.dialled, number)
            asked = (("authorization", str(claim)),)
            return BeginningCall("Status", _LOOKS, asked, asks=True, number=number)
        words = token, challenge, number, self.dialled, method
        digest = STREAM if request is None else digest_of(request.SerializeToString())
        claim = TokenClaim(name, self.dialled, number, digest, proof(*words, digest))
        proven = (("authorization", str(claim)), *secret)
        return BeginningCall(method, request, proven, False, number, challenge, reply_proof(*words))

    def _is_connected(self) -> bool:
        """Whether gRPC has the connection that it had: it connects again by itself, and no call needs to fail for it.

        `Channel.subscribe` tells the same, but late, from a thread of its own.
        """
        try:
            state = self._channel._channel.check_connectivity_state(False)
        except (AttributeError, ValueError):  # there is none, or it was closed
            return False
        return bool(state == grpc.ChannelConnectivity.READY.value[0])

    def _look(self) -> bool:
        """Look whose process listens at the address; gives whether one does.

        Raises:
            UnauthenticatedError: If it is another user's.
        """
        host, _, port = self.dialled.rpartition(":")
        user = uid_of_listener(host, int(port))
        self._known = is_ours(user) or not tells_listeners()
        if not self._known and user is not None:
            raise self._of_another(f"of user {user}")
        return self._known

    def _of_another(self, whose: str) -> UnauthenticatedError:
        return UnauthenticatedError(
            f"What listens at {self.address} is a process {whose}, and this process has no token: so it believes the "
            f"PS tasks of user {os.geteuid()} and of root alone. Give the PS tasks --tokens-file, and this process a "
            "token; or set GLOBALSTEP_INSECURE=1, to believe every user of this machine. Nothing was sent to it. "
            "docs/security.md has the steps."
        )

    @property
    def proves_token(self) -> bool:
        """Whether the task has to prove by the token who it is, since no certificate does."""
        return bool(self._token) and self._tls is None

    def challenged(self, error: grpc.RpcError, call: BeginningCall) -> bool:
        """Learn from a refusal what the task wants proven; gives whether to try again.

        Args:
            error: The refusal.
            call: Of which: the one that has the task prove itself; any other has shown a proof that was made for a
                process that is gone, or a challenge that is.

        Raises:
            UnauthenticatedError: If the server that refused it does not have the token.
        """
        metadata: dict[str, Any] = dict(error.trailing_metadata() or ()) if isinstance(error, grpc.Call) else {}
        challenge, _, shown = str(metadata.get(CHALLENGE_KEY, "")).partition(" ")
        if not challenge:
            # Who refuses a token cannot prove that it has it; gRPC's own errors have no metadata.
            if "globalstep-error" in metadata and error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                self.check_reply(call, metadata)
            return False
        with self._lock:
            if not call.asks:
                if self._challenge == call.challenge:
                    self._challenge = ""
                return True
            # Each number is good once: another process could repeat an earlier answer.
            if hmac.compare_digest(answer(self._token, challenge, call.number, self.dialled), shown):
                self._challenge = challenge
                return True
        raise UnauthenticatedError(
            f"What answers at {self.address} does not have the token that this process has: it is no PS task of this "
            "run, or its --tokens-file is another one. Nothing was sent to it."
        )

    def check_reply(self, call: BeginningCall, metadata: Any) -> None:
        """Refuse to believe a reply without its proof.

        Raises:
            UnauthenticatedError: If who replies has not proven that it has the token.
        """
        if not call.reply or hmac.compare_digest(str(dict(metadata or ()).get(REPLY_KEY, "")), call.reply):
            return
        self.broken()
        raise UnauthenticatedError(
            f"What answers {call.method} at {self.address} does not prove that it has the token: it has taken the "
            "PS task's place, or is one of an older version. Its reply is not believed."
        )

    def was_answered(self) -> None:
        """Check the answer to the call that has the task prove itself; then the intended call may be made.

        Raises:
            UnauthenticatedError: If the task has not proven that it has the token; without one, if it is not known to
                be this user's.
        """
        if not self.proves_token:
            if not self._look():
                raise self._of_another("of a user that the kernel does not tell")
            return
        raise UnauthenticatedError(
            f"What answers at {self.address} asks for no token, and this process has one: it is no PS task of this "
            "run, or it was started without --tokens-file. Nothing was sent to it."
        )

    def broken(self) -> None:
        """Have the task prove itself again: a connection to it has ended, and another process may listen there now."""
        with self._lock:
            self._challenge = ""

    def call(self, stub: Any, method: str, request: Any, timeout_secs: float) -> Any:
        """Make a unary call and wait for its reply, once the task has proven itself where it has to.

        Raises:
            grpc.RpcError: As the call.
            UnauthenticatedError: If what answers does not have the token of this process.
        """
        for left in reversed(range(TRIES)):
            call = self.begin(method, request)
            try:
                reply, done = getattr(stub, call.method).with_call(
                    call.request, timeout=timeout_secs, metadata=call.metadata
                )
            except grpc.RpcError as error:
                if not self.challenged(error, call) or not left:
                    raise
            else:
                if not call.asks:
                    self.check_reply(call, done.trailing_metadata())
                    return reply
                self.was_answered()
        raise AssertionError("unreachable")

    def make(self, look: bool = True) -> grpc.Channel:
        """Make a channel with the newest certificates.

        Args:
            look: Look at the server's certificate where that matters; without, the channel sends no call there, and
                is outdated.
        """
        if self._tls is None:
            channel = grpc.insecure_channel(self.dialled, options=[*CHANNEL_OPTIONS, _NO_RETRIES])
            self._channel = channel
            return channel
        material = self._tls.latest()
        with self._lock:
            self._stamp = material.stamp
        assert self._server is not None
        secure = grpc.ssl_channel_credentials(self._server.roots(material, look), material.key, material.cert)
        return grpc.secure_channel(self.address, secure, options=CHANNEL_OPTIONS)

    def outdated(self) -> bool:
        """Whether this process or the server has newer certificates than the last channel was made with."""
        if self._tls is None or self._server is None:
            return False
        if not self._server.asked:
            return True
        stamp = self._tls.latest().stamp
        with self._lock:
            return stamp != self._stamp

    def mistake(self) -> str:
        """Say what is wrong with TLS; "" where nothing is, or the server does not answer at all."""
        mistake = find_tls_mistake(self.address, self.credentials.tls)
        return mistake or (self._server.mistake if self._server is not None else "")

    def answered(self) -> None:
        """Take note that the address answers."""
        self._answered = True
        if self._since is not None:
            with self._lock:
                self._since, self._mistake = None, ""

    def judge(self, error: OpError) -> OpError:
        """Say whether an error comes of TLS.

        Returns:
            The same; or an UnavailableError that says what is wrong with TLS; or, when that has been so for some
            seconds, an UnauthenticatedError, so that the call is not tried for ever.
        """
        if isinstance(error, UnavailableError):
            self.broken()
        if not isinstance(error, UnavailableError) or (self._tls is None and self._answered):
            return error
        now = self._clock.monotonic()
        with self._lock:
            look = self._probed is None or now - self._probed >= _PROBE_SECS
            if look:
                self._probed = now
            mistake = self._mistake
        if look:
            mistake = self.mistake()
        if self._server is not None:
            self._server.forget()
        with self._lock:
            self._mistake = mistake
            if not mistake:
                self._since = None
                return error
            first = self._since = now if self._since is None else self._since
        if now - first < PATIENCE_SECS:
            return UnavailableError(mistake)
        return UnauthenticatedError(mistake)
