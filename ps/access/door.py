"""Admission of gRPC calls: who calls is known, and has a seat, before a byte of the message is taken.

gRPC's own unary handlers wait for the message in a thread of the pool, and only then call what serves it: who sends
headers and nothing else would take all threads. Here every handler begins with the call's headers. It
finds out who calls, and ends the call of a stranger at once; so a stranger has a thread for as long as that takes, and
what it sends is not even received. Who may call gets a seat, or is refused in words, and must send its message within
some seconds.

Some seats are kept for the chief and for PS tasks, so that workers, however many, cannot keep a run from going on.

Layer: ps. Threads: any of grpc's at once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError, UnauthenticatedError
from globalstep.ps.access.authorization import METHODS, Authorization, Caller, Role
from globalstep.ps.service.slow_senders import SlowSenders, Stalled
from globalstep.runtime.waiting import join_announced
from globalstep.security.credentials import ROLE_URI, is_loopback
from globalstep.security.peer_uid import parse_peer
from globalstep.security.token_proofs import REPLY_KEY, digest_of

#: Seats that only the chief and PS tasks get, beyond those of everybody.
KEPT_SEATS = 8
#: Threads beyond the seats: those that refuse a caller when no seat is free.
SPARE_THREADS = 8
#: The most that one host, or one worker's own token, may have of the seats of everybody; so many it may have anyway.
_SHARE = 0.75
_LEAST_SHARE = 64
#: When to come back where the calls of others will soon be over.
_RETRY_SECS = 0.5
#: Methods whose messages grow with the program, or bring values; that of any other is of names and numbers.
_LARGE = frozenset({"Begin", "Declare", "Queue", "Recover", "WriteSnapshot"})
_MOST_BYTES = 4 << 20


class CallThreads(ThreadPoolExecutor):
    """Threads for calls. Where the system gives no thread more, those that there are serve on.

    Args:
        most: How many.
        name: What theirs begin with.
    """

    def __init__(self, most: int, name: str) -> None:
        # Those of the pool, which has no way to wait for them for a while only.
        self._made: list[threading.Thread] = []
        made = self._made
        super().__init__(most, name, initializer=lambda: made.append(threading.current_thread()))

    def join(self, what: str, why: Callable[[], str] = str) -> None:
        """End the threads, and wait for `what` they do, see join_announced."""
        self.shutdown(wait=False)
        for thread in self._made:
            join_announced(thread, what, why=why)

    def _adjust_thread_count(self) -> None:
        # Called when the call is in the queue already: an error here would end the thread that takes in all calls.
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


def whose_seat(caller: Caller) -> str:
    """Say on whose account a seat is: of a worker that has a token of its own, or of a host.

    The chief, PS tasks and this machine are on no account: all tasks of a small job may be on this machine.
    """
    if caller.role not in (None, Role.WORKER):
        return ""
    if caller.line is not None and caller.line.name:
        return f"worker {caller.line.name!r}"
    peer = parse_peer(caller.peer)
    return "" if peer is None or is_loopback(peer.host) else f"host {peer.host}"


def check_share(whose: str, seats: int, most: int) -> None:
    """Refuse another seat to a caller that has its share.

    Args:
        whose: As of `whose_seat`; not "".
        seats: What it has.
        most: The seats of everybody.

    Raises:
        ResourceExhaustedError: If it has three quarters of them, and 64.
    """
    share = max(_LEAST_SHARE, int(most * _SHARE))
    if seats >= share:
        raise ResourceExhaustedError(
            f"{whose} has {seats} of this PS task's {most} seats, and {share} are the most for one; raise "
            "--max-clients if so many are yours."
        )


class Seats:
    """Counts the callers that are served at a time. Thread-safe.

    Args:
        most: Seats of everybody.
        text: What to say to who finds none; has "{most}".
        retry_secs: When it may come back; 0 where waiting does not help.
    """

    def __init__(self, most: int, text: str, retry_secs: float = 0.0) -> None:
        self._most = most
        self._text = text
        self._retry_secs = retry_secs
        # Guards the attribute below; a leaf.
        self._lock = threading.Lock()
        self._taken_by: Counter[str] = Counter()

    @contextmanager
    def taken(self, privileged: bool, whose: str = "") -> Iterator[None]:
        """Have a seat meanwhile.

        Args:
            privileged: One of those that are kept will do.
            whose: On whose account, see `whose_seat`; "" for none.

        Raises:
            ResourceExhaustedError: If there is none, or too many are on that account.
        """
        with self._lock:
            if whose:
                check_share(whose, self._taken_by[whose], self._most)
            if self._taken_by.total() >= self._most + KEPT_SEATS * privileged:
                raise ResourceExhaustedError(self._text.format(most=self._most), retry_secs=self._retry_secs)
            self._taken_by[whose] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken_by[whose] -= 1
                self._taken_by += Counter()  # who has none is forgotten


class Door:
    """See the module's text. Thread-safe.

    Args:
        authorization: Who may do what.
        slow: Cuts off who sends nothing.
        max_clients: Streams that everybody together may have.

    Attributes:
        slow: As given.
        max_calls: Unary calls that everybody together may have.
    """

    def __init__(self, authorization: Authorization, slow: SlowSenders, max_clients: int) -> None:
        self._authorization = authorization
        self.slow = slow
        self.max_calls = max(max_clients, 64)
        self._streams = Seats(
            max_clients, "{most} clients have a stream to this PS task, which serves no more; raise --max-clients."
        )
        self._calls = Seats(
            self.max_calls, "This PS task carries out {most} calls at this moment, and takes no more.", _RETRY_SECS
        )

    def identify(self, method: str, context: grpc.ServicerContext) -> Caller:
        """Find out who calls, by the call's headers alone.

        Raises:
            OpError: If it may not call that.
        """
        proven = context.auth_context()
        # Of the alternative names, only URIs: who may ask for an e-mail address should not come by a role.
        uris = [uri for uri in map(bytes, proven.get("peer_uri", ())) if uri.startswith(ROLE_URI.encode())]
        names = [*proven.get("x509_common_name", ()), *uris]
        caller = self._authorization.identify(method, context.invocation_metadata() or (), names, context.peer())
        if caller.proven is not None:
            context.set_trailing_metadata(((REPLY_KEY, caller.proven.reply),))
        self._authorization.check_method(caller, method)
        return caller

    @contextmanager
    def stream(self, method: str, context: grpc.ServicerContext) -> Iterator[Caller]:
        """Let a stream in: gives its caller, who has a seat meanwhile.

        Raises:
            OpError: If it may not, or there is no seat.
        """
        caller = self.identify(method, context)
        if caller.proven is not None:
            # Nothing is sent to the task before.
            context.send_initial_metadata(((REPLY_KEY, caller.proven.reply),))
        with self._streams.taken(caller.role not in (None, Role.WORKER), whose_seat(caller)):
            yield caller

    @contextmanager
    def call(
        self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[tuple[Caller, bytes]]:
        """Let a unary call in: gives its caller, who has a seat meanwhile, and its message.

        Args:
            method: Its name.
            requests: Gives the message; nothing was asked of it yet.
            context: Of grpc.

        Raises:
            OpError: If it may not, there is no seat, or there is no message, or too large a one.
            grpc.RpcError: If the call ended before the message came.
        """
        caller = self.identify(method, context)
        # Where there are no roles, the chief is known by what it asks for.
        role = caller.role or (Role.WORKER if Role.WORKER in METHODS.get(method, ()) else Role.CHIEF)
        with self._calls.taken(role is not Role.WORKER, whose_seat(caller) if role is Role.WORKER else ""):
            with self.slow.watching(Stalled(context)):
                raw: Any = next(requests, None)
            if raw is None:
                raise InvalidArgumentError(f"{method} came without a message.")
            if caller.proven is not None and digest_of(raw) != caller.proven.digest:
                raise UnauthenticatedError(f"{method}: the caller's proof is for another message than this one.")
            if method not in _LARGE and len(raw) > _MOST_BYTES:
                raise ResourceExhaustedError(
                    f"A message of {method} has {len(raw):,} bytes; {_MOST_BYTES:,} are the most."
                )
            yield caller, raw
