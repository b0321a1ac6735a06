"""PS tasks that ask for tokens, and clients that show them: for tests of what a role can do."""

from __future__ import annotations

import contextlib
import random

from globalstep.ps.access.authorization import Role
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.security.credentials import Credentials
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import GrpcTransport

TOKENS = {role.value: f"{role.value}-0123456789abcdef" for role in Role}


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
        self.servers = []
        for _ in range(shards):
            asks = SecurityOptions(tokens_file=str(path), **security)
            self.servers.append(PSServer(PSOptions(grace_secs=0.2, security=asks, **dict(options))))
            self.callback(self.servers[-1].close)
            self.servers[-1].start()

    def join(self, role, transport="auto", **more):
        """A client that shows the role's token."""
        shown = Credentials(token=TOKENS[role])
        transports = [GrpcTransport(s.address, at, transport, credentials=shown) for at, s in enumerate(self.servers)]
        client = ClusterClient(transports, rng=random.Random(5), **more)
        self.callback(client.close)
        return client

    def unary(self, role, method, request, at=0):
        """A unary call of a role."""
        shown = Credentials(token=TOKENS[role])
        with contextlib.closing(GrpcTransport(self.servers[at].address, 0, credentials=shown)) as connection:
            return connection.unary(method, request, 10.0).result()
