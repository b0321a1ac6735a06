"""`gs.train.Server` refuses what is no cluster before anything serves."""

import pytest

from globalstep.deploy.server import Server
from globalstep.errors import InvalidArgumentError
from globalstep.wire.transports import forget_target, is_in_process, transports_to


@pytest.mark.parametrize("address", ["localhost", "localhost:", f"localhost:{1 << 16}", "localhost:x", ":2222"])
def test_a_server_whose_own_address_has_no_port_says_so(address):
    with pytest.raises(InvalidArgumentError) as refused:
        Server({"ps": [address]}, job_name="ps", task_index=0)
    assert f'Could not parse port for local server from "{address}": an address is "host:port"' in str(refused.value)
    assert 'with a port up to 65535, such as "localhost:' in str(refused.value)


@pytest.mark.parametrize("start", [True, False])
def test_another_tasks_address_without_a_port_is_named_with_its_task(start):
    cluster = {"ps": ["127.0.0.1:0", "ps1.example"], "worker": ["127.0.0.1:1"]}
    for job in ("ps", "worker"):
        with pytest.raises(InvalidArgumentError, match=r'"ps1.example" as a host-port pair.*/job:ps/task:1'):
            Server(cluster, job_name=job, task_index=0, start=start)


def test_a_local_server_is_a_ps_in_this_process_and_one_of_several_ps_tasks_is_not():
    for cluster, alone in (({"ps": ["127.0.0.1:0"]}, True), ({"ps": ["127.0.0.1:0", "127.0.0.1:1"]}, False)):
        server = Server(cluster, job_name="ps", task_index=0, start=False)
        try:
            assert is_in_process(server.target) == alone
        finally:
            server.stop()
            forget_target(server.target)
    assert is_in_process("")
    assert not is_in_process("grpc://127.0.0.1:1")


@pytest.mark.parametrize(("told", "port"), [("none", None), ("0", 0), ("", 0)])
def test_a_server_that_is_a_ps_task_takes_its_tcp_port_from_the_environment(monkeypatch, told, port):
    monkeypatch.setenv("GLOBALSTEP_TCP_PORT", told)
    server = Server({"ps": ["127.0.0.1:0"]}, job_name="ps", task_index=0, start=False)
    try:
        assert server._ps._sockets._port == port
    finally:
        server.stop()
        forget_target(server.target)


def test_a_tcp_port_that_there_is_not_is_named(monkeypatch):
    monkeypatch.setenv("GLOBALSTEP_TCP_PORT", "some")
    with pytest.raises(InvalidArgumentError, match="GLOBALSTEP_TCP_PORT is 'some'"):
        Server({"ps": ["127.0.0.1:0"]}, job_name="ps", task_index=0, start=False)


@pytest.mark.parametrize("target", ["grpc://localhost", f"grpc://127.0.0.1:1,localhost:{1 << 16}", "grpc://"])
def test_a_target_without_a_port_is_refused_as_such(target):
    with pytest.raises(InvalidArgumentError, match=f"as a host-port pair: target '{target}'"):
        transports_to(target)


def test_a_protocol_for_special_networks_is_taken_for_grpc_and_another_is_refused(caplog):
    server = Server({"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:0"]}, "worker", 0, protocol="grpc+verbs", start=False)
    server.stop()
    forget_target(server.target)
    assert "Protocol 'grpc+verbs' is not available; 'grpc' is used" in caplog.text
    with pytest.raises(InvalidArgumentError, match="Protocol 'http' is not supported"):
        Server({"ps": ["127.0.0.1:0"]}, "ps", 0, protocol="http")
