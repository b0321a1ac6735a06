"""A job of real processes within TLS and with roles: strangers at its doors all the time, its certificates renewed."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from pathlib import Path

import grpc
import pytest
from certificates import Authority, environ_of
from processes import Processes, free_addresses

from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.proto import globalstep_pb2_grpc as pb_grpc
from globalstep.security.credentials import Credentials
from globalstep.worker.transport.grpc_transport import GrpcTransport

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
TOKENS = {role: f"{role}-0123456789abcdef" for role in ("chief", "worker", "ps")}
STEPS = 400

pytestmark = pytest.mark.processes


class Strangers:
    """Seven kinds of callers that have no business here, each a thread that tries and tries."""

    def __init__(self, addresses, ours, theirs):
        self._addresses = addresses
        self._stop = threading.Event()
        self.let_in = []
        kinds = {
            "plain": Credentials(token=TOKENS["chief"]),
            "no certificate": Credentials(ours.issue("no-certificate"), TOKENS["chief"]),
            "another's role": Credentials(ours.issue("another-role"), TOKENS["worker"]),
            "no token": Credentials(ours.issue("no-token")),
            "wrong token": Credentials(ours.issue("wrong-token"), "wrong-0123456789abcdef"),
            "wrong CA": Credentials(theirs.issue("a", trusts=ours), TOKENS["chief"]),
            "expired": Credentials(ours.issue("b", expired=True), TOKENS["chief"]),
        }
        self.told = {name: set() for name in kinds}
        self._threads = [
            threading.Thread(target=self._intrude, args=item, name=f"stranger {item[0]}") for item in kinds.items()
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _intrude(self, name, shown):
        leave = pb.LeaveRequest(client=name)
        calls = {"Stop": pb.EndRequest(force=True), "Leave": leave, "Status": pb.StatusRequest(brief=True)}
        if name == "another's role":
            # A worker, which may look, and leave in its own name; neither as the chief nor as another worker.
            leave.client = f"s{'0' * 32}-{'0' * 12}"
            calls = {"Stop": calls["Stop"], "Begin": pb.BeginRequest(incarnation=9, owner="a"), "Leave": leave}
        while not self._stop.wait(0.1):
            for address in self._addresses:
                knock = self._without_certificate if name == "no certificate" else self._with_what_it_has
                for method, told in knock(address, shown, calls):
                    if told:
                        self.told[name].add(told)
                    else:
                        self.let_in.append(f"{name}: {method}")

    @staticmethod
    def _with_what_it_has(address, shown, calls):
        with contextlib.closing(GrpcTransport(address, 0, "grpc", credentials=shown)) as connection:
            for method, request in calls.items():
                try:
                    connection.unary(method, request, 5.0).result()
                    yield method, ""
                except OpError as error:
                    yield method, error.message

    @staticmethod
    def _without_certificate(address, shown, calls):
        """Our client always shows one; another one need not."""
        ca = grpc.ssl_channel_credentials(Path(shown.tls.ca).read_bytes())
        with grpc.secure_channel(address, ca) as channel:
            stub = pb_grpc.ParameterServerStub(channel)
            for method, request in calls.items():
                try:
                    getattr(stub, method)(request, timeout=5.0, metadata=[("authorization", f"Bearer {shown.token}")])
                    yield method, ""
                except grpc.RpcError as error:
                    yield method, f"{error.code().name}: {error.details()}"


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_job_goes_on_exactly(tmp_path, transport):
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{role} {token}\n" for role, token in TOKENS.items()))
    tokens.chmod(0o600)
    addresses = free_addresses(4)
    cluster = {"ps": addresses[:2], "chief": addresses[2:3], "worker": addresses[3:]}
    hosts = {"ps": ["127.0.0.1"], "chief": [], "worker": []}

    def environ(job, index):
        own = environ_of(ours.issue(job, *hosts[job])) | {"GLOBALSTEP_TRANSPORT": transport}
        if job != "ps":
            secret = tmp_path / f"{job}.token"
            secret.write_text(TOKENS[job])
            secret.chmod(0o600)
            own["GLOBALSTEP_TOKEN_FILE"] = str(secret)
        return own | {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}

    with Processes(tmp_path) as processes, Strangers(addresses[:2], ours, theirs) as strangers:
        for index in range(2):
            command = ["-m", "globalstep.ps", "--tokens-file", tokens, "--run-root", tmp_path, "--no-worker-assigns"]
            processes.start(f"ps{index}", *command, env=environ("ps", index))
        for job in ("chief", "worker"):
            options = ["--last-step", STEPS, "--dir", tmp_path / "run", "--save-steps", 100, "--pause-secs", 0.01]
            processes.start(job, JOB, *options, env=environ(job, 0))
        processes.until("worker", r"^step")
        for job in hosts:
            ours.issue(job, *hosts[job])
        codes = processes.wait()
        outputs = {name: processes.output(name) for name in codes}
    assert set(codes.values()) == {0}, outputs
    runs = [int(re.search(r"done after (\d+) runs", outputs[job]).group(1)) for job in ("chief", "worker")]
    # Each accepted push is one run of one of them; the last one of each may have been told that the job is done.
    assert STEPS <= sum(runs) <= STEPS + 2
    assert "wrong at step" not in outputs["chief"] + outputs["worker"]
    texts = {
        "no certificate": "UNAVAILABLE",
        "another's role": "Role 'worker' may not Stop; this is for 'chief' or 'standby'",
        "plain": "speaks TLS, and this process does not",
        "no token": "shows no role",
        "wrong token": "the token shown is none",
        "wrong CA": "not signed by a CA",
        "expired": "has expired",
    }
    assert not strangers.let_in
    assert strangers.told.keys() == texts.keys()
    for name, text in texts.items():
        assert any(text in told for told in strangers.told[name]), strangers.told
    log = outputs["ps0"] + outputs["ps1"]
    # These two are one kind of line, of which the log has one in 10 s.
    assert "shows no role" in log or "the token shown is none" in log
    for refusal in (
        "may not Begin", "which is another process's",
        "PEER_DID_NOT_RETURN_A_CERTIFICATE", "certificate has expired", "WRONG_VERSION_NUMBER",
    ):  # fmt: skip
        assert refusal in log, refusal
    assert "unable to get local issuer certificate" in log
    assert "was renewed" in log
    for secret in (*TOKENS.values(), "wrong-0123456789abcdef"):
        assert all(secret not in text for text in outputs.values())


def test_a_worker_that_shows_nothing_ends_and_says_why(tmp_path):
    ours = Authority(tmp_path / "ours")
    (address,) = free_addresses(1)
    cluster = {"ps": [address], "chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}

    def task(job):
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})}

    with Processes(tmp_path) as processes:
        processes.start("ps", "-m", "globalstep.ps", env=environ_of(ours.issue("ps", "127.0.0.1")) | task("ps"))
        processes.until("ps", r"^serving on")
        worker = processes.start("worker", JOB, "--last-step", "10", env=task("worker"))
        assert worker.wait(60) == 1
        said = processes.output("worker")
    assert "UnauthenticatedError" in said
    assert "speaks TLS, and this process does not" in said


def test_a_ps_task_does_not_serve_other_machines_by_mistake(tmp_path):
    with Processes(tmp_path) as processes:
        ps = processes.start("ps", "-m", "globalstep.ps", "--bind", "0.0.0.0:0")
        assert ps.wait(60) == 2
        assert "--insecure" in processes.output("ps")
