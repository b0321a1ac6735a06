"""Small stand-ins that tests of several folders put in a product object's place."""

import socket
import threading

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
