"""Clients in forked children of the process that made them: they refuse, and their parent goes on undisturbed."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from counting_run import expected, initialize, state, step_push
from served_tasks import joining, starting

import globalstep as gs
from globalstep.errors import FailedPreconditionError

pytestmark = pytest.mark.processes


def in_own_process(call):
    """Make `call` in a new process: what else this one has imported may not like to be forked, as jax does not."""
    program = f"import test_forked_children as tests; tests.{call}"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environ, timeout=60, check=True)


def in_child(act):
    """Give what `act` says in a forked child."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            os.write(write, act().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        found = said.read().decode()
    os.waitpid(pid, 0)
    return found


def push_beside_a_child():
    """Use a client in a child, where it refuses, and after that in the process that made it."""
    with starting() as serving, joining() as join:
        (server,) = serving()
        client = join([server], "unix")
        initialize(client)
        client.push(step_push())

        def use():
            said = []
            for act in (lambda: client.push(step_push()), client.global_steps, lambda: state(client), client.finish):
                try:
                    act()
                except FailedPreconditionError as error:
                    said.append(str(error))
            client.close()
            return "|".join(said)

        refusals = in_child(use).split("|")
        assert len(refusals) == 4
        assert all(f"belongs to process {os.getpid()}" in text for text in refusals)
        here = [view.client for view in server.shard.members.clients()]
        assert client.client_id in here
        for _ in range(2):
            client.push(step_push())
        assert state(client) == expected(3)


def train_while_children_leave(kind):
    """Take steps in a block that a child leaves after each."""
    with gs.Graph().as_default():
        w = gs.Variable(1.0)
        step = gs.train.GradientDescentOptimizer(0.1).minimize(w * w, gs.train.get_or_create_global_step())
        if kind == "trainer":
            loss = lambda w, batch: (1.0, np.ones(1))  # noqa: E731
            # Its checkpoints are in a directory that goes with the Trainer.
            evaluate = gs.Evaluate([np.zeros(1)])
            training = gs.Trainer(np.zeros(1), loss, optimizer=gs.optim.SGD(1.0), steps=9, evaluate=evaluate)
        else:
            make = gs.Session if kind == "session" else gs.train.MonitoredTrainingSession
            training = make(config=gs.ConfigProto(pushes_in_flight=2))
        with training:
            if kind == "session":
                training.run(gs.global_variables_initializer())
            for _ in range(2):
                training.step(0) if kind == "trainer" else training.run(step)
                assert in_child(lambda: f"left: {training.__exit__(None, None, None)}").startswith("left")


def test_a_child_uses_no_client_of_its_parent_and_closes_none():
    in_own_process("push_beside_a_child()")


@pytest.mark.parametrize("kind", ["trainer", "monitored session", "session"])
def test_a_child_that_leaves_its_parents_block_ends_nothing(kind):
    in_own_process(f"train_while_children_leave({kind!r})")
