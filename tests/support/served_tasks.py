"""PS tasks in this process, which serve as a PS process does, and clients of them: for tests of what goes between."""

from __future__ import annotations

import contextlib
import random

from globalstep.ps.access.authorization import Role
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.security.credentials import Credentials
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import GrpcTransport

TOKENS = {role.value: f"{role.value}-0123456789abcdef" for role in Role}


@contextlib.contextmanager
def starting(change=None):
    """Give what starts so many PS tasks of the same options, each changed by `change`; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(shards=1, **options):
            servers = []
            for _ in range(shards):
                server = PSServer(PSOptions(grace_secs=0.2, **options))
                stack.callback(server.close)
                server.start()
                if change is not None:
                    change(server)
                servers.append(server)
            return servers

        yield start


@contextlib.contextmanager
def joining():
    """Give what makes a client of PS tasks; all clients are closed at the end.

    What is not of its transports is said as ClusterClient takes it.
    """
    with contextlib.ExitStack() as stack:

        def join(servers, transport="auto", credentials=None, transport_clock=SYSTEM_CLOCK, **more):
            transports = [
                GrpcTransport(
                    server.address, at, transport, clock=transport_clock, credentials=credentials or Credentials()
                )
                for at, server in enumerate(servers)
            ]
            for one in transports:
                one.group = transports
            client = ClusterClient(transports, rng=random.Random(5), **more)
            stack.callback(client.close)
            return client

        yield join


def kinds(client):
    """Give what carries the data of each PS task."""
    return [connection.kind for connection in client.run.transports]


class TokenTasks(contextlib.ExitStack):
    """Tasks with tokens, and what is connected to them.

    Args:
        folder: For the file of tokens.
        shards: How many.
        options: Of the tasks.
        security: Of the tasks.
    """

    def __init__(self, folder, shards=1, options=(), **security):
        super().__init__()
        path = folder / "tokens"
        path.touch(0o600)
        path.write_text("".join(f"{role} {token}\n" for role, token in TOKENS.items()))
        asks = SecurityOptions(tokens_file=str(path), **security)
        self.servers = self.enter_context(starting())(shards, security=asks, **dict(options))
        self._join = self.enter_context(joining())

    def join(self, role, transport="auto", **more):
        """A client that shows the role's token."""
        return self._join(self.servers, transport, Credentials(token=TOKENS[role]), **more)

    def unary(self, role, method, request, at=0):
        """A unary call of a role."""
        shown = Credentials(token=TOKENS[role])
        with contextlib.closing(GrpcTransport(self.servers[at].address, 0, credentials=shown)) as connection:
            return connection.unary(method, request, 10.0).result()
