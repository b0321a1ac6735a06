"""gRPC channels of clients: made with this process's certificates, made anew when those are renewed.

Layer: shared. Threads: a SecureChannel is thread-safe.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections import deque
from typing import Any

import grpc

from globalstep.errors import FailedPreconditionError, OpError, UnauthenticatedError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.security.credentials import SESSION_KEY, Credentials, CurrentTls, is_loopback, session_secret
from globalstep.security.rpc import CHANNEL_OPTIONS
from globalstep.security.server_role import ServerRole
from globalstep.security.tls_probe import find_tls_mistake
from globalstep.security.token_proofs import CHALLENGE_KEY, TokenClaim, answer, new_number, proof, token_id

__all__ = ["SecureChannel"]

_log = logging.getLogger(__name__)

#: How long a TLS mistake may be the other side's that is just being fixed: a restart, a renewal.
PATIENCE_SECS = 5.0
#: A mistake is looked for no more often than this.
_PROBE_SECS = 1.0
#: Calls in flight that have the task prove itself: no more are remembered.
_MOST_ASKED = 64


class SecureChannel:
    """A channel to one address. Thread-safe.

    Args:
        address: "host:port".
        credentials: What to show.
        clock: Time.

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
        # Whether gRPC is connected, as it was told last.
        self._ready = False
        # Numbers of callers that have asked for that, and were not answered yet.
        self._asked: deque[str] = deque(maxlen=_MOST_ASKED)
        self._token = credentials.shown_token()
        if self._token and self._tls is None and not credentials.insecure and not is_loopback(host):
            raise FailedPreconditionError(
                f"What is sent to {address} could be read and changed on the way, in spite of the token. Set "
                "GLOBALSTEP_TLS_CERT, _KEY and _CA, or GLOBALSTEP_INSECURE=1 where the network is trusted."
            )

    def metadata(self, method: str) -> tuple[tuple[str, str], ...]:
        """Give what a call shows: the token itself to who has proven by TLS who he is, else a proof of it.

        Args:
            method: The RPC.
        """
        try:
            token = self.credentials.shown_token()
        except FailedPreconditionError as error:
            # It is being replaced, or was: the old one may still do.
            _log.warning("The token stays as it was: %s", error)
            token = self._token
        if token:
            shown, trusted = self._authorization(token, method)
            # The call that has the task prove itself may reach anyone: it shows no secret.
            return (
                (("authorization", shown), (SESSION_KEY, session_secret())) if trusted else (("authorization", shown),)
            )
        # A process that shows no certificate has no role, and checks no other's.
        return ((SESSION_KEY, session_secret()),) if self._tls is not None else ()

    def _authorization(self, token: str, method: str) -> tuple[str, bool]:
        """Give what to show, and whether the task has proven who it is."""
        if self._tls is not None:
            return f"Bearer {token}", True
        with self._lock:
            if token != self._token:
                self._token, self._challenge = token, ""
            challenge, number = self._challenge, new_number()
            if not challenge:
                self._asked.append(number)
        shown = proof(token, challenge, number, self.dialled, method) if challenge else ""
        return str(TokenClaim(token_id(token), self.dialled, number, shown)), bool(challenge)

    @property
    def unproven(self) -> bool:
        """Whether the task has yet to prove that it has the token, before anything else is sent to it."""
        with self._lock:
            return bool(self._token) and self._tls is None and not self._challenge

    @property
    def proves_token(self) -> bool:
        """Whether the task has to prove by the token who it is, since no certificate does."""
        return bool(self._token) and self._tls is None

    def challenged(self, error: grpc.RpcError, asked: bool) -> bool:
        """Learn from a refusal what the task wants proven; gives whether to try again.

        Args:
            error: The refusal.
            asked: The call was the one that has the task prove itself; any other has shown a proof that was made for a
                process that is gone.

        Raises:
            UnauthenticatedError: If the server that refused it does not have the token.
        """
        metadata: dict[str, Any] = dict(error.trailing_metadata() or ()) if isinstance(error, grpc.Call) else {}
        challenge, _, shown = str(metadata.get(CHALLENGE_KEY, "")).partition(" ")
        if not challenge:
            return False
        with self._lock:
            if not asked:
                self._challenge = ""
                return True
            for number in self._asked:
                # Each number is good once: another process could repeat an earlier answer.
                if hmac.compare_digest(answer(self._token, challenge, number, self.dialled), shown):
                    self._asked.remove(number)
                    self._challenge = challenge
                    return True
        raise UnauthenticatedError(
            f"What answers at {self.address} does not have the token that this process has: it is no PS task of this "
            "run, or its --tokens-file is another one. Nothing was sent to it."
        )

    def asked_for_nothing(self) -> UnauthenticatedError:
        """Give the error for a task that answers without having proven that it has the token."""
        return UnauthenticatedError(
            f"What answers at {self.address} asks for no token, and this process has one: it is no PS task of this "
            "run, or it was started without --tokens-file. Nothing was sent to it."
        )

    def broken(self) -> None:
        """Have the task prove itself again: a connection to it has ended, and another process may listen there now."""
        with self._lock:
            self._challenge = ""

    def _changed(self, state: grpc.ChannelConnectivity) -> None:
        ready = state is grpc.ChannelConnectivity.READY
        with self._lock:
            # What a connection goes through before it is there says nothing of the task, and may be told late.
            if self._ready and not ready:
                self._challenge = ""
            self._ready = ready

    def call(self, stub: Any, method: str, request: Any, timeout_secs: float) -> Any:
        """Make a unary call and wait for its reply, once the task has proven itself where it has to.

        Args:
            stub: Of a channel that this made.
            method: The RPC.
            request: Its message.
            timeout_secs: For each call that it takes.

        Raises:
            grpc.RpcError: As the call.
            UnauthenticatedError: If what answers does not have the token of this process.
        """
        for last in (False, False, True):
            asks = self.unproven
            name, message = ("Status", pb.StatusRequest(brief=True)) if asks else (method, request)
            try:
                reply = getattr(stub, name)(message, timeout=timeout_secs, metadata=self.metadata(name))
            except grpc.RpcError as error:
                if last or not self.challenged(error, asks):
                    raise
            else:
                if not asks:
                    return reply
                raise self.asked_for_nothing()
        raise AssertionError("unreachable")

    def make(self, look: bool = True) -> grpc.Channel:
        """Make a channel with the newest certificates.

        Args:
            look: Look at the server's certificate where that matters; without, the channel sends no call there, and
                is outdated.
        """
        if self._tls is None:
            channel = grpc.insecure_channel(self.dialled, options=CHANNEL_OPTIONS)
            if self._token:
                # gRPC connects again by itself, and no call needs to fail for it.
                channel.subscribe(self._changed)
            return channel
        material = self._tls.latest()
        with self._lock:
            self._stamp = material.stamp
        assert self._server is not None
        secure = grpc.ssl_channel_credentials(self._server.roots(material, look), material.key, material.cert)
        return grpc.secure_channel(self.address, secure, options=CHANNEL_OPTIONS)

    def outdated(self) -> bool:
        """Whether there are newer certificates than those of the channel made last, of this process or the server."""
        if self._tls is None or self._server is None:
            return False
        if not self._server.asked:
            return True
        stamp = self._tls.latest().stamp
        with self._lock:
            return stamp != self._stamp

    def mistake(self) -> str:
        """Say what is wrong with TLS; "" where nothing is, or the server does not answer at all."""
        found = find_tls_mistake(self.address, self.credentials.tls)
        return found or (self._server.mistake if self._server is not None else "")

    def answered(self) -> None:
        """Take note that the address answers."""
        self._answered = True
        if self._since is not None:
            with self._lock:
                self._since, self._mistake = None, ""

    def judge(self, error: OpError) -> OpError:
        """Say whether an error comes of TLS.

        Args:
            error: Any; looked into if it is an UnavailableError.

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
