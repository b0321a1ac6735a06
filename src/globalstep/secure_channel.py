"""gRPC channels of clients: made with this process's certificates, made anew when those are renewed.

Floor: shared. Threads: a SecureChannel is thread-safe.
"""

from __future__ import annotations

import logging
import threading

import grpc

from globalstep.clock import SYSTEM_CLOCK, Clock
from globalstep.credentials import SESSION_KEY, Credentials, CurrentTls, is_loopback, session_secret
from globalstep.errors import FailedPreconditionError, OpError, UnauthenticatedError, UnavailableError
from globalstep.rpc import CHANNEL_OPTIONS
from globalstep.tls_probe import find_tls_mistake

__all__ = ["SecureChannel"]

_log = logging.getLogger(__name__)

#: How long a TLS mistake may be the other side's that is just being mended: a restart, a renewal.
PATIENCE_SECS = 5.0
#: A mistake is looked for no more often than this.
_PROBE_SECS = 1.0


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
        self.address = address
        self.credentials = credentials
        self._clock = clock
        self._tls = CurrentTls(credentials.tls) if credentials.tls is not None else None
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        self._stamp: object = None
        self._answered = False
        self._since: float | None = None
        self._probed: float | None = None
        self._mistake = ""
        self._token = credentials.shown_token()
        if (
            self._token
            and self._tls is None
            and not credentials.insecure
            and not is_loopback(address.rpartition(":")[0])
        ):
            raise FailedPreconditionError(
                f"A token would go to {address} for everybody on the way to read. Set GLOBALSTEP_TLS_CERT, _KEY and "
                "_CA, or GLOBALSTEP_INSECURE=1 where the network is trusted."
            )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Give what every call shows."""
        try:
            self._token = self.credentials.shown_token()
        except FailedPreconditionError as error:
            # It is being replaced, or was: the old one may still do.
            _log.warning("The token stays as it was: %s", error)
        if self._token:
            return ("authorization", f"Bearer {self._token}"), (SESSION_KEY, session_secret())
        # Who shows nothing of itself has no role, and nobody is looked at then.
        return ((SESSION_KEY, session_secret()),) if self._tls is not None else ()

    def make(self) -> grpc.Channel:
        """Make a channel with the newest certificates."""
        if self._tls is None:
            return grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        material = self._tls.latest()
        with self._lock:
            self._stamp = material.stamp
        secure = grpc.ssl_channel_credentials(material.ca, material.key, material.cert)
        return grpc.secure_channel(self.address, secure, options=CHANNEL_OPTIONS)

    def outdated(self) -> bool:
        """Whether there are newer certificates than those of the channel made last."""
        if self._tls is None:
            return False
        stamp = self._tls.latest().stamp
        with self._lock:
            return stamp != self._stamp

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
        if not isinstance(error, UnavailableError) or (self._tls is None and self._answered):
            return error
        now = self._clock.monotonic()
        with self._lock:
            look = self._probed is None or now - self._probed >= _PROBE_SECS
            if look:
                self._probed = now
            mistake = self._mistake
        if look:
            mistake = find_tls_mistake(self.address, self.credentials.tls)
        with self._lock:
            self._mistake = mistake
            if not mistake:
                self._since = None
                return error
            first = self._since = now if self._since is None else self._since
        if now - first < PATIENCE_SECS:
            return UnavailableError(mistake)
        return UnauthenticatedError(mistake)
