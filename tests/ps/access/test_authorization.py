"""Who may do what on a PS task: the tables, how a role is known, and that every door asks for it."""

from __future__ import annotations

import ast
import contextlib
import itertools
import logging
import re
from pathlib import Path

import grpc
import numpy as np
import pytest
from counting_run import SHAPES, declarations, expected, initialize, state, step_push
from served_tasks import TOKENS, joining, starting

from globalstep.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
)
from globalstep.proto import globalstep_pb2 as pb
from globalstep.proto import globalstep_pb2_grpc as pb_grpc
from globalstep.ps.access.authorization import ANONYMOUS, KINDS, METHODS, Authorization, Caller, Role
from globalstep.ps.access.role_tokens import RoleTokens, RunTokens, parse_tokens
from globalstep.ps.access.run_paths import RunPaths
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.service.settler import asking
from globalstep.runtime.clock import ManualClock
from globalstep.security.client_ids import SESSION_KEY, holder_of, mark_of, new_client_id, session_secret
from globalstep.security.credentials import Credentials
from globalstep.wire.declarations import Op, OpKind, Push, VariableDecl
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import GrpcTransport

ROOT = Path(__file__).resolve().parents[3]
SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]
WRONG = "wrong-0123456789abcdef"
CARRIES = {"grpc": "grpc", "auto": "shm", "unix": "unix", "tcp": "tcp"}
CHIEFS = {Role.CHIEF, Role.STANDBY}


@pytest.fixture
def tokens_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("".join(f"{role} {token}\n" for role, token in TOKENS.items()))
    path.chmod(0o600)
    return path


@pytest.fixture
def serving(tokens_file):
    """Start PS tasks that ask for tokens."""
    with starting() as start:
        yield lambda shards=1, **more: start(shards, security=SecurityOptions(tokens_file=str(tokens_file), **more))


@pytest.fixture
def joined():
    """Make clients that show a token."""
    with joining() as join:

        def joined(servers, token, transport="auto", **more):
            return join(servers, transport, Credentials(token=TOKENS.get(token, token)), **more)

        yield joined


def unary(server, method, request, token):
    with contextlib.closing(GrpcTransport(server.address, 0, credentials=Credentials(token=token))) as connection:
        return connection.unary(method, request, 5.0).result()


# ---- The tables -----------------------------------------------------------------------------------


def test_every_method_and_every_kind_of_request_has_its_roles():
    assert set(METHODS) == {method.name for method in SERVICE.methods}
    kinds = {field.name for field in pb.Request.DESCRIPTOR.oneofs_by_name["kind"].fields}
    assert set(KINDS) == kinds


@pytest.mark.parametrize(("method", "role"), list(itertools.product([m.name for m in SERVICE.methods], Role)))
def test_who_may_call_what(method, role):
    workers = {"Status", "Heartbeat", "Leave", "GetGlobalStep", "Exchange", "OpenLane", "Declare", "Queue"}
    if role in CHIEFS:
        allowed = method != "Settle"
    elif role is Role.WORKER:
        allowed = method in workers
    else:
        allowed = method in ("Status", "Settle", "Queue")
    decided = contextlib.nullcontext() if allowed else pytest.raises(PermissionDeniedError, match=f"{role}.*{method}")
    authorization = Authorization(ManualClock())
    with decided:
        authorization.check_method(Caller(role), method)
    assert authorization.refusals == (0 if allowed else 1)


def test_a_method_that_is_in_no_table_is_for_nobody():
    with pytest.raises(PermissionDeniedError, match="this is for no role"):
        Authorization(ManualClock()).check_method(Caller(Role.CHIEF), "Format")


def test_without_roles_everybody_may_do_everything():
    authorization = Authorization(ManualClock())
    for method in METHODS:
        authorization.check_method(ANONYMOUS, method)
    assert authorization.identify("Exchange", [("authorization", "Bearer x")], [b"worker-7"], "ipv4:1") == Caller(
        None, "ipv4:1"
    )


@pytest.mark.parametrize("role", [Role.CHIEF, Role.WORKER])
def test_snapshots_are_the_chiefs_on_the_data_plane_too(role):
    authorization = Authorization(ManualClock())
    requests = [pb.Request(pull=pb.PullRequest(snapshot=pb.PushId())), pb.Request(push=pb.PushRequest(snapshot=True))]
    for request in requests:
        with contextlib.nullcontext() if role is Role.CHIEF else pytest.raises(PermissionDeniedError):
            authorization.check_request(Caller(role), request)
    authorization.check_request(Caller(role), pb.Request(push=pb.PushRequest()))


@pytest.mark.parametrize("kind", [pb.OP_ASSIGN, pb.OP_ASSIGN_ADD, pb.OP_ASSIGN_SUB])
def test_workers_assign_unless_it_is_forbidden(kind):
    push = pb.PushRequest(ops=[pb.Op(kind=pb.OP_APPLY, variable="w"), pb.Op(kind=kind, variable="w", fill=1.0)])
    stage = pb.StageRequest(ops=push.ops)
    for request in (pb.Request(push=push), pb.Request(stage=stage)):
        Authorization(ManualClock()).check_request(Caller(Role.WORKER), request)
        strict = Authorization(ManualClock(), workers_assign=False)
        strict.check_request(Caller(Role.CHIEF), request)
        with pytest.raises(PermissionDeniedError, match="'worker'.*assignment to 'w'"):
            strict.check_request(Caller(Role.WORKER), request)


def test_nobody_but_chiefs_goes_by_the_id_of_the_chiefs_client():
    authorization = Authorization(ManualClock())
    chief, worker = Caller(Role.CHIEF), Caller(Role.WORKER)
    authorization.check_method(chief, "Begin", pb.BeginRequest(owner="c1"))
    authorization.check_method(chief, "Heartbeat", pb.HeartbeatRequest(client="c2"))
    mine = pb.PushId(client="mine", sequence=1)
    for theirs in ("c1", "c2"):
        push_id = pb.PushId(client=theirs, sequence=1)
        for request in (
            pb.Request(push=pb.PushRequest(id=push_id)),
            pb.Request(stage=pb.StageRequest(id=push_id)),
            pb.Request(commit=pb.CommitRequest(id=push_id)),
            pb.Request(pull=pb.PullRequest(client=theirs)),
        ):
            with pytest.raises(PermissionDeniedError, match=f"in the name of the chief's client {theirs}"):
                authorization.check_request(worker, request)
        for method, message in (
            ("Leave", pb.LeaveRequest(client=theirs)),
            ("Declare", pb.DeclareRequest(client=theirs)),
        ):
            with pytest.raises(PermissionDeniedError, match="chief's client"):
                authorization.check_method(worker, method, message)
    authorization.check_request(worker, pb.Request(push=pb.PushRequest(id=mine)))
    authorization.check_method(worker, "Leave", pb.LeaveRequest(client="mine"))


def test_no_worker_goes_by_the_id_of_another_processs_client(tokens_file, caplog):
    authorization = Authorization(ManualClock(), RoleTokens(str(tokens_file)))
    theirs = new_client_id()
    shown = [("authorization", f"Bearer {TOKENS['worker']}")]
    owner, other, silent = (
        authorization.identify("Exchange", shown + secret, [], "ipv4:10.0.0.7:5000")
        for secret in ([(SESSION_KEY, session_secret())], [(SESSION_KEY, "guessed")], [])
    )
    push_id = pb.PushId(client=theirs, sequence=1)
    requests = [
        pb.Request(push=pb.PushRequest(id=push_id)),
        pb.Request(stage=pb.StageRequest(id=push_id)),
        pb.Request(commit=pb.CommitRequest(id=push_id)),
        pb.Request(pull=pb.PullRequest(client=theirs)),
    ]
    calls = [
        ("Leave", pb.LeaveRequest(client=theirs)),
        ("Heartbeat", pb.HeartbeatRequest(client=theirs)),
        ("Declare", pb.DeclareRequest(client=theirs)),
    ]
    for stranger in (other, silent):
        for request in requests:
            with pytest.raises(PermissionDeniedError, match=f"in the name of client {theirs}, which is another"):
                authorization.check_request(stranger, request)
        for method, message in calls:
            with pytest.raises(PermissionDeniedError, match=f"'worker' may not {method} in the name of client"):
                authorization.check_method(stranger, method, message)
    for request in requests:
        authorization.check_request(owner, request)
    for method, message in calls:
        authorization.check_method(owner, method, message)
    # An id of another form is bound to nobody, as that of a program that is none of ours.
    authorization.check_method(silent, "Leave", pb.LeaveRequest(client="mine"))
    assert session_secret() not in caplog.text


def test_an_id_tells_nothing_of_the_secret_that_it_is_bound_to():
    first, second = new_client_id(), new_client_id()
    assert first != second
    assert holder_of(first) == holder_of(second) == mark_of(session_secret())
    assert session_secret() not in first
    for text in ("", "c1", first[:-1], first + "0", "s" + "0" * 32, first.upper()):
        assert holder_of(text) == ""


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Heartbeat", pb.HeartbeatRequest(client="x", candidate="c", chief_term=1)),
        ("Heartbeat", pb.HeartbeatRequest(client="x", chief_term=1)),
        ("Leave", pb.LeaveRequest(client="x", candidate="c")),
    ],
)
def test_a_worker_does_not_speak_as_the_acting_chief(method, request_):
    authorization = Authorization(ManualClock())
    authorization.check_method(Caller(Role.STANDBY), method, request_)
    with pytest.raises(PermissionDeniedError, match="as chief"):
        authorization.check_method(Caller(Role.WORKER), method, request_)


# ---- How a role is known --------------------------------------------------------------------------


def identified(authorization, token=None, names=()):
    metadata = [("other", "x")] + ([("authorization", f"Bearer {token}")] if token else [])
    return authorization.identify("Exchange", metadata, names, "ipv4:10.0.0.7:5000").role


@pytest.mark.parametrize("role", Role)
def test_a_token_or_a_certificate_tells_the_role(tokens_file, role):
    authorization = Authorization(ManualClock(), RoleTokens(str(tokens_file)))
    assert identified(authorization, TOKENS[role]) is role
    assert identified(authorization, names=[b"node-7", f"role={role}".encode()]) is role
    assert identified(authorization, TOKENS[role], [f"role={role}".encode()]) is role


def test_what_is_no_token_is_refused_and_not_told(tokens_file, caplog):
    authorization = Authorization(ManualClock(), RoleTokens(str(tokens_file)))
    for shown in (WRONG, TOKENS["chief"][:-1], TOKENS["chief"] + "x", "\u00fc" * 20):
        with pytest.raises(UnauthenticatedError, match="Exchange") as caught:
            identified(authorization, shown, [b"role=chief"])
        assert shown not in str(caught.value)
    with pytest.raises(UnauthenticatedError, match="shows no role.*GLOBALSTEP_TOKEN_FILE"):
        identified(authorization)
    with pytest.raises(PermissionDeniedError, match="'worker'.*certificate of role 'chief'"):
        identified(authorization, TOKENS["worker"], [b"role=chief"])
    assert not any(token in caplog.text for token in (*TOKENS.values(), WRONG))
    assert "Refused ipv4:10.0.0.7:5000: Exchange" in caplog.text


def test_certificates_alone_may_be_asked_for_a_role():
    authorization = Authorization(ManualClock(), require_role=True)
    assert identified(authorization, names=[b"role=worker"]) is Role.WORKER
    with pytest.raises(UnauthenticatedError, match="certificate named role="):
        identified(authorization, names=[b"worker"])
    for names in ([b"role=root"], [b"role=worker", b"role=chief"]):
        with pytest.raises(UnauthenticatedError, match="names the roles"):
            identified(Authorization(ManualClock()), names=names)


def test_refusals_are_logged_now_and_then(tokens_file, caplog):
    clock = ManualClock()
    authorization = Authorization(clock, RoleTokens(str(tokens_file)))

    def strangers(count):
        for port in range(count):
            with pytest.raises(UnauthenticatedError):
                authorization.identify("Exchange", [("authorization", WRONG)], (), f"ipv4:10.0.0.7:{port}")

    strangers(1000)
    assert len(caplog.records) == 1
    clock.advance(11)
    strangers(3)
    assert len(caplog.records) == 2
    assert "(999 more since" in caplog.text


def test_who_makes_a_privileged_call_is_named_once(caplog):
    authorization = Authorization(ManualClock())
    chief = Caller(Role.CHIEF, "ipv4:127.0.0.1:1")
    with caplog.at_level(logging.INFO):
        for client in ("c1", "c1", "c2"):
            authorization.check_method(chief, "Begin", pb.BeginRequest(owner=client))
    assert [record.getMessage() for record in caplog.records] == [
        f"role 'chief' at ipv4:127.0.0.1:1, as client '{client}', asks for Begin." for client in ("c1", "c2")
    ]


def test_nobody_is_named_where_no_role_is_asked_for(caplog):
    """A plain run: every caller is without a role, so that a line would tell nothing."""
    with caplog.at_level(logging.INFO):
        Authorization(ManualClock()).check_method(Caller(None, "ipv4:127.0.0.1:1"), "Begin", pb.BeginRequest(owner="c"))
    assert caplog.records == []


def test_nobody_is_named_where_all_of_a_run_have_one_token(caplog):
    authorization = Authorization(ManualClock(), RunTokens("run-0123456789abcdef"))
    with caplog.at_level(logging.INFO):
        authorization.check_method(Caller(Role.CHIEF, "ipv4:127.0.0.1:1"), "Begin", pb.BeginRequest(owner="c1"))
    assert caplog.records == []


def test_tokens_are_read_again_when_their_file_changes(tokens_file, caplog):
    tokens = RoleTokens(str(tokens_file))
    fresh = "fresh-0123456789abcdef"
    tokens_file.write_text(f"worker {fresh}\nworker {TOKENS['worker']}\n# changed\n")
    assert (tokens.find(fresh).role, tokens.find(TOKENS["worker"]).role) == ("worker", "worker")
    assert tokens.find(TOKENS["chief"]) is None
    tokens_file.write_text("worker short")
    assert tokens.find(fresh).role == "worker"
    assert "stay as they were" in caplog.text
    assert fresh not in caplog.text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no token"),
        ("root 0123456789abcdef", "Line 1 .* must be a role"),
        ("worker", "Line 1"),
        ("\nworker 0123456789abcdef rest", "Line 2"),
        ("worker 0123456789", "at least 16 characters"),
        ("worker 0123456789abcdef\nchief 0123456789abcdef", "line 2 .* two roles"),
    ],
)
def test_a_file_of_tokens_that_is_none_is_refused(text, why):
    with pytest.raises(FailedPreconditionError, match=why) as caught:
        parse_tokens(text, "tokens")
    assert "0123456789" not in str(caught.value)


# ---- The doors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", CARRIES)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_worker_trains_and_does_nothing_else(serving, joined, transport, shards):
    servers = serving(shards, workers_assign=False)
    chief = joined(servers, "chief", transport)
    initialize(chief)
    worker = joined(servers, "worker", transport)
    worker.refresh()
    worker.declare(*declarations(shards))
    for _ in range(3):
        worker.push(step_push(reads=("w", "b")))
    assert state(worker) == expected(3)
    assert {connection.kind for connection in worker.run.transports} == {CARRIES[transport]}
    with pytest.raises(PermissionDeniedError, match="'worker' may not .*assignment to 'w'"):
        worker.push(Push(ops=[Op(OpKind.ASSIGN, "w", np.ones(SHAPES["w"], np.float32))]))
    with pytest.raises(PermissionDeniedError, match="'worker' may not take a snapshot"):
        worker.snapshot()
    with pytest.raises(PermissionDeniedError, match="'worker' may not Begin"):
        worker.begin(open=True)
    with pytest.raises(PermissionDeniedError, match="'worker' may not Open"):
        worker.open()
    with pytest.raises(PermissionDeniedError, match="'worker' may not Finish"):
        worker.finish()
    assert state(chief) == expected(3)
    assert chief.refresh()[0].state == pb.STATE_READY


@pytest.mark.parametrize("method", [m.name for m in SERVICE.methods if m.name != "Exchange"])
def test_no_method_is_carried_out_for_a_wrong_token(serving, method):
    (server,) = serving()
    before = server.shard.view()
    kind = SERVICE.methods_by_name[method].input_type
    request = getattr(pb, kind.name)()
    with grpc.insecure_channel(server.address) as channel:
        call = getattr(pb_grpc.ParameterServerStub(channel), method)
        for shown in ([("authorization", f"Bearer {WRONG}")], []):
            with pytest.raises(grpc.RpcError, match=method) as caught:
                call(request, timeout=10, metadata=shown)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert server.shard.view().state == before.state
    assert not server.shard.members.clients()
    assert not server.control.ended.is_set()


@pytest.mark.parametrize("transport", CARRIES)
def test_a_wrong_token_opens_no_stream_and_is_not_tried_again(serving, joined, transport, caplog):
    (server,) = serving()
    chief = joined([server], "chief", transport)
    initialize(chief)
    with caplog.at_level(logging.WARNING):
        stranger = joined([server], WRONG, transport, member=False)
        with pytest.raises(UnauthenticatedError, match="the token shown is none"):
            stranger.refresh()
        stranger._joined.incarnation = chief.incarnation
        stranger._joined.where.update(chief.where)
        with pytest.raises(UnauthenticatedError, match="the token shown is none"):
            stranger.push(step_push())
    assert not stranger.retries.view()
    assert "Refused ipv4:127.0.0.1:" in caplog.text
    assert state(chief) == expected(0)
    assert server.shard.view().statistics.duplicates == 0


def test_a_message_of_a_stranger_is_not_parsed(serving):
    (server,) = serving()
    with grpc.insecure_channel(server.address) as channel:
        status = channel.unary_unary("/globalstep.v1.ParameterServer/Status")
        garbage = b"\xff" * 100
        with pytest.raises(grpc.RpcError) as caught:
            status(garbage, timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as caught:
            status(garbage, timeout=5, metadata=[("authorization", f"Bearer {TOKENS['worker']}")])
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_ps_tasks_settle_with_each_other_and_others_do_not(serving, joined):
    servers = serving(2)
    chief = joined(servers, "chief")
    initialize(chief)
    sequencer = servers[chief.sequencer]
    request = pb.SettleRequest(incarnation=chief.incarnation, shard=1 - chief.sequencer)
    for role in ("chief", "standby", "worker"):
        with pytest.raises(PermissionDeniedError, match="may not Settle; this is for 'ps'"):
            unary(sequencer, "Settle", request, TOKENS[role])
    assert asking(lambda: Credentials(token=TOKENS["ps"]))(sequencer.address, request) == pb.ShardEntries(floor=1)
    # What the task's own thread does.
    servers[1 - chief.sequencer]._settler.settle_once()


# ---- Paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "..", ".", "a\\b", "a\0b"])
@pytest.mark.parametrize("field", ["file", "probe_file"])
def test_a_files_name_is_no_path(field, name):
    with pytest.raises(InvalidArgumentError, match=f"is not a file name .{field}"):
        RunPaths().check(pb.WriteSnapshotRequest(directory="/run", **{field: name}))


@pytest.mark.parametrize(
    "request_",
    [
        pb.WriteSnapshotRequest(directory="/home/me", file=".bashrc"),
        pb.WriteSnapshotRequest(directory="/home/me", file="model.safetensors", probe_file=".profile"),
    ],
    ids=["a file that no save makes", "a file whose text is known"],
)
def test_nothing_is_written_or_looked_at_but_files_of_a_save(request_):
    with pytest.raises(InvalidArgumentError, match="not the name of a (checkpoint's file|probe)"):
        RunPaths().check(request_)


def test_directories_are_within_the_root(tmp_path):
    root = tmp_path / "runs"
    (root / "a").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    paths = RunPaths(str(root))
    for good in ("", str(root), str(root / "a"), str(root / "new" / "deep"), str(root / "a" / ".." / "b")):
        paths.check(pb.BeginRequest(directory=good))
    bad = [
        tmp_path,
        root / "..",
        root / "link",
        root / "link" / "x",
        f"{root}x",
        "/",
        "s3://bucket/x",
        f"file://{root}",
    ]
    for directory in map(str, bad):
        for request in (pb.BeginRequest, pb.WriteSnapshotRequest, pb.LogRequest):
            with pytest.raises(PermissionDeniedError, match="--run-root"):
                paths.check(request(directory=directory))
    url = RunPaths("s3://bucket/runs/")
    url.check(pb.BeginRequest(directory="s3://bucket/runs/a"))
    for directory in ("s3://bucket/runs-2", "s3://bucket/runs/../x", "/runs", "gs://bucket/runs/a"):
        with pytest.raises(PermissionDeniedError):
            url.check(pb.BeginRequest(directory=directory))


def test_a_ps_task_writes_nothing_outside_its_root(tmp_path):
    root, outside = tmp_path / "runs", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    server = PSServer(PSOptions(grace_secs=0.2, security=SecurityOptions(run_root=str(root))))
    server.start()
    with contextlib.closing(server), contextlib.closing(ClusterClient([GrpcTransport(server.address, 0)])) as client:
        initialize(client)
        with client.snapshot() as cut:
            for folder, file in ((outside, "part.safetensors"), (root, "../outside/part.safetensors")):
                with pytest.raises((PermissionDeniedError, InvalidArgumentError)):
                    cut.write(str(folder), {0: file}, {"w": "w"}, (".globalstep-probe-1", "text"))
            (root / ".globalstep-probe-1").write_text("text")
            assert (
                cut.write(str(root), {0: "part.safetensors"}, {"w": "w"}, (".globalstep-probe-1", "text"))[0]
                is not None
            )
    assert not list(outside.iterdir())
    assert (root / "part.safetensors").exists()


# ---- Nothing received is unpickled ----------------------------------------------------------------


def test_nothing_in_the_package_can_unpickle():
    forbidden = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    mentioned = re.compile("|".join(forbidden | {"eval", "exec", "allow_pickle"}))
    found, looked = [], 0
    for folder in ("src/globalstep", "proto", "ps", "worker", "chief", "deploy", "tf1"):
        for path in (ROOT / folder).rglob("*.py"):
            looked += 1
            text = path.read_text()
            if not mentioned.search(text):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Import):
                    names = {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names = {(node.module or "").split(".")[0]}
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    names = {node.func.id} & {"eval", "exec"}
                else:
                    names = {word.arg for word in getattr(node, "keywords", ()) if word.arg == "allow_pickle"}
                found += [f"{path.name}: {name}" for name in names & (forbidden | {"eval", "exec", "allow_pickle"})]
    assert looked > 200
    # Texts of its own: of the steps of a graph and of a loop's body, with nothing but numbers in it, and of the loops
    # around a rule's step.
    assert sorted(found) == ["body.py: exec", "compiled.py: exec", "run.py: exec"]


# ---- Sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1 << 45,), (1 << 30, 1 << 30, 1 << 30)])
def test_a_declared_shape_takes_no_memory_that_is_not_there(serving, joined, shape):
    (server,) = serving()
    chief = joined([server], "chief")
    huge = [VariableDecl("huge", "float32", shape, 0)]
    with pytest.raises((ResourceExhaustedError, InvalidArgumentError), match="'huge'"):
        chief.declare(huge, [])
    assert not server.shard.view().variables
    initialize(chief)
    assert state(chief) == expected(0)


@pytest.mark.parametrize("role", ["worker", "chief"])
def test_only_who_may_be_chief_ends_a_chiefs_term(serving, joined, role):
    """A term that a worker has heard of is hearsay; the chief is no less the chief for it."""
    (server,) = serving()
    chief = joined([server], "chief")
    claim = pb.ClaimChiefRequest(candidate="one", configured=True)
    term = unary(server, "ClaimChief", claim, TOKENS["chief"]).chief.term
    chief.begin(open=False)
    initialize(chief)
    chief.open()
    heard = pb.HeartbeatRequest(client=f"{role}-x", lease_secs=5.0, known_term=term + 1)
    found = unary(server, "Heartbeat", heard, TOKENS[role]).chief
    assert (found.term, found.holder) == ((term, "one") if role == "worker" else (term + 1, ""))
    unary(server, "Leave", pb.LeaveRequest(client=f"{role}-x"), TOKENS[role])
    finish = pb.EndRequest(incarnation=chief.incarnation, client=chief._protocol.run.client, chief_term=term)
    if role == "chief":
        with pytest.raises(AbortedError, match="has been replaced"):
            unary(server, "Finish", finish, TOKENS["chief"])
    else:
        unary(server, "Finish", finish, TOKENS["chief"])
