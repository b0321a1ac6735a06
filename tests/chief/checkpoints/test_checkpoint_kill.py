"""Processes that are killed at random moments of saving leave a whole latest checkpoint behind."""

import subprocess
import sys

import pytest

# One process that forks the ones it kills: starting a hundred interpreters would take minutes. The saving
# process writes a byte for each thing it is about to do to the disk; it is killed after a random number
# of them, while it goes on: anywhere within the next move or two.
PROGRAM = """
import os, random, signal, sys
from types import SimpleNamespace
import numpy as np
from globalstep.chief.checkpoints.checkpoint import CheckpointReader, verify
from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.graph.graph import Graph
from globalstep.files.shard_file import write_shard
from globalstep.files.storage import LocalStorage
from globalstep.wire.declarations import VariableDecl
from globalstep.tf1.variables.variables import Variable

directory, rounds, rng = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))


class Telling(LocalStorage):
    def __init__(self, pipe):
        self.pipe = pipe


def telling(name):
    def move(self, *args):
        os.write(self.pipe, b".")
        return getattr(LocalStorage, name)(self, *args)
    return move


for name in ("open_write", "sync_file", "sync_directory", "rename", "delete"):
    setattr(Telling, name, telling(name))


class Cluster:
    shards = 2
    where = {"w": 0, "step": 1}
    variables = {
        "w": VariableDecl("w", "float32", (50_000,), 0),
        "step": VariableDecl("step", "int64", (), 1, is_step=True),
    }

    journal = None
    chief_lease = SimpleNamespace(term=0)
    run = SimpleNamespace(labels=("PS 0", "PS 1"))

    def __init__(self, number, storage):
        self.index, self.steps, self.ledger, self.storage = number, {"step": number}, b"", storage
        self.values = {"w": np.full(50_000, number, np.float32), "step": np.int64(number)}

    def snapshot(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def write(self, directory, files, names, probe):
        return {
            shard: write_shard(
                self.storage, directory, file, [(n, self.values[v]) for n, v in names.items() if self.where[v] == shard]
            )
            for shard, file in files.items()
        }


class Session:
    pass


def save_for_ever(pipe, number, numbered):
    storage = Telling(pipe)
    with Graph().as_default():
        Variable(np.zeros(50_000, np.float32), name="w")
        step = Variable(np.int64(0), name="step", is_step=True, trainable=False)
        saver = Saver(max_to_keep=2, storage=storage)
        while True:
            number += 1
            session = Session()
            session.cluster, session.graph = Cluster(number, storage), step.graph
            saver.save(session, os.path.join(directory, "m"), global_step=step if numbered else None)


last, whole = 0, 0
for numbered in rng.choices([True, False], k=rounds):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_for_ever(write, last, numbered)
        except BaseException as error:
            print("the saving process failed:", repr(error), flush=True)
        os._exit(1)
    os.close(write)
    wanted = rng.randrange(1, 90)
    while wanted > 0:
        wanted -= len(os.read(read, wanted)) or wanted
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    os.close(read)
    found = latest_checkpoint(directory)
    if found is None:
        assert last == 0, "the checkpoint is gone"
        continue
    verify(found)
    with CheckpointReader(found) as reader:
        number = int(reader.get_tensor("step"))
        assert (reader.get_tensor("w") == number).all(), "of two cuts"
    assert number >= last, (number, last)
    last = number
    whole += 1
print("whole", whole, "last", last)
"""


@pytest.mark.processes
def test_kill_at_a_hundred_random_moments(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), "100", "7"], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.startswith("whole ")
    whole, last = int(done.stdout.split()[1]), int(done.stdout.split()[3])
    assert whole > 90
    assert last > 100
    left = [path.name for path in tmp_path.iterdir() if ".tmp-" in path.name]
    # Each start clears away what the killed one left, so only the last one's may be there.
    assert len(left) <= 2
    # Two that are kept, one that was not recorded, and "m" of the times without a step.
    assert len(list(tmp_path.glob("*.index.json"))) <= 4
