import pytest

from globalstep.errors import FailedPreconditionError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.wire.protocol_version import NEWEST, OLDEST, check_protocol, own_protocol
from globalstep.worker.client.client import ClusterClient


def test_versions_that_overlap_are_taken():
    check_protocol(own_protocol(), "me", "them")
    check_protocol(pb.Protocol(oldest=OLDEST, newest=NEWEST + 5), "me", "them")


def test_a_client_from_before_versions_learns_nothing_of_a_run_and_is_told_why():
    transport = LocalPS(1).transports()[0]
    with pytest.raises(FailedPreconditionError, match="The client is older"):
        transport.unary("Status", pb.StatusRequest(), 5.0).result()
    # Whoever only looks how the task is may do so.
    assert transport.unary("Status", pb.StatusRequest(brief=True), 5.0).result().protocol.newest == NEWEST


def test_a_client_of_a_later_version_is_told_that_the_task_is_older():
    transport = LocalPS(1).transports()[0]
    later = pb.Protocol(oldest=NEWEST + 1, newest=NEWEST + 1, package="9.9.9")
    with pytest.raises(FailedPreconditionError, match=r"globalstep 9\.9\.9.*This PS task is older"):
        transport.unary("Status", pb.StatusRequest(protocol=later), 5.0).result()


@pytest.mark.parametrize("told", [pb.Protocol(), pb.Protocol(oldest=NEWEST + 1, newest=NEWEST + 1)])
def test_a_client_goes_no_further_with_a_task_of_another_version(told, monkeypatch):
    tasks = LocalPS(1)
    monkeypatch.setattr("globalstep.ps.service.control.own_protocol", lambda: told)
    client = ClusterClient(tasks.transports())
    with pytest.raises(FailedPreconditionError, match="is older: update"):
        client.begin(open=True)
    assert tasks.controls[0].handler.shard.view().incarnation == 0
    client.close()
