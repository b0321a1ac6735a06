"""Nothing waits for ever without saying for whom: waits in the source that have no limit are listed here, with reasons.

What is looked for is what a reader would: calls that block until something else happens, without a timeout. A new one
fails this test; it gets a limit, or says now and then what it is for (globalstep.runtime.waiting), or comes into the
table with what ends it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from globalstep.proto import globalstep_pb2 as pb

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src/globalstep", "ps", "worker", "chief", "deploy", "tf1")

#: Methods that wait for ever when they are called with at most so many arguments and no timeout.
_METHODS = {
    "wait": 0, "join": 0, "result": 0, "exception": 0, "get": 0, "acquire": 0, "communicate": 0, "select": 0, "poll": 0,
    "accept": 0, "wait_for_termination": 0, "serve_forever": 0, "wait_for": 1,
}  # fmt: skip
#: Those that wait for a peer, whatever they are called with.
_OF_SOCKETS = {"connect", "do_handshake", "recv", "recv_into", "recvmsg_into", "sendall", "shutdown"}
#: Functions that wait for ever unless they are given a timeout.
_FUNCTIONS = {
    "run": "subprocess", "call": "subprocess", "check_call": "subprocess", "check_output": "subprocess",
    "waitpid": "os", "create_connection": "socket", "urlopen": "request", "as_completed": "futures",
}  # fmt: skip
_RPCS = {method.name for method in pb.DESCRIPTOR.services_by_name["ParameterServer"].methods} | {"Check", "future"}

_CALL = "the call was made with a deadline, a few lines above"
_SHUT = "its socket is shut down right before, or its event set: the thread is on its way out"
_WATCHED = "a call on a transport has a deadline, and the heartbeat breaks the connection off when it has passed"
_PEER = "a peer that says nothing is as good as one that waits; keepalive ends the connection of one that is gone"
_TIMEOUT = "the socket has a timeout"
_ENDED = "of a process that has closed its output, or was killed"
_LAUNCHED = "the job itself, which a person, or its engine, ends; the table says what runs"
_COMPUTES = "another thread computes, and waits for nobody"

#: File, and function in it -> what ends the wait.
ALLOWED = {
    "tf1/estimator/training.py": {"train_and_evaluate": "it serves until the job is done"},
    "tf1/test_case.py": {"CheckedThread.join": "the test that joins it has given it what to do"},
    "src/globalstep/security/peer_uid.py": {"_ask_kernel": _TIMEOUT},
    "src/globalstep/runtime/metrics_port.py": {
        "MetricsPort.close": "the server looks twice a second whether it is to end"
    },
    "tf1/execution/jax_kernels.py": {"_hold": "what a context holds is there"},
    "tf1/execution/offered_work.py": {"Offered.result": _COMPUTES},
    "tf1/execution/products.py": {"in_parts": _COMPUTES},
    "src/globalstep/wire/socket_messages.py": {"Incoming.fill": f"worker: {_WATCHED}; PS: {_PEER}"},
    "src/globalstep/wire/transports.py": {"ask_each": _CALL},
    "src/globalstep/files/shard_file.py": {"write_shard_from": _COMPUTES},
    "src/globalstep/security/certificates.py": {
        "_tls_client": _TIMEOUT,
        "_own_fault": "both sides are in memory",
        "_plain_server": _TIMEOUT,
    },
    "src/globalstep/__init__.py": {
        "_serve_as_ps": "a PS task serves until the job is done; it says whom it has not heard of"
    },
    "ps/__main__.py": {"main": "a PS task serves until the job is done; it says whom it has not heard of"},
    "ps/service/control.py": dict.fromkeys(
        ("Control._Declare", "Control._Heartbeat", "Control._Queue"), "a context variable"
    ),
    "ps/service/slow_senders.py": {"SlowSenders.stop": _SHUT},
    "ps/store/cores.py": {"Cores.share": _COMPUTES, "Cores.close": _COMPUTES},
    "ps/service/settler.py": {"Settler.stop": _SHUT},
    "src/globalstep/security/dialing.py": {
        "_dial_unix": _TIMEOUT,
        "_dial_tcp": _TIMEOUT,
        "_prove": _TIMEOUT,
        "_expect": _TIMEOUT,
    },
    "ps/access/strangers.py": {"Strangers._has_come": "the sockets do not block"},
    "ps/service/socket_server.py": {
        "SocketServer.open": "a context variable",
        "SocketServer.close": _SHUT,
        "_Listener._accept": "the listening socket does not block",
        "_Listener.close": _SHUT,
    },
    "ps/service/served_connection.py": {
        "ServedConnection.end": "tells the kernel only",
        "ServedConnection.welcome": "the socket has room for some bytes",
    },
    "worker/client/calls.py": {"Retrying.outcomes": f"control plane: {_CALL}; data plane: {_WATCHED}"},
    "chief/sessions/coordinator.py": {"Coordinator.wait_for_stop": "TensorFlow's: who gives no timeout asks for none"},
    "tf1/execution/executor.py": {"Executor.run": "each push under way has a limit, and says whom it tries to reach"},
    "worker/transport/grpc_transport.py": {
        "_Stream._prove": _CALL,
        "_UnaryCall._start": "the deadline is among the arguments",
        "_UnaryCall._answer": _CALL,
        "GrpcTransport._ask_for_socket": _CALL,
        "_EarlySocket.take": "the call of that thread has a deadline, and so has its connection; closing ends both",
    },
    "worker/client/heartbeat.py": {
        "Heartbeat.stop": _SHUT,
    },
    "worker/client/client.py": {
        "ClusterClient._make_ready": "pushes in flight say whom they wait for",
    },
    "worker/step/stepping.py": {
        "Stepper.wait": "pushes in flight say whom they wait for",
        "Stepper.step": "only what is done already",
    },
    "chief/client.py": {"ClientTicket.result": "pushes in flight say whom they wait for"},
    "chief/training/trainer.py": {"Trainer.assign.change": "pushes in flight say whom they wait for"},
    "worker/protocol/pushes_in_flight.py": {
        "PushesInFlight.close": "it waits until nothing is in flight before, and says so",
        "PushesInFlight._run": "the sending thread waits for work; close ends it",
    },
    "worker/client/recovering.py": {"_recover": _CALL, "find_logs": _CALL},
    "worker/transport/shm_transport.py": {"SharedConnection._take": _WATCHED},
    "worker/transport/connection.py": {
        "SocketConnection._wait_for_space": _WATCHED,
        "SocketConnection._end": "tells the kernel only",
    },
    "chief/checkpoints/cluster_saver.py": {
        "BackgroundSave.__init__": "the save has ended without a cut",
        "BackgroundSave.result": "the thread that sets it has ended",
    },
    "chief/hooks/checkpoint.py": {"CheckpointSaver._finish_save": "a BackgroundSave announces itself"},
    "chief/journal/journal_keeping.py": {"JournalKeeper.stop": _SHUT},
    "deploy/compose.py": {"run": _LAUNCHED, "_follow": "docker gives each task time to end", "_let_end": _ENDED},
    "deploy/ray/job.py": {"_ray_runs": "Ray's own"},
    "deploy/ray/member.py": {"Member.run": _ENDED},
    "deploy/launch/launcher.py": {
        "Launcher.run": _LAUNCHED,
        "Launcher._until_done": "the futures are done",
        "Launcher._run_once": _LAUNCHED,
    },
    "deploy/server.py": {
        "Server._join": "it serves until the job is done",
    },
    "deploy/slurm/cli.py": {"run": _LAUNCHED},
    "deploy/slurm/job.py": {"main": "Slurm's commands have a limit of their own, MessageTimeout"},
    "deploy/slurm/step.py": {
        "main": "Slurm's commands have a limit of their own, MessageTimeout",
        "_run_step": _LAUNCHED,
        "_run_step.on_term": "Slurm's commands have a limit of their own, MessageTimeout",
        "_output": "the same",
    },
}


def waits_in(tree: ast.AST, where: str = "") -> Iterator[tuple[str, int, str]]:
    """Find calls that may wait for ever: the function that they are in, the line, and the call."""
    for child in ast.iter_child_nodes(tree):
        inner = where
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{where}.{child.name}" if where else child.name
        if isinstance(child, ast.Call) and _waits(child):
            yield where, child.lineno, ast.unparse(child)
        yield from waits_in(child, inner)


def _waits(call: ast.Call) -> bool:
    if any("timeout" in name or name.endswith("_secs") for name in (keyword.arg or "" for keyword in call.keywords)):
        return False
    function, given = call.func, len(call.args)
    if isinstance(function, ast.Name):
        return function.id in _FUNCTIONS and function.id not in ("run", "call")
    if not isinstance(function, ast.Attribute):
        return False
    name, owner = function.attr, ast.unparse(function.value).rpartition(".")[2]
    if name in _FUNCTIONS and owner == _FUNCTIONS[name]:
        return name != "create_connection" or given < 2
    if owner == "events":
        return False  # an event of the shard's, of an RPC's name, is made
    if name in _RPCS and given:
        return name != "future" or isinstance(function.value, ast.Name)
    if name == "shutdown" and any(keyword.arg == "wait" for keyword in call.keywords):
        return ast.unparse(call.keywords[0].value) != "False"
    if name in _OF_SOCKETS:
        return True
    if name == "poll" and owner not in ("poll", "poller", "_poller", "poll()"):
        return False  # of a process: it only looks
    return name in _METHODS and given <= _METHODS[name] and not (name == "wait_for" and not given)


def test_every_wait_has_a_limit_or_a_reason():
    found: dict[str, dict[str, str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for where, line, call in waits_in(ast.parse(path.read_text())):
                found.setdefault(name, {})[where] = f"{name}:{line}: {call}"
    new = [text for name, waits in found.items() for where, text in waits.items() if where not in ALLOWED.get(name, {})]
    assert not new, (
        "give these a limit, or have them say what they wait for (globalstep.runtime.waiting):\n" + "\n".join(new)
    )
    listed = [(name, where) for name, waits in ALLOWED.items() if (ROOT / name).exists() for where in waits]
    gone = [f"{name}: {where}" for name, where in listed if where not in found.get(name, {})]
    assert not gone, f"these wait no more; take them out of the table: {gone}"


@pytest.mark.parametrize(
    "text",
    [
        "event.wait()", "thread.join()", "call.result()", "self._queue.get()", "lock.acquire()",
        "process.communicate()",
        "changed.wait_for(lambda: x)", "poll.poll()", "listening.accept()", "plain.recv(9)", "subprocess.run(['x'])",
        "stub.Settle(request)", "stub.Leave(request, metadata=m)", "urllib.request.urlopen(url)",
        "socket.create_connection(where)", "pool.shutdown(wait=True)", "server.wait_for_termination()",
        "call.future(request)",
    ],
)  # fmt: skip
def test_what_counts_as_a_wait_without_a_limit(text):
    assert list(waits_in(ast.parse(f"def f():\n    {text}"))) == [("f", 2, text)]


@pytest.mark.parametrize(
    "text",
    [
        "event.wait(1.0)", "thread.join(5)", "call.result(timeout=3)", "', '.join(names)", "table.get(key)",
        "changed.wait_for(lambda: x, 3.0)", "process.poll()", "subprocess.run(['x'], timeout=5)",
        "stub.Settle(request, timeout=2.0)", "socket.create_connection(where, 3.0)", "clock.wait(event, 1.0)",
        "poll.poll(100)", "process.communicate(timeout=5)",
    ],
)  # fmt: skip
def test_what_does_not(text):
    assert list(waits_in(ast.parse(f"def f():\n    {text}"))) == []
