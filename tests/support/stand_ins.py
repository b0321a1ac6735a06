"""Small stand-ins that tests of several folders put in a product object's place."""

import socket
import threading

from globalstep.errors import UnavailableError
from globalstep.runtime.clock import ManualClock
from globalstep.runtime.faults import BEFORE


class Stored:
    """A chief's journal that is stored as soon as it is written."""

    stored_index = 1 << 62

    def stop(self):
        """There is nothing left to store."""


class StandingStill(ManualClock):
    """For a client whose heartbeat gives its first sign of life, and no other."""

    def wait(self, event, timeout_secs):
        return event.wait()


class Held:
    """Holds the calls of a method until it is let go."""

    def __init__(self, method):
        self.method = method
        self.reached, self.go_on = threading.Event(), threading.Event()

    def at(self, point, method):
        if (point, method) == (BEFORE, self.method):
            self.reached.set()
            assert self.go_on.wait(20.0)


class Cut:
    """Cuts every socket of a PS task at one point of the next call of a method, where it is armed; counts."""

    def __init__(self, server, point, method, armed=True):
        self.server, self.point, self.method = server, point, method
        self.armed = armed
        self.cuts = 0

    def at(self, point, method):
        if self.armed and (point, method) == (self.point, self.method):
            self.armed = False
            self.cuts += 1
            for connection in list(self.server._sockets._connections):
                connection.end(socket.SHUT_RDWR)


class LossyTransport:
    """A transport that loses the first requests of a method, or their replies."""

    def __init__(self, transport, method, before, losses):
        self._transport, self._method, self._before, self._losses = transport, method, before, losses
        self.lost = 0

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def unary(self, method, request, timeout_secs):
        return self._pass(method == self._method, lambda: self._transport.unary(method, request, timeout_secs))

    def send(self, request, pieces):
        return self._pass(self._method == "Exchange", lambda: self._transport.send(request, pieces))

    def _pass(self, meant, carry_out):
        if not meant or self.lost == self._losses:
            return carry_out()
        self.lost += 1
        if not self._before:
            carry_out()
        return self

    def result(self):
        raise UnavailableError(f"{self._transport.label}: the network has eaten a message.")
