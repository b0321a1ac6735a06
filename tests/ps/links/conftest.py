"""What tests of the links share: PS tasks with real sockets, and their clients."""

import random

import pytest

from globalstep.ps.server import PSOptions, PSServer
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import transports_to


@pytest.fixture
def serving():
    servers = []

    def start(count):
        servers.extend(PSServer(PSOptions(grace_secs=0.2)) for _ in range(count))
        for server in servers:
            server.start()
        return servers

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def joined():
    clients = []

    def join(servers, transport, policy=None, **more):
        addresses = ",".join(server.address for server in servers)
        clients.append(ClusterClient(transports_to(addresses, transport), rng=random.Random(3), policy=policy, **more))
        return clients[-1]

    yield join
    for client in clients:
        client.close()
