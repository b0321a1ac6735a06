"""Tokens that are taken back, that are one worker's own, and that are for some Variables only: real PS tasks."""

from __future__ import annotations

import contextlib
import logging
import os
import random

import numpy as np
import pytest
from counting_run import SHAPES, expected, initialize, sent_by, state, step_push
from served_tasks import joining, starting

from globalstep.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    OpError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from globalstep.ps.access.role_tokens import EMPTY_SECS, LOOK_SECS, RoleTokens, parse_tokens, token_lines
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.runtime.clock import ManualClock
from globalstep.security.credentials import Credentials, read_secret
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import constant, variable
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import GrpcTransport

CHIEF, ALICE, BOB, LIMITED = (f"{name}-0123456789abcdef" for name in ("chief", "alice", "bob", "limited"))
LINES = [f"chief {CHIEF}", f"worker:alice {ALICE}", f"worker:bob {BOB}", f"worker:carol {LIMITED} variables=w*,e"]
MOMENTUM = {"learning_rate": constant(1.0), "momentum": constant(0.0), "use_nesterov": constant(0.0)}
PS_LINE, ALL_NAMED, ONE_NAMED = "ps between-0123456789abcdef", "dan-0123456789abcdef", "erin-0123456789abcdef"
TRANSPORTS = ["grpc", "auto", "unix", "tcp"]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)


@pytest.fixture
def tokens_file(tmp_path):
    path = tmp_path / "tokens"
    write(path, LINES)
    return path


@pytest.fixture
def clock(monkeypatch):
    """The time of the tokens file alone."""
    manual = ManualClock()
    made = RoleTokens.__init__
    monkeypatch.setattr(RoleTokens, "__init__", lambda self, path, clock=None: made(self, path, manual))
    return manual


@pytest.fixture
def join(tokens_file, clock):
    with contextlib.ExitStack() as stack:
        server = PSServer(PSOptions(grace_secs=0.2, security=SecurityOptions(tokens_file=str(tokens_file))))
        stack.callback(server.close)
        server.start()

        def client(token, transport="grpc"):
            connection = GrpcTransport(server.address, 0, transport, credentials=Credentials(token=token))
            made = ClusterClient([connection], rng=random.Random(5), retry_secs=1.0)
            stack.callback(made.close)
            made.refresh()
            return made

        chief = client(CHIEF)
        chief.begin(open=True)
        initialize(chief)
        client.server, client.chief = server, chief
        yield client


# ---- Taken back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("counts_only", [False, True])
def test_a_token_that_is_taken_back_ends_what_was_opened_with_it(join, tokens_file, clock, transport, counts_only):
    alice, bob = join(ALICE, transport), join(BOB, transport)
    push = Push(increments=[Increment("global_step")], layout="counts") if counts_only else step_push()
    for client in (alice, bob, alice, bob):
        client.push(push)
    connection = alice.run.transports[0]
    connection = connection._connection
    write(tokens_file, [line for line in LINES if ALICE not in line])
    clock.advance(LOOK_SECS)
    before = join.chief.global_steps()
    with pytest.raises(UnauthenticatedError):
        alice.push(push)
    # It was not only refused: its connection is over.
    assert connection.broken is not None
    with pytest.raises(UnauthenticatedError):
        alice.push(push)
    assert join.chief.global_steps() == before
    bob.push(push)
    assert join.chief.global_steps() == {"global_step": before["global_step"] + 1}


def test_a_token_whose_line_changes_has_to_be_shown_anew(join, tokens_file, clock):
    """It is no longer what it was; the client comes again by itself, and may what the new line says."""
    alice = join(ALICE)
    alice.push(step_push())
    write(tokens_file, [LINES[0], f"worker:alice {ALICE} variables=w"])
    clock.advance(LOOK_SECS)
    with pytest.raises(OpError):
        alice.push(step_push())
    with pytest.raises(PermissionDeniedError, match="'alice'.*'b'"):
        alice.push(step_push())


@pytest.mark.parametrize("how", ["removed", "empty", "comments"])
def test_without_its_file_nobody_is_let_in_or_stays(join, tokens_file, clock, how):
    alice = join(ALICE)
    alice.push(step_push())
    if how == "removed":
        tokens_file.unlink()
    else:
        tokens_file.write_text("" if how == "empty" else "# nobody\n\n")
    # Whoever writes it anew empties it first.
    assert alice.global_steps() == {"global_step": 1}
    clock.advance(EMPTY_SECS)
    for client in (alice, join.chief):
        with pytest.raises(UnauthenticatedError):
            client.global_steps()
    with pytest.raises(UnauthenticatedError):
        alice.push(step_push())
    write(tokens_file, LINES)
    assert alice.global_steps() == {"global_step": 1}


def test_a_file_that_is_empty_for_a_moment_revokes_nothing(tokens_file):
    clock = ManualClock()
    tokens = RoleTokens(str(tokens_file), clock)
    tokens_file.write_text("")
    assert tokens.find(BOB).role == "worker"
    write(tokens_file, LINES)
    clock.advance(EMPTY_SECS)
    assert tokens.find(BOB).role == "worker"
    assert tokens.find(CHIEF).role == "chief"


# ---- One worker's own -----------------------------------------------------------------------------


def test_who_asked_for_what_changes_a_run_is_in_the_log(join, caplog):
    with caplog.at_level(logging.DEBUG, logger="globalstep.ps.access.authorization"):
        join.chief.begin(open=True)
        with pytest.raises(PermissionDeniedError):
            join(ALICE).finish()
    told = [record.message for record in caplog.records if "Begin" in record.message]
    assert len(told) == 1
    assert "role 'chief' at ipv4:127.0.0.1" in told[0]
    assert repr(join.chief.client_id) in told[0]
    assert CHIEF not in caplog.text
    assert ALICE not in caplog.text


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("worker: TOKEN", "must be a role"),
        ("worker:a/b TOKEN", "must be a role"),
        ("worker:alice TOKEN variables=", "must be a role"),
        ("worker:alice TOKEN variables=a,,b", "must be a role"),
        ("worker:alice TOKEN all", "must be a role"),
        ("chief TOKEN variables=a", "must be a role"),
        ("worker TOKEN\nworker:alice TOKEN", "line 2"),
        ("worker TOKEN\nworker TOKEN variables=a", "line 2"),
    ],
)
def test_lines_that_are_none(line, why):
    with pytest.raises(FailedPreconditionError, match=why) as caught:
        token_lines(line.replace("TOKEN", BOB), "tokens")
    assert BOB not in str(caught.value)


def test_tokens_without_a_name_are_handed_out_first_and_none_is_shown():
    text = "\n".join([*LINES, "worker plain-0123456789abcdef"])
    assert parse_tokens(text, "tokens")["worker"][0] == "plain-0123456789abcdef"
    assert ALICE not in repr(token_lines(text, "tokens"))


# ---- Some Variables only --------------------------------------------------------------------------


def apply(*names, reads=(), **more):
    ops = [Op(OpKind.APPLY, name, np.full(SHAPES[name], -1.0, np.float32), optimizer="sgd") for name in names]
    return Push(
        ops=ops,
        increments=[Increment("global_step")],
        uses=[OptimizerUse("sgd")] if ops else [],
        reads=[Read(name) for name in reads],
        **more,
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_token_for_some_variables_touches_no_others(join, transport):
    carol = join(LIMITED, transport)
    carol.push(apply("w", "e", reads=["w", "global_step"], layout="mine"))
    carol.push(apply("w", "e", reads=["w", "global_step"], layout="mine"))
    assert carol.pull([Read("e"), Read("global_step")])[1] == 2
    before = state(join.chief)
    bad = [
        apply("b"),
        apply("w", "b", layout="others"),
        apply("w", "b", layout="others"),
        apply("w", reads=["b"]),
        apply(reads=["b"]),
        Push(ops=[Op(OpKind.ASSIGN, "b", fill=1.0)]),
        Push(ops=[Op(OpKind.ASSIGN, "global_step", fill=9)]),
        Push(ops=[Op(OpKind.ASSIGN_ADD, "w", source="b")]),
    ]
    for push in bad:
        with pytest.raises(PermissionDeniedError, match="'carol'.*for Variables w\\*, e"):
            carol.push(push)
    with pytest.raises(PermissionDeniedError, match="may not pull 'b'"):
        carol.pull([Read("w"), Read("b")])
    assert state(join.chief) == before


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("how", ["slot", "scalar", "expression", "variable", "trained"])
def test_a_token_for_some_variables_declares_no_others(join, transport, how):
    """An optimizer of its own would read and write what it names as its slots, scalars and numbers."""
    carol, before = join(LIMITED, transport), state(join.chief)
    mine = [VariableDecl("w/v", "float32", (3,))]
    declared = {
        "slot": (mine, OptimizerDecl("my", "momentum", MOMENTUM, {"w/v": ("b",)})),
        "scalar": (mine, OptimizerDecl("my", "zero_debias_moving_average", {}, {}, ("b",))),
        "expression": (mine, OptimizerDecl("my", "gradient_descent", {"learning_rate": variable("b")}, {"w/v": ()})),
        "variable": ([VariableDecl("c", "float32", (3,))], None),
        "trained": (mine, OptimizerDecl("my", "gradient_descent", {"learning_rate": constant(1.0)}, {"b": ()})),
    }
    variables, optimizer = declared[how]
    with pytest.raises(PermissionDeniedError, match="'carol'.*may not declare '[bc]'"):
        carol.declare(variables, [optimizer] if optimizer else [])
    assert state(join.chief) == before
    carol.declare(mine, [OptimizerDecl("my", "gradient_descent", {"learning_rate": constant(1.0)}, {"w/v": ()})])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nobody_declares_a_variable_of_the_run_as_its_slot(join, transport):
    bob, before = join(BOB, transport), state(join.chief)
    join.chief.declare([VariableDecl("plain", "float32", (3,))], [])
    for taken in ("w", "plain"):
        declared = OptimizerDecl("my", "momentum", MOMENTUM, {"my/v": (taken,)})
        with pytest.raises(AlreadyExistsError, match=rf"'{taken}' is declared as 'momentum' of Variable 'my/v'"):
            bob.declare([VariableDecl("my/v", "float32", (3,))], [declared])
    assert state(join.chief) == before


@pytest.fixture
def two_tasks(tokens_file, clock):
    """Two PS tasks, and what makes clients of them."""
    write(tokens_file, [*LINES, PS_LINE])
    asks = SecurityOptions(tokens_file=str(tokens_file))
    with starting() as serving, joining() as joined:
        servers = serving(2, security=asks)

        def join(token, transport):
            client = joined(servers, transport, Credentials(token=token))
            if token != CHIEF:
                client.refresh()
            return client

        chief = join(CHIEF, "unix")
        chief.begin(open=False, sequencer=1)
        initialize(chief)
        chief.open()
        yield chief, join


@pytest.mark.parametrize("transport", ["grpc", "unix", "tcp"])
def test_a_token_for_some_variables_trains_them_over_several_tasks(tokens_file, two_tasks, transport):
    chief, join = two_tasks
    named = [f"worker:dan {ALL_NAMED} variables=w,b,e", f"worker:erin {ONE_NAMED} variables=b"]
    write(tokens_file, [*LINES, PS_LINE, *named])
    dan, erin = join(ALL_NAMED, transport), join(ONE_NAMED, transport)
    for _ in range(3):
        dan.push(step_push(reads=("w", "b")))
    kinds = sent_by(dan)
    dan.push(step_push(reads=("w", "b")))
    assert kinds == ["stage", "push", "commit"]
    with pytest.raises(PermissionDeniedError, match="'erin' .*may not stage '[we]'"):
        erin.push(step_push())
    assert state(chief) == expected(4)


# ---- Who may read the file ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o640, 0o660])
def test_a_file_that_others_may_read_is_refused(tokens_file, mode):
    tokens_file.chmod(mode)
    if os.geteuid() == 0:
        os.chown(tokens_file, 54001, 54001)
    with pytest.raises(FailedPreconditionError, match=f"mode {mode:04o}.*chmod 600 {tokens_file}") as caught:
        PSServer(PSOptions(security=SecurityOptions(tokens_file=str(tokens_file))))
    assert BOB not in str(caught.value)
    with pytest.raises(FailedPreconditionError, match="chmod 600"):
        Credentials(token_file=str(tokens_file)).shown_token()


def test_what_root_gives_a_group_may_be_read_by_it(tokens_file):
    if os.geteuid() != 0:
        pytest.skip("needs root's files")
    tokens_file.chmod(0o440)
    assert BOB in read_secret(str(tokens_file))
