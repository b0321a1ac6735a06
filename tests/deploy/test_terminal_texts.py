"""What PS tasks, workers and files say does not speak to the terminal of who looks at them."""

from __future__ import annotations

import argparse
import io
import json
import re

import pytest
from rich.console import Console as Rich

from globalstep.deploy import checkpoint_cli
from globalstep.deploy.launch.console import Console
from globalstep.deploy.status.view import Reading, draw_status, draw_variables
from globalstep.errors import CheckpointError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb

#: Clears the screen, sets the window's title, begins a line, turns the text around; and markup of tables.
EVIL = "x\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202eWARNING: [red]y[/red]\u2028"
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def reply(shard):
    told = pb.StatusReply(
        state=pb.STATE_READY, incarnation=7, shard=shard, shards=2, process=EVIL, owner=EVIL, host=EVIL, directory=EVIL
    )
    told.steps[EVIL] = 3
    told.limits[EVIL] = 9
    told.clients.add(client=EVIL, task=EVIL, pushes=1)
    told.variables.add(name=EVIL, shard=shard, dtype="float32", shape=[2], optimizer=EVIL)
    told.variables.add(name=f"w{EVIL}", shard=shard, dtype="float32", whole=EVIL, whole_rows=2)
    told.uninitialized.append(EVIL)
    told.policy.staleness = told.policy.on_nan = told.policy.durability = EVIL
    told.chief.task = told.chief.holder = EVIL
    told.run.id = told.run.name = EVIL
    told.process = EVIL
    told.load.value_bytes = 8
    return told


def drawn(table, terminal):
    out = io.StringIO()
    Rich(file=out, width=200, force_terminal=terminal).print(table)
    return out.getvalue()


@pytest.mark.parametrize("answer", [reply(1), UnavailableError(EVIL)], ids=["answers", "error"])
def test_tables_of_a_cluster_have_no_controls_of_others(answer):
    reading = Reading(["a:1", f"b{EVIL}:2"], [reply(0), answer])
    for table in (draw_status(reading), draw_variables(reading)):
        plain = drawn(table, terminal=False)
        assert CONTROLS.search(plain) is None, plain
        # What rich writes for its own colours, and nothing else, on a terminal.
        coloured = re.sub(r"\x1b\[[0-9;]*m", "", drawn(table, terminal=True))
        assert CONTROLS.search(coloured) is None
        assert "[red]y[/red]" in re.sub(r"\s", "", plain)
    assert CONTROLS.search(json.dumps(reading.as_json())) is None


def test_lines_of_the_launchers_own_have_none():
    out = io.StringIO()
    console = Console(out, {})
    console.say(f"globalstep launch: {UnavailableError(EVIL)}")
    assert CONTROLS.search(out.getvalue()) is None
    assert out.getvalue().count("\n") == 1


def test_errors_of_checkpoints_have_none(tmp_path, monkeypatch, capsys):
    def corrupt(prefix):
        raise CheckpointError(EVIL)

    monkeypatch.setattr(checkpoint_cli, "verify", corrupt)
    monkeypatch.setattr(checkpoint_cli, "checkpoint_exists", lambda path: True)
    assert checkpoint_cli._verify(argparse.Namespace(path=str(tmp_path))) == 1
    assert CONTROLS.search(capsys.readouterr().out) is None
