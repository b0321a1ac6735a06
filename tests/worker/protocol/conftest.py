"""What tests of the push protocol share: clients of PS tasks in this process, over one, two or three of them."""

import random

import pytest

from globalstep.ps.local import LocalPS
from globalstep.worker.client.client import ClusterClient


@pytest.fixture(params=[1, 2, 3])
def shards(request):
    return request.param


@pytest.fixture
def connected():
    """Make clients, and close them at the end."""
    clients = []

    def make(ps: LocalPS, **more) -> ClusterClient:
        clients.append(ClusterClient(ps.transports(), rng=random.Random(1), **more))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
