"""A fixture of the tests of optimizers."""

import pytest

import globalstep as gs
from globalstep.cluster.run_policy import policy_of
from globalstep.ps.local import LocalPS
from globalstep.tf1.sessions.session import Session
from globalstep.worker.client.client import ClusterClient


@pytest.fixture
def session():
    """Open sessions on a cluster in this process, with everything initialized."""
    opened = []

    def open_session(shards=1):
        opened.append(Session(cluster=ClusterClient(LocalPS(shards).transports(), policy=policy_of(None))))
        opened[-1].run(gs.global_variables_initializer())
        return opened[-1]

    yield open_session
    for sess in opened:
        sess.close()
        sess.cluster.close()
