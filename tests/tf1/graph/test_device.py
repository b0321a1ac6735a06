from types import SimpleNamespace

import numpy as np
import pytest

from globalstep.cluster.cluster import ClusterSpec
from globalstep.tf1.graph.device import DeviceSpec, GreedyLoadBalancingStrategy, RandomStrategy, replica_device_setter
from globalstep.tf1.graph.graph import Graph, Node, control_dependencies, device

JOBS = {"ps": ["a:1", "b:1"], "worker": ["c:1"]}


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def variable(name="v", shape=(), **options):
    return Node("VariableV2", name=name, dtype="float32", shape=shape, **options)


def op(kind="VariableV2", device="", name="v"):
    return SimpleNamespace(type=kind, device=device, name=name)


class TestDeviceSpec:
    @pytest.mark.parametrize(
        ("text", "canonical"),
        [
            ("", ""),
            ("/", ""),
            ("/job:ps/task:1", "/job:ps/task:1"),
            ("/cpu:0", "/device:CPU:0"),
            ("/gpu", "/device:GPU:*"),
            ("/device:GPU:*", "/device:GPU:*"),
            ("/job:worker/replica:0/task:2/device:CPU:0", "/job:worker/replica:0/task:2/device:CPU:0"),
            ("/task:1/job:ps", "/job:ps/task:1"),
            ("/job:*/task:*", ""),
        ],
    )
    def test_parsed_and_written_again(self, text, canonical):
        assert DeviceSpec.from_string(text).to_string() == canonical

    def test_parts(self):
        spec = DeviceSpec.from_string("/job:worker/replica:0/task:2/cpu:1")
        assert spec == DeviceSpec(job="worker", replica=0, task=2, device_type="CPU", device_index=1)

    def test_merge_takes_what_the_other_names(self):
        spec = DeviceSpec.from_string("/job:ps/task:1")
        spec.merge_from(DeviceSpec.from_string("/task:0/cpu:0"))
        assert str(spec) == "/job:ps/task:0/device:CPU:0"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("/jobs:ps", "Unknown attribute: 'jobs' in '/jobs:ps'"),
            ("ps", "Unknown attribute: 'ps' in 'ps'"),
            ("/cpu:0/gpu:0", "Cannot specify multiple device types: /cpu:0/gpu:0"),
            ("/task:x", "'x' must be a whole number in device '/task:x'"),
        ],
    )
    def test_what_is_no_device(self, text, message):
        with pytest.raises(ValueError, match=message):
            DeviceSpec.from_string(text)


class TestScopes:
    def test_no_scope_no_device(self):
        assert variable().device == ""

    def test_inner_parts_win_and_outer_parts_fill_in(self):
        with device("/job:ps/task:1"), device("/task:0/cpu:0"):
            assert variable().device == "/job:ps/task:0/device:CPU:0"

    def test_none_leaves_the_outer_scopes(self):
        with device("/job:ps"), device(None):
            assert variable().device == ""
        with device("/job:ps"), device(None), device("/cpu:0"):
            assert variable().device == "/device:CPU:0"

    def test_a_function_sees_the_device_so_far_and_replaces_it(self):
        seen = []

        def place(op):
            seen.append((op.name, op.type, op.device))
            return "/job:ps/task:3"

        with device("/job:worker/cpu:0"), device(place), device("/task:1"):
            node = variable("x")
        assert seen == [("x", "VariableV2", "/task:1")]
        assert node.device == "/job:ps/task:3/device:CPU:0"

    def test_a_device_spec_is_as_good_as_its_string(self):
        with device(DeviceSpec(job="ps", task=1)):
            assert variable().device == "/job:ps/task:1"

    def test_a_device_given_to_the_node_itself_is_kept(self):
        with device("/job:ps"), control_dependencies([]):
            assert variable(device="/job:worker").device == "/job:worker"


class TestReplicaDeviceSetter:
    def test_variables_go_round_the_ps_and_the_rest_to_the_worker(self):
        with device(replica_device_setter(cluster=JOBS, worker_device="/job:worker/task:1")):
            assert [variable().device for _ in range(3)] == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
            assert Node("MatMul").device == "/job:worker/task:1"

    def test_the_number_of_ps_may_be_given_alone(self):
        setter = replica_device_setter(ps_tasks=2)
        assert [setter(op()) for _ in range(3)] == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
        assert setter(op("MatMul")) == "/job:worker"

    @pytest.mark.parametrize(
        "arguments", [{}, {"cluster": {"worker": ["c:1"]}}, {"cluster": ClusterSpec(JOBS), "ps_device": "/job:server"}]
    )
    def test_none_without_ps(self, arguments):
        assert replica_device_setter(**arguments) is None

    def test_an_inner_task_stays(self):
        setter = replica_device_setter(cluster=JOBS)
        assert setter(op(device="/job:ps/task:1")) == "/job:ps/task:1"

    def test_an_inner_scope_for_another_job_is_not_given_a_ps_task(self):
        assert replica_device_setter(cluster=JOBS)(op(device="/job:worker")) == "/job:worker"

    def test_merge_devices(self):
        inner = op(device="/cpu:0")
        assert replica_device_setter(cluster=JOBS)(inner) == "/job:ps/task:0/device:CPU:0"
        assert replica_device_setter(cluster=JOBS, merge_devices=False)(inner) == "/cpu:0"

    def test_other_kinds_of_ops_can_be_put_on_the_ps(self):
        setter = replica_device_setter(cluster=JOBS, ps_ops=["HashTable"])
        assert setter(op("HashTable")) == "/job:ps/task:0"
        assert setter(op("VariableV2")) == "/job:worker"

    def test_a_strategy_of_ones_own(self):
        assert replica_device_setter(cluster=JOBS, ps_strategy=lambda op: 1)(op()) == "/job:ps/task:1"

    def test_a_strategy_must_be_callable(self):
        with pytest.raises(TypeError, match="^ps_strategy must be callable$"):
            replica_device_setter(cluster=JOBS, ps_strategy=3)

    def test_what_is_no_cluster(self):
        with pytest.raises(TypeError, match="`cluster` must be a dictionary"):
            replica_device_setter(cluster=["a:1"])


class TestStrategies:
    def test_greedy_puts_each_where_there_is_least(self):
        strategy = GreedyLoadBalancingStrategy(2)
        shapes = [(100,), (10,), (10,), (100,), ()]
        assert [strategy(variable(shape=shape).op) for shape in shapes] == [0, 1, 1, 1, 0]

    def test_greedy_with_a_load_of_ones_own(self):
        strategy = GreedyLoadBalancingStrategy(2, lambda op: 1.0)
        assert [strategy(variable(shape=(n,)).op) for n in (100, 1, 1)] == [0, 1, 0]

    def test_greedy_needs_known_shapes(self):
        with pytest.raises(ValueError, match="'w' needs a known shape"):
            GreedyLoadBalancingStrategy(2)(variable("w", shape=(None, 2)).op)

    def test_greedy_in_a_device_scope(self):
        strategy = GreedyLoadBalancingStrategy(2)
        with device(replica_device_setter(cluster=JOBS, ps_strategy=strategy)):
            assert variable(shape=(5,)).device == "/job:ps/task:0"
            assert variable(shape=(5,)).device == "/job:ps/task:1"

    def test_random_is_the_same_everywhere(self):
        assert RandomStrategy(1000)(op(name="w")) == 403  # int(md5("w_0"), 16) % 1000
        first = [RandomStrategy(7)(op(name=f"w{i}")) for i in range(50)]
        assert first == [RandomStrategy(7)(op(name=f"w{i}")) for i in range(50)]
        assert set(first) == set(range(7))
        assert first != [RandomStrategy(7, seed=1)(op(name=f"w{i}")) for i in range(50)]
        assert np.bincount(first).max() < 25
