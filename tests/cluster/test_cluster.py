import json

import pytest

from globalstep.cluster.cluster import ClusterDef, ClusterSpec, JobDef, TaskConfig, from_tf_config, target_of
from globalstep.errors import InvalidArgumentError
from globalstep.wire.transports import known_target, transports_to

JOBS = {"ps": ["ps0:1", "ps1:2"], "worker": ["w0:3", "w1:4", "w2:5"]}


def config(**fields):
    return from_tf_config({"TF_CONFIG": json.dumps(fields)})


class TestClusterSpec:
    def test_a_dense_job(self):
        cluster = ClusterSpec(JOBS)
        assert cluster.jobs == ["ps", "worker"]
        assert cluster.num_tasks("worker") == 3
        assert cluster.task_indices("ps") == [0, 1]
        assert cluster.task_address("ps", 1) == "ps1:2"
        assert cluster.job_tasks("ps") == ["ps0:1", "ps1:2"]
        assert cluster.as_dict() == JOBS

    def test_a_job_with_holes(self):
        cluster = ClusterSpec({"worker": {3: "d:4", 1: "b:2"}})
        assert cluster.num_tasks("worker") == 2
        assert cluster.task_indices("worker") == [1, 3]
        assert cluster.job_tasks("worker") == [None, "b:2", None, "d:4"]
        assert cluster.as_dict() == {"worker": {1: "b:2", 3: "d:4"}}

    def test_a_map_that_leaves_no_hole_becomes_a_list(self):
        assert ClusterSpec({"worker": {1: "b:2", 0: "a:1"}}).as_dict() == {"worker": ["a:1", "b:2"]}

    @pytest.mark.parametrize(
        "make",
        [
            lambda cluster: ClusterSpec(cluster),
            lambda cluster: ClusterSpec(cluster.as_cluster_def()),
            lambda cluster: ClusterSpec(cluster.as_dict()),
        ],
    )
    def test_copies_are_equal(self, make):
        cluster = ClusterSpec(JOBS)
        assert make(cluster) == cluster
        assert hash(make(cluster)) == hash(cluster)

    def test_equality_with_what_it_can_be_made_from(self):
        assert ClusterSpec(JOBS) == JOBS
        assert ClusterSpec(JOBS) != {"ps": ["ps0:1"]}
        assert ClusterSpec(JOBS) != 3

    def test_cluster_def(self):
        cluster_def = ClusterSpec({"b": ["x:1"], "a": ["y:2"]}).as_cluster_def()
        assert cluster_def == ClusterDef([JobDef("a", {0: "y:2"}), JobDef("b", {0: "x:1"})])

    def test_truth(self):
        assert not ClusterSpec({})
        assert ClusterSpec(JOBS)

    def test_a_scheme_is_dropped_and_bytes_are_text(self):
        assert ClusterSpec({b"ps": ["grpc://a:1", b"b:2"]}).job_tasks("ps") == ["a:1", "b:2"]

    @pytest.mark.parametrize("method", ["num_tasks", "task_indices", "job_tasks"])
    def test_no_such_job(self, method):
        with pytest.raises(ValueError, match="^No such job in cluster: 'chief'$"):
            getattr(ClusterSpec(JOBS), method)("chief")

    def test_no_such_task(self):
        with pytest.raises(ValueError, match="^No such job in cluster: 'chief'$"):
            ClusterSpec(JOBS).task_address("chief", 0)
        with pytest.raises(ValueError, match="^No task with index 7 in job 'ps'$"):
            ClusterSpec(JOBS).task_address("ps", 7)

    @pytest.mark.parametrize(
        ("cluster", "text"),
        [
            ("ps:1", "`cluster` must be a dictionary mapping one or more job names"),
            ({"ps": "ps:1"}, "The tasks for job 'ps' must be a list or a dictionary"),
            ({"ps": [1]}, "Task address 1 must be bytes or unicode"),
            ({3: ["a:1"]}, "Job name 3 must be bytes or unicode"),
        ],
    )
    def test_what_is_no_cluster(self, cluster, text):
        with pytest.raises(TypeError, match=text):
            ClusterSpec(cluster)


class TestTFConfig:
    @pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"cluster": {}}'}])
    def test_a_process_on_its_own(self, environ):
        alone = from_tf_config(environ)
        assert alone == TaskConfig()
        assert not alone.cluster
        assert alone.is_chief
        assert (alone.task, alone.address) == ("", "")

    def test_a_worker(self):
        worker = config(cluster=JOBS, task={"type": "worker", "index": 2}, environment="cloud")
        assert worker.cluster == JOBS
        assert (worker.task, worker.address) == ("/job:worker/task:2", "w2:5")
        assert worker.environment == "cloud"
        assert not worker.is_chief

    def test_worker_0_is_the_chief_where_there_is_no_other(self):
        task = {"type": "worker", "index": 0}
        assert config(cluster=JOBS, task=task).is_chief
        assert not config(cluster=JOBS | {"chief": ["c:9"]}, task=task).is_chief

    @pytest.mark.parametrize("job", ["chief", "master"])
    def test_a_chief_by_either_name(self, job):
        chief = config(cluster=JOBS | {job: ["c:9"]}, task={"type": job, "index": 0})
        assert chief.is_chief
        assert chief.address == "c:9"

    def test_an_evaluator_need_not_be_listed(self):
        evaluator = config(cluster=JOBS, task={"type": "evaluator", "index": 0})
        assert evaluator.task == "/job:evaluator/task:0"
        assert evaluator.address == ""
        assert not evaluator.is_chief

    @pytest.mark.parametrize("key", ["cluster", "sparseCluster"])
    def test_a_sparse_cluster(self, key):
        cluster = {"ps": ["ps0:1"], "worker": {"1": "w1:4"}}
        worker = config(**{key: cluster}, task={"type": "worker", "index": 1})
        assert worker.cluster.job_tasks("worker") == [None, "w1:4"]
        assert worker.address == "w1:4"

    def test_an_index_may_be_text_or_left_out(self):
        assert config(cluster=JOBS, task={"type": "ps", "index": "1"}).index == 1
        assert config(cluster=JOBS, task={"type": "ps"}).index == 0

    def test_a_job_without_tasks_is_no_job(self):
        jobs = {"ps": ["a:1"], "worker": ["b:1"], "chief": []}
        assert config(cluster=jobs, task={"type": "worker", "index": 0}).is_chief

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"cluster": ', "TF_CONFIG is not JSON: Expecting value at line 1 column 12"),
            ("[1]", r"TF_CONFIG must be a JSON object, not \[1\]"),
            ('{"cluster": {"ps": ["a:1"]}}', "TF_CONFIG has a cluster but no 'task'"),
            ('{"cluster": [1]}', r"TF_CONFIG's 'cluster' must be a JSON object, not \[1\]"),
            ('{"cluster": {"ps": ["a"]}}', "job 'ps': the address of task 0 must be \"host:port\", not 'a'"),
            ('{"cluster": {"ps": ["a:99999"]}}', "must be \"host:port\", not 'a:99999'"),
            ('{"cluster": {"ps": "a:1"}}', "job 'ps' must be a list of addresses or a map"),
            ('{"cluster": {"ps": {"x": "a:1"}}}', "task index must be a whole number from 0, not 'x'"),
            ('{"cluster": {"ps": ["a:1"]}, "task": "ps"}', "'task' must be a JSON object, not 'ps'"),
            ('{"cluster": {"ps": ["a:1"]}, "task": {"index": 0}}', "'type' must name a job of .'ps'., not None"),
            (
                '{"cluster": {"ps": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
                r"task is of job 'worker', but its cluster has only \['ps'\]",
            ),
            (
                '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 1}}',
                r"task is ps 1, but of job 'ps' its cluster has only tasks \[0\]",
            ),
            (
                '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": -1}}',
                "'index' must be a whole number from 0, not -1",
            ),
            ('{"cluster": {"chief": ["a:1"], "master": ["b:1"]}}', "both a 'chief' and a 'master'"),
            ('{"cluster": {}, "sparseCluster": {}}', "both 'cluster' and 'sparseCluster'"),
            ('{"environment": 3}', "'environment' must be a string, not 3"),
        ],
    )
    def test_what_is_wrong_is_named(self, text, message):
        with pytest.raises(ValueError, match=message):
            from_tf_config({"TF_CONFIG": text})


def test_blanks_around_host_and_port_are_skipped():
    cluster = ClusterSpec({"local": ["localhost:222", "localhost: 223", " grpc://localhost:224 "]})
    assert cluster.job_tasks("local") == ["localhost:222", "localhost:223", "localhost:224"]


def test_the_address_of_a_workers_server_means_the_clusters_ps_tasks():
    ClusterSpec({"ps": ["ps.a:1", "ps.b:2"], "worker": ["w.a:3", "w.b:4"], "chief": ["c:5"], "evaluator": ["e:6"]})
    known = known_target("grpc://w.b:4")
    assert (known.target, known.task) == ("grpc://ps.a:1,ps.b:2", "/job:worker/task:1")
    assert known.session_tasks == ("/job:worker/task:0", "/job:worker/task:1", "/job:chief/task:0")
    assert known_target("grpc://c:5").task == "/job:chief/task:0"
    for address in ("ps.a:1", "e:6", "elsewhere:7"):
        assert known_target(f"grpc://{address}").target == f"grpc://{address}"


def test_the_last_description_of_an_address_counts():
    ClusterSpec({"ps": ["first:1"], "worker": ["shared:2"]})
    ClusterSpec({"ps": ["second:1"], "worker": ["shared:2"]})
    assert known_target("grpc://shared:2").target == "grpc://second:1"
    ClusterSpec({"ps": ["shared:2"], "worker": ["other:3"]})
    assert known_target("grpc://shared:2").target == "grpc://shared:2"
    ClusterSpec({"ps": [], "worker": ["alone:4"]})
    assert known_target("grpc://alone:4").target == "grpc://alone:4"


@pytest.mark.parametrize("address", ["http://ps0:2222", "ps0:0"])
def test_an_address_that_nobody_can_serve_is_refused_at_once(address):
    with pytest.raises(InvalidArgumentError, match=f'"{address}" as a host-port pair.*a port from 1 .*: "ps0:2222"'):
        transports_to(target_of(ClusterSpec({"ps": [address]})))


def test_tf_config_says_what_an_address_is():
    config = {"cluster": {"ps": ["http://ps0:2222"]}, "task": {"type": "ps", "index": 0}}
    with pytest.raises(ValueError, match=r"""TF_CONFIG.*address of task 0 must be "host:port", not 'http://ps0"""):
        from_tf_config({"TF_CONFIG": json.dumps(config)})
