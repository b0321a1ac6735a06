"""Several monitored sessions on the PS tasks of one cluster: who starts, who takes over, who ends."""

import json
import threading

import pytest
from small_model import LocalCluster, build, wait_for_saves

from globalstep.chief.hooks.run_report import RunReport
from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.sessions.chief_role import place_of_task
from globalstep.chief.sessions.session_creators import SessionCreator, is_at_limit
from globalstep.cluster.cluster import ClusterSpec, from_tf_config, target_of
from globalstep.errors import AbortedError, DeadlineExceededError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.hooks.checkpoint import CheckpointSaverHook
from globalstep.tf1.hooks.step import StepCounterHook, StopAtStepHook
from globalstep.tf1.hooks.summary import SummarySaverHook
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.sessions.monitored_session import MonitoredSession
from globalstep.tf1.sessions.session import Session
from globalstep.tf1.sessions.training_session import MonitoredTrainingSession
from globalstep.tf1.variables.assignments import assign_add
from globalstep.wire.declarations import Read


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    yield
    SummaryWriterCache.clear()


@pytest.fixture
def cluster():
    made = LocalCluster(shards=2)
    yield made
    made.close()


class Task:
    """One task's program: its own graph and its monitored session, on the test's thread."""

    def __init__(self, cluster, is_chief=True, last_step=None, clock=None, **arguments):
        self.graph = Graph()
        with self.graph.as_default():
            self.model = build()
            self.by_eight = assign_add(self.model.step, 8)
            hooks = [StopAtStepHook(last_step=last_step)] if last_step is not None else []
            self.session = MonitoredTrainingSession(
                cluster.target,
                is_chief=is_chief,
                hooks=[*hooks, *arguments.pop("hooks", ())],
                clock=clock or ManualClock(),
                **arguments,
            )

    def step(self, by=1.0):
        with self.graph.as_default():
            return self.session.run([self.model.train, self.model.step], {self.model.by: by})[1]

    def w(self):
        return self.session._tf_sess().run(self.model.w).tolist()

    def close(self):
        with self.graph.as_default():
            self.session.close()


def test_the_limit_is_exact_whoever_pushes_last(cluster):
    chief = Task(cluster, last_step=5)
    worker = Task(cluster, is_chief=False, last_step=5)
    assert [chief.step(), worker.step(), worker.step(), chief.step()] == [0, 1, 2, 1]
    assert not chief.session.should_stop()
    worker.step()
    assert worker.session.should_stop()
    # The chief's own push comes too late: it returns normally, and nothing is applied.
    assert chief.step() is not None
    assert chief.session.should_stop()
    assert chief.w() == [5.0, 5.0]
    assert cluster.sequencer.steps == {"global_step": 5}
    worker.close()
    chief.close()
    assert cluster.view().state == pb.STATE_DONE


def test_a_step_that_rises_by_eight_ends_at_the_first_value_at_or_beyond_the_limit(cluster, tmp_path):
    """As a single TensorFlow process does; what comes after is refused, and nobody waits for more to come."""
    chief = Task(cluster, last_step=20, checkpoint_dir=str(tmp_path))
    worker = Task(cluster, is_chief=False, last_step=20)

    def push(task):
        with task.graph.as_default():
            task.session.run(task.by_eight)

    for task in (worker, chief, worker):
        push(task)
    assert cluster.sequencer.steps == {"global_step": 24}
    assert worker.session.should_stop()
    push(chief)
    assert chief.session.should_stop()
    assert cluster.sequencer.steps == {"global_step": 24}
    # A worker that finds no chief to save the last step takes over at this.
    assert is_at_limit(chief.session._tf_sess().cluster.refresh())
    worker.close()
    chief.close()
    assert (tmp_path / "model.ckpt-24.index.json").exists()


def test_num_steps_counts_from_the_chiefs_start(cluster, tmp_path):
    chief = Task(cluster, hooks=[StopAtStepHook(num_steps=3)], checkpoint_dir=str(tmp_path))
    assert cluster.sequencer.limits == {"global_step": 3}
    for _ in range(3):
        chief.step()
    assert chief.session.should_stop()
    chief.close()
    second = LocalCluster(shards=1)
    chief = Task(second, hooks=[StopAtStepHook(num_steps=3)], checkpoint_dir=str(tmp_path))
    assert second.sequencer.limits == {"global_step": 6}
    chief.close()
    second.close()


def test_num_steps_counts_in_a_session_that_a_program_makes_by_itself(cluster):
    """That session has asked the PS tasks nothing yet when the hook asks it for the step."""

    class Makes(SessionCreator):
        def create_session(self):
            return Session(cluster.target)

    chief = Task(cluster)
    chief.step()
    with Graph().as_default():
        train = build()
        with MonitoredSession(Makes(), [StopAtStepHook(num_steps=2)], clock=ManualClock()) as session:
            while not session.should_stop():
                session.run(train.train, {train.by: 1.0})
    assert cluster.sequencer.steps == {"global_step": 3}
    chief.close()


def test_a_chief_that_comes_back_takes_over_without_a_restore(cluster, tmp_path, caplog):
    chief = Task(cluster, last_step=50, checkpoint_dir=str(tmp_path))
    worker = Task(cluster, is_chief=False)
    chief.step()
    chief.session._release()  # as if the process had died: no `end`, no final checkpoint
    worker.step()
    with caplog.at_level("INFO", "globalstep"):
        again = Task(cluster, last_step=50, checkpoint_dir=str(tmp_path))
    life = cluster.view().incarnation
    assert f"Taking over a running model: all 2 PS task(s) are in incarnation {life}." in caplog.text
    assert again.step() == 2
    assert worker.step() in (2, 3)
    assert again.w() == [4.0, 4.0]
    worker.close()
    again.close()


def test_a_ps_that_lost_its_state_takes_all_back_to_the_checkpoint(cluster, tmp_path, caplog):
    chief = Task(
        cluster, last_step=50, checkpoint_dir=str(tmp_path), save_checkpoint_secs=None, save_checkpoint_steps=3
    )
    for _ in range(5):
        chief.step()
    wait_for_saves()
    before = cluster.view().incarnation
    cluster.lose(1 - cluster.view().sequencer)
    with caplog.at_level("WARNING", "globalstep"):
        assert chief.step() == 3
    assert "lost its state. All PS tasks go back together, from step 5 to step 3, to checkpoint" in caplog.text
    assert cluster.view().incarnation > before
    assert chief.w() == [4.0, 4.0]
    assert cluster.sequencer.limits == {"global_step": 50}
    chief.close()


@pytest.mark.parametrize("steps", [0, 2], ids=["at once", "after others have pushed"])
def test_after_all_ps_lost_their_state_nothing_of_the_old_life_is_taken(cluster, tmp_path, caplog, steps):
    chief = Task(cluster, checkpoint_dir=str(tmp_path))
    worker = Task(cluster, is_chief=False)
    for _ in range(3):
        worker.step()
    before, asleep = cluster.view().incarnation, worker.session._tf_sess().cluster
    cluster.lose(0)
    cluster.lose(1)
    asleep.heartbeat.beat()
    with caplog.at_level("WARNING", "globalstep"):
        chief.step()
    # The chief has pushed nothing, the sequencer is gone, the journal was not fetched: the worker knows.
    assert "lost their state. All PS tasks go back together, from at least step 3 to step 0" in caplog.text
    for _ in range(steps):
        chief.step()
    assert cluster.view().incarnation > before
    with pytest.raises(AbortedError, match=f"belongs to incarnation {before}"):
        asleep.pull([Read("w")])
    assert worker.step() in (steps, steps + 1)
    assert chief.w() == [steps + 2.0, steps + 2.0]
    worker.close()
    chief.close()


def test_without_a_checkpoint_it_starts_from_the_initial_values(cluster, caplog):
    chief = Task(cluster)
    chief.step()
    cluster.lose(0)
    with caplog.at_level("WARNING", "globalstep"):
        chief.step()
    assert "to the initial values, since there is no checkpoint" in caplog.text
    assert chief.w() == [1.0, 1.0]
    chief.close()


def test_a_start_that_was_cut_short_is_begun_again(cluster):
    first = Task(cluster)
    cut_short = first.session._tf_sess().cluster.begin(open=False)
    assert cluster.view().state == pb.STATE_INITIALIZING
    second = Task(cluster)
    assert cluster.view().incarnation == cut_short + 1
    assert second.step() == 0
    second.close()
    first.session._release()


def test_a_worker_waits_for_the_chief(cluster):
    done = threading.Event()

    def work():
        worker = Task(cluster, is_chief=False, clock=SYSTEM_CLOCK)
        worker.step()
        worker.close()
        done.set()

    thread = threading.Thread(target=work, name="waiting-worker")
    thread.start()
    chief = Task(cluster)
    thread.join()
    assert done.is_set()
    assert chief.w() == [1.0, 1.0]
    chief.close()


def test_a_worker_gives_up(cluster):
    with pytest.raises(DeadlineExceededError, match=r"^Session was not ready after waiting 30 secs\."):
        Task(cluster, is_chief=False, max_wait_secs=30)


def test_the_chief_waits_for_the_others_last_pushes(cluster, tmp_path):
    chief = Task(cluster, checkpoint_dir=str(tmp_path))
    worker = Task(cluster, is_chief=False)
    chief.step()
    in_finish, left = threading.Event(), threading.Event()

    class WorkerGoesOn(ManualClock):
        """Holds the chief in its first pause until the worker has left."""

        def wait(self, event, timeout_secs):
            in_finish.set()
            return left.wait(60.0)

    chief.session._creator._clock = WorkerGoesOn()
    chief.session.end_job()
    closing = threading.Thread(target=chief.close, name="closing-chief")
    closing.start()
    in_finish.wait()
    worker.session._tf_sess().cluster.heartbeat.beat()
    assert worker.session.should_stop()
    for _ in range(2):
        worker.step()
    worker.close()
    left.set()
    closing.join()
    assert (tmp_path / "model.ckpt-3.index.json").exists()


def test_who_does_not_leave_in_time_is_named(cluster, caplog):
    chief = Task(cluster, stop_grace_period_secs=10)
    chief.session.end_job()
    worker = Task(cluster, is_chief=False)
    client = worker.session._tf_sess().cluster.client_id
    with caplog.at_level("WARNING", "globalstep"):
        chief.close()
    assert f"The job is done, but after 10 s {client} had not left" in caplog.text
    worker.close()


def test_an_error_in_the_chief_does_not_end_the_job(cluster):
    chief = Task(cluster)
    with pytest.raises(KeyError), chief.graph.as_default(), chief.session:
        raise KeyError("a bug")
    assert cluster.view().state == pb.STATE_READY


def hooks_of(session):
    return [type(hook) for hook in session._active]


class UserHook(SessionRunHook):
    pass


class ChiefHook(SessionRunHook):
    pass


def test_the_hooks_of_the_chief_and_of_a_worker(cluster, tmp_path):
    chief = Task(cluster, checkpoint_dir=str(tmp_path), hooks=[UserHook()], chief_only_hooks=[ChiefHook()])
    worker = Task(cluster, is_chief=False, hooks=[UserHook()], chief_only_hooks=[ChiefHook()])
    assert hooks_of(chief.session) == [
        RunReport,
        ChiefHook,
        StepCounterHook,
        SummarySaverHook,
        CheckpointSaverHook,
        UserHook,
    ]
    assert hooks_of(worker.session) == [UserHook]
    worker.close()
    chief.close()


@pytest.mark.parametrize(
    ("arguments", "hooks"),
    [
        ({}, []),
        ({"summary_dir": "d"}, [StepCounterHook, SummarySaverHook]),
        ({"summary_dir": "d", "log_step_count_steps": 0}, [SummarySaverHook]),
        ({"checkpoint_dir": "d", "log_step_count_steps": None, "save_summaries_steps": None}, [CheckpointSaverHook]),
        (
            {"checkpoint_dir": "d", "save_checkpoint_secs": 0},
            [StepCounterHook, SummarySaverHook],
        ),
        (
            {"checkpoint_dir": "d", "save_checkpoint_steps": 0},
            [StepCounterHook, SummarySaverHook],
        ),
        (
            {"checkpoint_dir": "d", "save_summaries_secs": 5, "save_checkpoint_steps": 5},
            [StepCounterHook, SummarySaverHook, CheckpointSaverHook],
        ),
    ],
)
def test_which_hooks_are_added(cluster, tmp_path, arguments, hooks):
    given = {name: str(tmp_path) if value == "d" else value for name, value in arguments.items()}
    chief = Task(cluster, progress=False, **given)
    assert hooks_of(chief.session) == hooks
    chief.close()


def test_seconds_and_steps_of_checkpoints_exclude_each_other(tmp_path):
    build()
    with pytest.raises(ValueError, match=r"^Can not provide both every_secs and every_steps\.$"):
        MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_secs=1, save_checkpoint_steps=1)


def test_a_checkpoint_dir_needs_a_global_step(tmp_path):
    with pytest.raises(RuntimeError, match=r"^Global step should be created to use StepCounterHook\.$"):
        MonitoredTrainingSession(checkpoint_dir=str(tmp_path))


CLUSTER = {"chief": ["c:1"], "ps": ["a:1", "b:2"], "worker": ["w:1", "w:2"]}


def place(monkeypatch, task, index=0, cluster=CLUSTER):
    config = {"cluster": cluster, "task": {"type": task, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    found = place_of_task(from_tf_config())
    return found.target, found.is_chief, found.task, found.expected_tasks


def test_tf_config_says_who_this_is(monkeypatch):
    tasks = ("/job:chief/task:0", "/job:worker/task:0", "/job:worker/task:1")
    assert place(monkeypatch, "chief") == ("grpc://a:1,b:2", True, "/job:chief/task:0", tasks)
    assert place(monkeypatch, "worker", 1) == ("grpc://a:1,b:2", False, "/job:worker/task:1", tasks)
    without = {"ps": ["a:1"], "worker": ["w:1", "w:2"]}
    assert place(monkeypatch, "worker", 0, without)[:3] == ("grpc://a:1", True, "/job:worker/task:0")
    assert place(monkeypatch, "worker", 1, without)[:3] == ("grpc://a:1", False, "/job:worker/task:1")


def test_a_parameter_server_has_no_session(monkeypatch):
    with pytest.raises(ValueError, match=r"this task is /job:ps/task:0, a parameter server: it runs"):
        place(monkeypatch, "ps")


def test_a_cluster_without_ps_is_a_process_on_its_own(monkeypatch):
    assert place(monkeypatch, "worker", 0, {"worker": ["w:1"]}) == ("", True, "", ())


def test_a_cluster_spec_is_a_target():
    assert target_of(ClusterSpec({"ps": ["a:1", "b:2"], "worker": ["c:3"]})) == "grpc://a:1,b:2"


def test_a_new_chief_begins_no_incarnation_that_the_journal_has(cluster, tmp_path):
    """PS tasks came back with clocks of the year before, and no checkpoint is as young as what they lost."""
    unsaved = {"checkpoint_dir": str(tmp_path), "save_checkpoint_secs": None, "save_summaries_steps": None}
    chief = Task(cluster, **unsaved)
    chief.step()
    before = cluster.view().incarnation
    chief.close()
    for shard in range(2):
        cluster.lose(shard)
        cluster.ps.controls[shard].handler.shard.spent_incarnations = 0
    later = Task(cluster, **unsaved)
    assert cluster.view().incarnation > before
    later.close()
