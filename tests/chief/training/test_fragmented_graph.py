"""Local steps in fragments, against PS tasks that are played: what becomes of the copies by what comes of a push.

The gradient is -1 everywhere, and the outer optimizer adds what it is given: the values tell how many steps they have.
"""

from types import SimpleNamespace

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.training.fragmented_graph import FragmentedGraph, WorkerPlace
from globalstep.chief.training.training_graph import Gradients, training_model
from globalstep.errors import AbortedError, JobDoneError, UnavailableError
from globalstep.graph.graph import Graph
from globalstep.wire.declarations import Outcome, OutcomeKind
from globalstep.worker.protocol.push_result import PushResult

BEGIN = {"w": np.zeros(3, np.float32), "c": np.zeros(2, np.float32)}


def loss_fn(params, _):
    return 0.0, {name: value * 0 - 1 for name, value in params.items()}


class PlayedTasks:
    """The values, and what becomes of the next pushes; stands in for an Executor."""

    def __init__(self):
        self.cluster = SimpleNamespace(incarnation=1)
        self.values = {f"model/{name}": value for name, value in BEGIN.items()} | {"global_step": np.int64(0)}
        self.outcomes, self.pushed, self.others = [], [], 0

    def pull(self, reads):
        return [self.values[read.variable] for read in reads]

    def begin_write(self):
        return 0

    def send(self, push, shapes):
        kind = self.outcomes.pop(0) if self.outcomes else OutcomeKind.ACCEPTED
        names = [op.variable.removeprefix("model/") for op in push.ops]
        self.pushed.append((names, push.seen_steps["global_step"]))
        if kind in (OutcomeKind.ACCEPTED, "unknown"):
            for op in push.ops:
                self.values[op.variable] = self.values[op.variable] - op.value
            self.values["global_step"] += 1
        if kind == "unknown":
            raise UnavailableError(None, None, "gone")
        values = self.pull(push.reads) if kind is OutcomeKind.ACCEPTED else []
        return PushResult(Outcome(kind, 1, {"global_step": int(self.values["global_step"])}), values)

    def taken(self, result):
        if result.outcome.kind is OutcomeKind.REFUSED_DONE:
            raise JobDoneError("over")
        return result.values if result.outcome.kind is OutcomeKind.ACCEPTED else None

    def move(self, step, by):
        """Have other workers synchronize everything."""
        for name in BEGIN:
            self.values[f"model/{name}"] = self.values[f"model/{name}"] + np.float32(by)
        self.values["global_step"] = np.int64(step)

    def found(self):
        return {name: float(self.values[f"model/{name}"][0]) for name in BEGIN}


class Worker:
    def __init__(self, tasks, **options):
        local = gs.LocalSteps(gs.optim.SGD(1.0), every=4, fragments=2, **options)
        with Graph().as_default():
            self.graph = FragmentedGraph(
                training_model(BEGIN, loss_fn), gs.optim.SGD(1.0), lambda: 0, Gradients(), local, WorkerPlace(0, 1, 100)
            )
        self.tasks, self.rounds = tasks, self.graph.train_op.attrs["local_rounds"]

    def step(self):
        self.graph.steps.take([0, 0], [0, 0])
        self.rounds.values(self.tasks)
        self.rounds.take(self.tasks, [])


def test_fragments_are_pushed_in_turn_each_with_the_steps_since_its_last():
    tasks = PlayedTasks()
    worker, found = Worker(tasks), []
    for _ in range(4):
        worker.step()
        found.append(tasks.found())
    assert [names for names, _ in tasks.pushed] == [["w"], ["c"], ["w"], ["c"]]
    assert [(one["w"], one["c"]) for one in found] == [(2, 0), (2, 4), (6, 4), (6, 8)]


def test_a_push_says_the_step_that_its_fragment_was_read_at():
    tasks = PlayedTasks()
    worker = Worker(tasks)
    for _ in range(4):
        worker.step()
    assert [seen for _, seen in tasks.pushed] == [0, 0, 1, 2]


@pytest.mark.parametrize("overlap", [0, 1])
def test_together_the_base_and_the_turn_are_those_of_the_step_that_the_worker_knows(overlap):
    tasks = PlayedTasks()
    worker = Worker(tasks, replicas=1, overlap=overlap)
    for _ in range(3 + bool(overlap)):
        worker.step()
    tasks.outcomes = [OutcomeKind.LATE]
    tasks.move(8, 0)
    for _ in range(3):
        worker.step()
    assert tasks.pushed == [(["w"], 0), (["c"], 1), (["w"], 2), (["c"], 3), (["w"], 8), (["c"], 9)]


@pytest.mark.parametrize("kind", [OutcomeKind.LATE, OutcomeKind.DROPPED_STALE, OutcomeKind.ABANDONED])
@pytest.mark.parametrize("overlap", [0, 1])
def test_steps_of_a_push_that_did_not_count_come_with_the_next_of_that_fragment(kind, overlap):
    tasks = PlayedTasks()
    # As much as is mixed in is what the copies are: no step under way is overwritten.
    worker = Worker(tasks, overlap=overlap, alpha=0.0)
    tasks.outcomes = [kind]
    tasks.move(0, 100)
    for _ in range(4 + overlap):
        worker.step()
    # With overlap, a fragment's step that is taken while its difference is under way, and counts, is overwritten.
    assert tasks.found() == {"w": 100.0 + 6, "c": 100.0 + 8 - overlap}


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_push_of_which_nobody_knows_what_came_is_not_made_again(overlap):
    tasks = PlayedTasks()
    worker = Worker(tasks, overlap=overlap)
    for _ in range(overlap):
        worker.step()
    tasks.outcomes = ["unknown"]
    with pytest.raises(UnavailableError):
        worker.step()
    assert tasks.found() == {"w": 2.0, "c": 0.0}
    for _ in range(1 + overlap):
        worker.step()
    # All that it goes on with is on the PS.
    assert tasks.found() == {"w": 4.0, "c": 0.0}


@pytest.mark.parametrize("overlap", [0, 1])
def test_after_a_restore_a_worker_begins_with_the_restored_values(overlap):
    tasks = PlayedTasks()
    worker = Worker(tasks, overlap=overlap, replicas=1)
    for _ in range(3):
        worker.step()
    tasks.cluster.incarnation = 2
    tasks.values = PlayedTasks().values
    tasks.move(4, 50)
    tasks.pushed.clear()
    for _ in range(1 + overlap):
        worker.step()
    assert tasks.found() == {"w": 52.0, "c": 50.0}
    assert tasks.pushed == [(["w"], 4)]


def test_a_session_made_anew_in_the_same_incarnation_goes_on_with_copies_and_with_what_waits():
    tasks, copied = PlayedTasks(), PlayedTasks()
    worker = Worker(tasks, overlap=1)
    worker.step()
    copied.values = tasks.values
    worker.tasks = copied
    worker.step()
    assert copied.pushed == [(["w"], 0)]
    assert copied.found() == {"w": 2.0, "c": 0.0}


@pytest.mark.parametrize("kind", [OutcomeKind.REFUSED_DONE, "aborted"])
def test_the_end_of_a_job_or_of_an_incarnation_reaches_the_caller_from_a_push_under_way(kind, monkeypatch):
    tasks = PlayedTasks()
    worker = Worker(tasks, overlap=1)
    worker.step()
    if kind == "aborted":
        monkeypatch.setattr(tasks, "send", lambda push, shapes: (_ for _ in ()).throw(AbortedError("restored")))
    tasks.outcomes = [kind]
    with pytest.raises(AbortedError if kind == "aborted" else JobDoneError):
        worker.step()
