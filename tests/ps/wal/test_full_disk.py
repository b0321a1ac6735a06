"""A disk that is full: calls wait and are carried out once, and a save or a recovery finds the room set aside."""

import contextlib
import logging
import os
import re
import subprocess

import numpy as np
import pytest
from stand_ins import Stored

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.deploy.status.view import Reading
from globalstep.errors import ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.ps.shard.events import Leave
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.declarations import Increment, Op, OpKind, Push, Read, VariableDecl
from globalstep.worker.client.client import ClusterClient


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MiB."""
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", tmp_path], check=False).returncode
    ):
        pytest.skip("only root can mount a file system")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


ADD = Push([Op(OpKind.ASSIGN_ADD, "w", value=np.ones(50_000, np.float32))], [Increment("step")])


def full(directory, tasks, client):
    """Push until the disk is full; gives how many pushes were acknowledged."""
    (directory / "filler").write_bytes(bytes(1 << 20))
    control, pushes = tasks.controls[0], 0
    while os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize > 200_000:
        client.push(ADD)
        pushes += 1
    assert control.handler.shard.view().incarnation
    return pushes


@pytest.fixture
def tasks():
    return LocalPS(1)


@pytest.fixture
def client(tasks, small_disk):
    client = unopened(tasks, small_disk)
    try:
        client.open()
        yield client
    finally:
        tasks.controls[0].durability.close()
        client.close()


def unopened(tasks, small_disk):
    client = ClusterClient(tasks.transports(), policy=RunPolicy(durability="log"), retry_secs=5.0)
    client.begin(open=False, run=RunIdentity(directory=str(small_disk)))
    client.journal = Stored()
    client.declare(
        [VariableDecl("w", "float32", (50_000,), trainable=True), VariableDecl("step", "int64", (), is_step=True)], []
    )
    client.push(Push([Op(OpKind.ASSIGN, "w", fill=0.0), Op(OpKind.ASSIGN, "step", value=np.array(0))]))
    return client


def test_a_call_waits_until_there_is_room(tasks, client, small_disk):
    pushes = full(small_disk, tasks, client)
    said = []

    def make_room(record):
        if "no room for the write-ahead log" in record.getMessage():
            said.append(record)
            (small_disk / "filler").unlink(missing_ok=True)
        return True

    log = logging.getLogger("globalstep.ps.wal.write_ahead_log")
    log.addFilter(make_room)
    try:
        client.push(ADD)
    finally:
        log.removeFilter(make_room)
    assert len(said) == 1
    assert client.global_steps() == {"step": pushes + 1}
    assert client.pull([Read("w")])[0][0] == pushes + 1


def test_a_save_finds_the_room_that_it_needs_and_shortens_the_log(tasks, client, small_disk):
    pushes = full(small_disk, tasks, client)
    with client.snapshot():
        pass
    folder = tasks.controls[0].handler.shard.log.directory
    assert not (folder / "segment-00000001.log").exists()
    assert (folder / "reserve").exists()
    for _ in range(3):
        client.push(ADD)
    assert client.global_steps() == {"step": pushes + 3}


def test_a_recovery_finds_the_room_that_it_needs(tasks, client, small_disk):
    pushes = full(small_disk, tasks, client)
    tasks.controls[0].durability.close()
    tasks.controls[0].handler.shard = Shard(SYSTEM_CLOCK)
    assert client.pull([Read("w")])[0][0] == pushes
    assert client.global_steps() == {"step": pushes}


def fill_up(directory):
    """Leave no byte."""
    with contextlib.suppress(OSError), (directory / "more").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_run_is_opened_with_the_room_set_aside(tasks, small_disk):
    client = unopened(tasks, small_disk)
    try:
        fill_up(small_disk)
        client.open()
        folder = tasks.controls[0].handler.shard.log.directory
        assert (folder / "opened").read_text() == "0"
        assert not (folder / "reserve").exists()
        assert client.push(ADD).outcome.steps == {"step": 1}
    finally:
        tasks.controls[0].durability.close()
        client.close()


def test_status_says_who_waits_for_room_since_when_and_how_much_is_missing(tasks, client, small_disk):
    log = tasks.controls[0].handler.shard.log
    fill_up(small_disk)
    began = log.now()
    log.now = lambda: began
    log.append(Leave("somebody" * 1000))
    with pytest.raises(ResourceExhaustedError):
        log.secure()
    log.now = lambda: began + 75.0
    with pytest.raises(ResourceExhaustedError) as waits:
        tasks.controls[0].call("Status", pb.StatusRequest(brief=True))
    said = waits.value.message
    assert said.startswith(f"There is no room for the write-ahead log in {log.directory}: ")
    assert re.search(r"It has waited for 75 s; \d+ bytes are to be written there, and 0 bytes are free\.", said), said
    (problem,) = Reading(["a:1"], [waits.value]).problems
    assert problem.startswith("a:1 waits for disk space: There is no room")
    (small_disk / "more").unlink()
    assert tasks.controls[0].call("Status", pb.StatusRequest(brief=True)).steps == {"step": 0}
