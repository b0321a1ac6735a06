"""What the chief writes of the cluster: rates, times and staleness between two readings."""

import uuid
from types import SimpleNamespace

import pytest
from small_model import build
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import globalstep as gs
from globalstep.chief.events.events import summary_iterator
from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunValues
from globalstep.chief.hooks.statistics import staleness_histogram
from globalstep.errors import UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import drop, named
from globalstep.ps.server import PSOptions, PSServer
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.hooks.statistics import ClusterStatisticsHook
from globalstep.tf1.ops.file_writer import FileWriterCache
from globalstep.tf1.sessions.monitored_session import SingularMonitoredSession
from globalstep.tf1.sessions.training_session import MonitoredTrainingSession
from globalstep.tf1.variables.training_util import get_or_create_global_step
from globalstep.wire.declarations import Increment, Push
from globalstep.worker.client.client import connect


class Writer:
    """Keeps scalars as {tag: value}, and histograms, by step."""

    def __init__(self):
        self.scalars = {}
        self.histograms = {}

    def add_summary(self, summary, step):
        for value in summary.value:
            if value.HasField("histo"):
                self.histograms[step] = value.histo
            else:
                self.scalars.setdefault(step, {})[value.tag] = value.simple_value


class Cluster:
    """PS tasks that answer what they are told to."""

    sequencer = 0

    def __init__(self):
        self.answers = []
        self.asked = []
        self.step = 0

    def statuses(self, timeout_secs, brief):
        self.asked.append(brief)
        return self.answers

    def global_steps(self):
        return {"global_step": self.step}


def status(step=None, process="p", incarnation=1, clients=(), **statistics):
    """The answer of a PS task; of the sequencer where there is a step."""
    reply = pb.StatusReply(process=process, incarnation=incarnation, statistics=pb.Statistics(**statistics))
    if step is not None:
        reply.steps["global_step"] = step
    for client, task, pushes in clients:
        reply.clients.add(client=client, task=task, pushes=pushes)
    return reply


class Chief:
    """A hook, and runs after which it is called."""

    def __init__(self, **arguments):
        get_or_create_global_step()
        self.writer = Writer()
        self.hook = ClusterStatisticsHook(summary_writer=self.writer, **arguments)
        self.hook.begin()
        self.session = SimpleNamespace(cluster=Cluster())
        self.hook.after_create_session(self.session, None)

    def after(self, stale, *answers):
        """Call the hook after a run that had seen step `stale`."""
        self.session.cluster.answers = list(answers)
        context = SessionRunContext(SessionRunArgs(None), self.session)
        self.hook.before_run(context)
        self.hook.after_run(context, SessionRunValues(stale))


def test_it_needs_a_step_an_interval_and_a_place_to_write():
    with pytest.raises(ValueError, match=r"^exactly one of every_n_steps and every_n_secs should be provided\.$"):
        ClusterStatisticsHook(every_n_steps=1, every_n_secs=1, output_dir="d")
    for place in ({}, {"output_dir": "d", "summary_writer": Writer()}):
        with pytest.raises(ValueError, match=r"^Exactly one of output_dir and summary_writer must be provided\.$"):
            ClusterStatisticsHook(**place)
    with pytest.raises(RuntimeError, match=r"^Global step should be created to use ClusterStatisticsHook\.$"):
        ClusterStatisticsHook(summary_writer=Writer()).begin()


def test_one_brief_status_a_trigger_and_none_in_between():
    chief = Chief(every_n_steps=10)
    for stale in (0, 5, 9, 10, 15, 20, 30):
        chief.after(stale, status(stale + 1, secs=stale + 1.0))
    assert chief.session.cluster.asked == [True] * 4
    assert list(chief.writer.scalars) == [11, 21, 31]


def test_every_n_secs():
    clock = ManualClock()
    chief = Chief(every_n_steps=None, every_n_secs=1.0, clock=clock)
    for stale in range(5):
        chief.after(stale, status(stale + 1, secs=stale + 1.0))
        clock.advance(0.5)
    assert list(chief.writer.scalars) == [3, 5]


def test_rates_and_means_are_of_the_time_between():
    chief = Chief(every_n_steps=1)
    workers = ("/job:worker/task:0", "/job:worker/task:1", "/job:chief/task:0")
    chief.after(
        99,
        status(
            100, secs=10.0, bytes_in=1000, bytes_out=2000, applied=100, apply_secs=1.0,
            clients=[("a", workers[0], 40), ("c", workers[2], 60)],
        ),
        status(secs=5.0, process="q", bytes_in=1, bytes_out=2),
    )  # fmt: skip
    chief.after(
        119,
        status(
            120, secs=14.0, bytes_in=1800, bytes_out=6000, applied=120, apply_secs=1.5,
            clients=[("a", workers[0], 48), ("b", workers[1], 10), ("c", workers[2], 62), ("d", "/job:eval/task:0", 0)],
        ),
        status(secs=7.0, process="q", bytes_in=101, bytes_out=2),
    )  # fmt: skip
    assert chief.writer.scalars == {
        120: {
            "~cluster/global_step_per_sec": 5.0,
            "~cluster/worker_0/steps_per_sec": 2.0,
            "~cluster/worker_1/steps_per_sec": 2.5,
            "~cluster/chief_0/steps_per_sec": 0.5,
            "~cluster/ps_0/bytes_in_per_sec": 200.0,
            "~cluster/ps_0/bytes_out_per_sec": 1000.0,
            "~cluster/ps_0/apply_ms": 25.0,
            "~cluster/ps_1/bytes_in_per_sec": 50.0,
            "~cluster/ps_1/bytes_out_per_sec": 0.0,
        }
    }
    assert chief.writer.histograms == {}


def test_what_workers_make_together_and_wait_for_is_written_where_they_do():
    chief = Chief(every_n_steps=1)
    chief.after(0, status(1, secs=1.0, contributions=40, made=10, waited=40, waited_secs=3.0))
    more = {"contributions": 56, "late": 2, "made": 14, "waited": 56, "waited_secs": 3.4}
    chief.after(1, status(2, secs=3.0, **more))
    chief.after(2, status(3, secs=4.0, lead_waits=4, lead_wait_secs=2.0, **more))
    chief.after(3, status(4, secs=5.0, lead_waits=4, lead_wait_secs=2.0))
    found = chief.writer.scalars
    tags = ("made_per_sec", "late_per_sec", "contribution_wait_ms", "lead_wait_ms")
    values = {step: {tag: found[step].get(f"~cluster/{tag}") for tag in tags} for step in found}
    assert list(values[2].values()) == [2.0, 1.0, pytest.approx(25.0), None]
    assert list(values[3].values()) == [0.0, 0.0, None, 500.0]
    assert list(values[4].values()) == [None] * 4


def test_clients_of_one_task_and_those_without_a_name_are_added_up():
    chief = Chief(every_n_steps=1)
    chief.after(0, status(1, secs=1.0))
    clients = [("a", "/job:worker/task:0", 3), ("b", "/job:worker/task:0", 4), ("c", "", 1), ("d", "", 1)]
    chief.after(9, status(10, secs=2.0, clients=clients))
    scalars = chief.writer.scalars[10]
    assert scalars["~cluster/worker_0/steps_per_sec"] == 7.0
    assert scalars["~cluster/session/steps_per_sec"] == 2.0


def test_a_client_that_was_silent_for_long_is_not_counted_anew():
    chief = Chief(every_n_steps=1)
    chief.after(0, status(1, secs=1.0, clients=[("a", "/job:worker/task:0", 1000)]))
    chief.after(1, status(2, secs=2.0))
    chief.after(2, status(3, secs=3.0, clients=[("a", "/job:worker/task:0", 1004)]))
    assert "~cluster/worker_0/steps_per_sec" not in chief.writer.scalars[2]
    assert chief.writer.scalars[3]["~cluster/worker_0/steps_per_sec"] == 4.0


def test_clients_that_came_and_went_are_forgotten_in_the_end():
    chief = Chief(every_n_steps=10)
    for at in range(40):
        clients = [(f"{at}.{number}", "/job:worker/task:0", 1) for number in range(100)]
        chief.after(10 * at, status(10 * at + 1, secs=at + 1.0, clients=clients))
    known = chief.hook._before.pushes
    assert len(known) == 1024 + 100
    assert {"39.0", "38.99", "30.50"} <= set(known)
    assert "0.0" not in known


def test_a_task_that_does_not_answer_is_made_up_for_later():
    chief = Chief(every_n_steps=1)
    chief.after(0, status(1, secs=1.0), status(secs=1.0, bytes_in=0))
    chief.after(1, status(2, secs=2.0), UnavailableError("away"))
    chief.after(2, status(3, secs=3.0), status(secs=3.0, bytes_in=600))
    assert "~cluster/ps_1/bytes_in_per_sec" not in chief.writer.scalars[2]
    assert chief.writer.scalars[3]["~cluster/ps_1/bytes_in_per_sec"] == 300.0


def test_without_the_sequencer_nothing_is_written_and_the_interval_begins_anew():
    chief = Chief(every_n_steps=2)
    chief.after(0, status(1, secs=1.0))
    chief.after(2, UnavailableError("away"))
    chief.after(3, status(4, secs=2.0))
    assert chief.session.cluster.asked == [True] * 2
    chief.after(4, status(5, secs=3.0))
    assert {step: values["~cluster/global_step_per_sec"] for step, values in chief.writer.scalars.items()} == {5: 2.0}


@pytest.mark.parametrize("life", [{"process": "other"}, {"incarnation": 2}])
def test_counters_of_another_life_are_not_compared(life):
    chief = Chief(every_n_steps=1)
    chief.after(0, status(1, secs=100.0, bytes_in=500))
    chief.after(1, status(2, secs=200.0, bytes_in=0, **life))
    chief.after(2, status(3, secs=202.0, bytes_in=8, **life))
    assert chief.writer.scalars == {
        3: {
            "~cluster/global_step_per_sec": 0.5,
            "~cluster/ps_0/bytes_in_per_sec": 4.0,
            "~cluster/ps_0/bytes_out_per_sec": 0.0,
        }
    }


def test_a_recovered_session_begins_anew():
    chief = Chief(every_n_steps=100)
    chief.after(150, status(151, secs=1.0))
    chief.hook.after_create_session(chief.session, None)
    # The step went back: without a new beginning the hook would wait for step 251.
    chief.after(99, status(100, secs=2.0))
    chief.after(199, status(200, secs=6.0))
    assert chief.writer.scalars[200]["~cluster/global_step_per_sec"] == 25.0


def test_a_run_that_was_refused_is_ignored():
    chief = Chief(every_n_steps=1)
    chief.after(None)
    assert chief.session.cluster.asked == []


def test_a_step_that_is_no_step_of_the_ledger_is_read():
    chief = Chief(every_n_steps=1)
    for step in (70, 76):
        chief.session.cluster.step = step
        chief.after(step, status(secs=step / 2))
    assert chief.writer.scalars[76]["~cluster/global_step_per_sec"] == 2.0


def test_the_histogram_has_the_buckets_between():
    before = pb.Statistics(staleness=[7, 1, 4, 0, 0, 0], staleness_sum=10, staleness_squares=30)
    now = pb.Statistics(staleness=[7, 3, 4, 5, 0, 0], staleness_sum=37, staleness_squares=200)
    histogram = staleness_histogram(before, now)
    assert (histogram.num, histogram.sum, histogram.sum_squares) == (7.0, 27.0, 170.0)
    assert (histogram.min, histogram.max) == (1.0, 8.0)
    assert list(histogram.bucket_limit) == [2.0, 4.0, 8.0]
    assert list(histogram.bucket) == [2.0, 0.0, 5.0]
    assert staleness_histogram(now, now) is None


@pytest.mark.parametrize(
    ("counts", "least", "most"), [([4, 0, 0], 0, 0), ([0, 4, 0], 1, 1), ([0, 0, 4], 2, 4), ([1, 1, 0], 0, 2)]
)
def test_a_histogram_of_one_number_is_that_number(counts, least, most):
    histogram = staleness_histogram(pb.Statistics(staleness=[0, 0, 0]), pb.Statistics(staleness=counts))
    assert (histogram.min, histogram.max) == (least, most)


@pytest.fixture
def cluster():
    """Two PS tasks in this process, whose time a test drives, and clients of them."""
    clock, clients = ManualClock(), []
    name = f"statistics-{uuid.uuid4().hex}"
    named(name, 2, clock=clock)

    def client(task):
        clients.append(connect(f"local://{name}", task=task))
        return clients[-1]

    yield SimpleNamespace(target=f"local://{name}", clock=clock, client=client)
    for made in clients:
        made.close()
    drop(name)


@pytest.fixture
def event_dir(tmp_path):
    """A directory whose event file is closed at the end."""
    yield tmp_path / "logs"
    FileWriterCache.clear()


def read_back(event_dir):
    """What TensorBoard's own loader makes of the event files."""
    loaded = EventAccumulator(str(event_dir), size_guidance={"scalars": 0, "histograms": 0})
    loaded.Reload()
    tags = loaded.Tags()
    scalars = {tag: [(e.step, e.value) for e in loaded.Scalars(tag)] for tag in tags["scalars"]}
    return scalars, {tag: loaded.Histograms(tag) for tag in tags["histograms"]}


def test_known_traffic_is_read_back_by_tensorboards_loader(cluster, event_dir):
    model = build()
    hook = ClusterStatisticsHook(every_n_steps=6, output_dir=str(event_dir), clock=cluster.clock)
    worker = cluster.client("/job:worker/task:1")

    def worker_pushes(count):
        """Pushes that have all seen the step as it is now."""
        seen = worker.global_steps()
        for _ in range(count):
            worker.push(Push(increments=[Increment("global_step")], seen_steps=seen))

    with SingularMonitoredSession(hooks=[hook], master=cluster.target) as session:
        # Of 6 pushes 2 are the session's own, 4 the worker's.
        for _ in range(3):
            session.run(model.train, {model.by: 1.0})
            worker_pushes(4)
            # Whether the session starts from the values of its last push would depend on the time.
            session.raw_session().forget_values()
            session.run(model.train, {model.by: 1.0})
            cluster.clock.advance(2.0)
        home = session.raw_session().cluster.where["w"]
        worker.close()
    FileWriterCache.clear()
    scalars, histograms = read_back(event_dir)
    # Read at steps 1, 7 and 13: the first run, and those that see 6 steps or more since.
    steps = [step for step, _ in scalars["~cluster/global_step_per_sec"]]
    assert steps == [7, 13]
    assert [value for _, value in scalars["~cluster/global_step_per_sec"]] == [3.0, 3.0]
    assert [value for _, value in scalars["~cluster/worker_1/steps_per_sec"]] == [2.0, 2.0]
    assert [value for _, value in scalars["~cluster/session/steps_per_sec"]] == [1.0, 1.0]
    # A push brings a gradient of two floats to the PS task of w. Nothing takes time but what advances the clock.
    assert {tag for tag in scalars if "/ps_" in tag} == {
        f"~cluster/ps_{ps}/{what}" for ps in (0, 1) for what in ("bytes_in_per_sec", "bytes_out_per_sec")
    } | {f"~cluster/ps_{home}/apply_ms"}
    assert [value for _, value in scalars[f"~cluster/ps_{home}/bytes_in_per_sec"]] == [8.0, 8.0]
    assert [value for _, value in scalars[f"~cluster/ps_{home}/apply_ms"]] == [0.0, 0.0]
    found = histograms["~cluster/staleness"]
    assert [item.step for item in found] == [7, 13]
    for item in found:
        histogram = item.histogram_value
        # The worker's four lag 0 to 3 behind, the session's own none.
        assert (histogram.num, histogram.sum, histogram.sum_squares) == (6.0, 6.0, 14.0)
        assert (histogram.min, histogram.max) == (0.0, 4.0)
        assert list(histogram.bucket_limit) == [1.0, 2.0, 4.0]
        assert list(histogram.bucket) == [3.0, 1.0, 2.0]


def test_the_charts_are_a_run_of_their_own_and_come_after_the_programs(tmp_path):
    model = build()
    gs.summary.scalar("zoo/loss", model.loss)
    with MonitoredTrainingSession(summary_dir=str(tmp_path), log_step_count_steps=1, save_summaries_steps=1) as session:
        for _ in range(5):
            session.run(model.train, {model.by: 1.0})
    FileWriterCache.clear()
    tags = {}
    for directory in (tmp_path, tmp_path / "cluster"):
        (file,) = [path for path in directory.iterdir() if "tfevents" in path.name]
        tags[directory.name] = {value.tag for event in summary_iterator(str(file)) for value in event.summary.value}
    assert tags[tmp_path.name] == {"zoo/loss", "global_step/sec"}
    assert "~cluster/global_step_per_sec" in tags["cluster"]
    assert min(tags["cluster"]) > max(tags[tmp_path.name])


def test_over_grpc_every_task_is_asked(event_dir):
    servers = [PSServer(PSOptions(grace_secs=0.2)) for _ in range(2)]
    for server in servers:
        server.start()
    target = "grpc://" + ",".join(server.address for server in servers)
    model = build()
    hook = ClusterStatisticsHook(every_n_steps=5, output_dir=str(event_dir))
    try:
        with SingularMonitoredSession(hooks=[hook], master=target) as session:
            for _ in range(11):
                session.run(model.train, {model.by: 1.0})
            home = session.raw_session().cluster.where["w"]
    finally:
        for server in servers:
            server.close()
    FileWriterCache.clear()
    scalars, histograms = read_back(event_dir)
    assert [step for step, _ in scalars["~cluster/global_step_per_sec"]] == [6, 11]
    assert scalars["~cluster/session/steps_per_sec"] == scalars["~cluster/global_step_per_sec"]
    assert min(value for _, value in scalars["~cluster/session/steps_per_sec"]) > 0
    # Each push brings the gradient of w to its task and takes its new value along.
    mine = f"~cluster/ps_{home}"
    assert scalars[f"{mine}/bytes_in_per_sec"] == scalars[f"{mine}/bytes_out_per_sec"]
    assert min(value for _, value in scalars[f"{mine}/bytes_in_per_sec"]) > 0
    assert all(0 < value < 1000 for _, value in scalars[f"{mine}/apply_ms"])
    other = f"~cluster/ps_{1 - home}"
    assert {f"{other}/bytes_in_per_sec", f"{other}/bytes_out_per_sec"} <= set(scalars)
    assert f"{other}/apply_ms" not in scalars
    assert [list(item.histogram_value.bucket) for item in histograms["~cluster/staleness"]] == [[5.0], [5.0]]
