"""Sessions of every kind that the golden data is driven through: one PS or three, in process or over each transport."""

import contextlib

import globalstep as gs
from globalstep.cluster.run_policy import policy_of
from globalstep.ps.local import LocalPS
from globalstep.ps.server import PSOptions, PSServer
from globalstep.tf1.sessions.session import Session
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import transports_to

KINDS = ("local-1", "local-3", "grpc-1", "grpc-3", "shm-1", "shm-3", "unix-3", "tcp-1")
_TRANSPORTS = {"grpc": "grpc", "shm": "auto", "unix": "unix", "tcp": "tcp"}


@contextlib.contextmanager
def open_session(kind):
    """Open a session of the current graph on new PS tasks, with everything initialized."""
    transport, shards = kind.split("-")
    with contextlib.ExitStack() as stack:
        if transport == "local":
            transports = LocalPS(int(shards)).transports()
        else:
            servers = [stack.enter_context(_serving()) for _ in range(int(shards))]
            transports = transports_to(",".join(server.address for server in servers), _TRANSPORTS[transport])
        client = stack.enter_context(contextlib.closing(ClusterClient(transports, policy=policy_of(None))))
        sess = stack.enter_context(contextlib.closing(Session(cluster=client)))
        sess.run(gs.global_variables_initializer())
        yield sess
        assert transport == "local" or {used.kind for used in transports} <= {transport, ""}


@contextlib.contextmanager
def _serving():
    server = PSServer(PSOptions(grace_secs=0.2))
    server.start()
    try:
        yield server
    finally:
        server.close()
