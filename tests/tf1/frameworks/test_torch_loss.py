"""A loss that PyTorch computes."""

import importlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.ops.file_writer import FileWriterCache
from globalstep.wire.declarations import OpKind

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch==2.13.0` runs these tests")
nn = torch.nn

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(8, 4)).astype(np.float32)
LABELS = RANDOM.integers(3, size=8)


def cross_entropy(net, x, labels):
    return nn.functional.cross_entropy(net(x), labels)


def network(*layers):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), *layers, nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture
def data():
    return [gs.placeholder(gs.float32, [None, 4]), gs.placeholder(gs.int64, [None])]


@pytest.fixture
def feed(data):
    return dict(zip(data, (X, LABELS), strict=True))


def initialized(session):
    session.run(gs.global_variables_initializer())
    return session


class TestVariables:
    def test_parameters_by_their_names(self, session, data):
        net = network()
        loss = gs.torch(net, cross_entropy, data)
        assert [v.op_name for v in gs.trainable_variables()] == [
            "model/0.weight",
            "model/0.bias",
            "model/2.weight",
            "model/2.bias",
        ]
        assert list(loss.variables) == list(net.state_dict())
        assert loss.variables["0.weight"].shape == (5, 4)
        for name, value in initialized(session).run(loss.variables).items():
            assert value.tolist() == net.state_dict()[name].tolist()

    def test_under_scopes(self, data):
        with gs.name_scope("tower"):
            gs.torch(network(), cross_entropy, data, name="critic")
        assert gs.global_variables()[0].op_name == "tower/critic/0.weight"

    def test_a_module_used_twice_has_its_variables_once(self, data):
        net = network()
        one, two = gs.torch(net, cross_entropy, data), gs.torch(net, lambda n, x, y: n(x).sum(), data)
        assert one.variables == two.variables
        assert len(gs.global_variables()) == 4
        other = gs.torch(network(), cross_entropy, data)
        assert other.variables["0.weight"].op_name == "model_2/0.weight"

    def test_tied_parameters_are_one(self):
        net = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        net[1].weight = net[0].weight
        assert list(gs.torch(net, lambda n: n[0].weight.sum()).variables) == ["0.weight", "0.bias", "1.bias"]

    def test_frozen_parameters_are_not_trained(self, data):
        net = network()
        net[0].weight.requires_grad_(False)
        loss = gs.torch(net, cross_entropy, data)
        frozen = loss.variables["0.weight"]
        assert frozen not in gs.trainable_variables()
        assert gs.gradients(loss, [frozen]) == [None]

    def test_names_with_an_underscore_first(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self._scale = nn.Parameter(torch.ones(2, dtype=torch.float64))

        loss = gs.torch(Net(), lambda n: n._scale.sum())
        assert loss.variables["_scale"].op_name == "model/_scale"
        assert loss.dtype == gs.float64

    def test_dtypes_that_no_variable_can_have(self):
        net = nn.Module()
        net.register_buffer("scale", torch.zeros(2, dtype=torch.float8_e5m2))
        with pytest.raises(TypeError, match=r"'scale': it has dtype float8_e5m2.*module\.float\(\)"):
            gs.torch(net, lambda n: n.scale.float().sum())
        assert gs.global_variables() == []

    def test_a_lazy_module(self):
        with pytest.raises(ValueError, match=r"'weight' of the module has no shape yet: call the module once"):
            gs.torch(nn.LazyLinear(2), lambda n: n.weight.sum())
        assert gs.global_variables() == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
class TestHalfPrecision:
    def test_steps_too_small_for_the_parameters_are_kept(self, session, data, feed, dtype):
        """Beside float32 masters kept by hand; without them, not one of these steps would move a weight of 1."""
        net, alone = network().to(dtype), network().to(dtype)
        with torch.no_grad():
            for tensor in (*net.parameters(), *alone.parameters()):
                tensor.fill_(1.0)

        def small(model, x, labels):
            return 1e-2 * nn.functional.cross_entropy(model(x.to(dtype)), labels)

        loss = gs.torch(net, small, data)
        train_op = gs.train.GradientDescentOptimizer(2e-2).minimize(loss)
        assert loss.dtype == gs.float32
        assert {variable.dtype for variable in loss.variables.values()} == {gs.float32}
        initialized(session)
        masters = [tensor.detach().float() for tensor in alone.parameters()]
        for _ in range(50):
            session.run(train_op, feed)
            found = torch.autograd.grad(small(alone, torch.from_numpy(X), torch.from_numpy(LABELS)), alone.parameters())
            with torch.no_grad():
                for tensor, master, gradient in zip(alone.parameters(), masters, found, strict=True):
                    master -= 2e-2 * gradient.float()
                    tensor.copy_(master)
        values = session.run(list(loss.variables.values()))
        assert max(np.abs(value - 1).max() for value in values) > 1e-3
        for value, master in zip(values, masters, strict=True):
            np.testing.assert_allclose(value, master.numpy(), rtol=3e-6)
            assert value.dtype == np.float32

    def test_the_module_holds_rounded_values(self, session, data, feed, dtype):
        net = network().to(dtype)
        loss = gs.torch(net, lambda n, x, labels: cross_entropy(n, x.to(dtype), labels), data)
        initialized(session)
        weight = loss.variables["0.weight"]
        session.run(gs.assign(weight, np.full(weight.shape, 1 + 2**-12, np.float32)))
        session.run(loss, feed)
        assert net[0].weight.dtype == dtype
        assert (net[0].weight == torch.tensor(1 + 2**-12).to(dtype)).all()
        assert (session.run(weight) == np.float32(1 + 2**-12)).all()


class TestTraining:
    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (lambda: gs.train.GradientDescentOptimizer(0.1), lambda p: torch.optim.SGD(p, 0.1)),
            (lambda: gs.train.MomentumOptimizer(0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
            # TensorFlow adds epsilon before the bias is taken out, torch after.
            (lambda: gs.train.AdamOptimizer(0.01, epsilon=1e-12), lambda p: torch.optim.Adam(p, 0.01, eps=1e-12)),
        ],
        ids=["sgd", "momentum", "adam"],
    )
    def test_as_torch_trains_by_itself(self, session, data, feed, ours, theirs):
        alone, net = network(), network()
        loss = gs.torch(net, cross_entropy, data)
        step = gs.train.get_or_create_global_step()
        train_op = ours().minimize(loss, global_step=step)
        initialized(session)
        optimizer = theirs(alone.parameters())
        for _ in range(10):
            optimizer.zero_grad()
            expected = cross_entropy(alone, torch.from_numpy(X), torch.from_numpy(LABELS))
            expected.backward()
            optimizer.step()
            _, found = session.run([train_op, loss], feed)
            assert found == pytest.approx(expected.item(), rel=1e-5)
        for name, value in session.run(loss.variables).items():
            np.testing.assert_allclose(value, alone.state_dict()[name], rtol=1e-4, atol=1e-6)
        assert session.run(step) == 10

    def test_the_module_keeps_the_values_of_the_last_run(self, session, data, feed):
        net = network()
        weight = net[0].weight
        loss = gs.torch(net, cross_entropy, data)
        train_op = gs.train.GradientDescentOptimizer(1.0).minimize(loss)
        initialized(session)
        session.run(train_op, feed)
        session.run(loss, feed)
        assert net[0].weight is weight
        assert weight.requires_grad
        assert weight.grad is None
        assert session.run(loss.variables["0.weight"]).tolist() == weight.tolist()

    def test_a_parameter_that_the_run_does_not_use(self, session, data, feed):
        loss = gs.torch(network(), lambda net, x, labels: net[0](x).mean(), data)
        gradient = initialized(session).run(gs.gradients(loss, [loss.variables["2.bias"]])[0], feed)
        assert gradient.tolist() == [0, 0, 0]

    def test_strided_and_sparse_gradients_arrive(self, session):
        net = nn.ModuleDict({"table": nn.Embedding(4, 2, sparse=True), "line": nn.Linear(2, 3, bias=False)})
        loss = gs.torch(net, lambda n, i: n["table"](i).sum() + n["line"].weight.t().sum(), [gs.constant([1, 3, 1])])
        train_op = gs.train.GradientDescentOptimizer(1.0).minimize(loss)
        before = initialized(session).run(loss.variables)
        session.run(train_op)
        after = session.run(loss.variables)
        np.testing.assert_allclose(
            before["table.weight"] - after["table.weight"], [[0] * 2, [2] * 2, [0] * 2, [1] * 2], rtol=1e-5
        )
        np.testing.assert_allclose(before["line.weight"] - after["line.weight"], np.ones((3, 2)), rtol=1e-5)

    def test_several_threads_share_a_module(self, session):
        net = nn.Linear(1, 1, bias=False)
        scale = gs.placeholder(gs.float32, [])
        loss = gs.torch(net, lambda n, s: (n.weight * s).sum(), [scale])
        gradient = gs.gradients(loss, [loss.variables["weight"]])[0]
        initialized(session)
        wrong = []

        def run(number):
            for _ in range(20):
                found = session.run(gradient, {scale: number})
                if found.tolist() != [[number]]:
                    wrong.append((number, found))

        threads = [threading.Thread(target=run, args=(float(i),)) for i in range(1, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_a_loss_that_is_no_scalar_changes_nothing(self, session, data, feed):
        loss = gs.torch(network(), lambda net, x, labels: net(x), data)
        train_op = gs.train.GradientDescentOptimizer(0.1).minimize(loss)
        before = initialized(session).run(loss.variables)
        with pytest.raises(InvalidArgumentError, match=r"'model/loss' must be a scalar; .* shape \(8, 3\)"):
            session.run(train_op, feed)
        after = session.run(loss.variables)
        assert all(np.array_equal(before[name], after[name]) for name in before)

    def test_torchs_own_errors_name_the_node(self, session, data):
        loss = gs.torch(network(), cross_entropy, data)
        with pytest.raises(IndexError, match="Target 7 is out of bounds") as caught:
            initialized(session).run(loss, {data[0]: X, data[1]: [7] * 8})
        assert "model/evaluate" in caught.value.__notes__[0]


class TestBuffers:
    @pytest.fixture
    def net(self):
        return network(nn.BatchNorm1d(5))

    def test_they_are_variables_that_are_not_trained(self, net, data):
        loss = gs.torch(net, cross_entropy, data)
        assert {v.op_name for v in gs.global_variables()} - {v.op_name for v in gs.trainable_variables()} == {
            "model/1.running_mean",
            "model/1.running_var",
            "model/1.num_batches_tracked",
        }
        assert loss.variables["1.num_batches_tracked"].dtype == gs.int64

    def test_a_train_op_behind_the_update_ops_is_one_push(self, net, session, cluster, data, feed):
        loss = gs.torch(net, cross_entropy, data)
        step = gs.train.get_or_create_global_step()
        with gs.control_dependencies(gs.get_collection(gs.GraphKeys.UPDATE_OPS)):
            train_op = gs.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        initialized(session)
        cluster.forget()
        for _ in range(3):
            session.run(train_op, feed)
        assert len(cluster.pushes) == 3
        assert [op.kind for op in cluster.pushes[0].ops] == [OpKind.ASSIGN] * 3 + [OpKind.APPLY] * 6

        alone = network(nn.BatchNorm1d(5))
        optimizer = torch.optim.SGD(alone.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            cross_entropy(alone, torch.from_numpy(X), torch.from_numpy(LABELS)).backward()
            optimizer.step()
        found = session.run(loss.variables)
        assert found["1.num_batches_tracked"] == 3
        for name, value in found.items():
            np.testing.assert_allclose(value, alone.state_dict()[name], rtol=1e-4, atol=1e-6)

    def test_a_loss_that_is_not_for_training(self, net, session, data, feed):
        loss = gs.torch(net, cross_entropy, data)
        check = gs.torch(net, cross_entropy, data, training=False)
        assert len(gs.get_collection(gs.GraphKeys.UPDATE_OPS)) == 3
        initialized(session)
        net[2].eval()
        expected = cross_entropy(network(nn.BatchNorm1d(5)).eval(), torch.from_numpy(X), torch.from_numpy(LABELS))
        assert session.run(check, feed) == pytest.approx(expected.item(), rel=1e-6)
        assert [part.training for part in net] == [True, True, False, True]
        assert session.run(loss, feed) != pytest.approx(expected.item(), rel=1e-6)

    def test_buffers_that_are_not_kept_are_the_modules_own(self, session):
        net = nn.Module()
        net.register_buffer("mask", torch.tensor([1.0, 0.0]), persistent=False)
        net.weight = nn.Parameter(torch.tensor([3.0, 4.0]))
        loss = gs.torch(net, lambda n: (n.weight * n.mask).sum())
        assert list(loss.variables) == ["weight"]
        assert initialized(session).run(loss) == 3

    def test_a_buffer_that_is_replaced(self, session):
        class Count(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(()))
                self.weight = nn.Parameter(torch.ones(()))

            def forward(self):
                self.count = self.count + self.weight
                return self.weight * 1

        loss = gs.torch(Count(), lambda net: net())
        train_op = gs.group(
            gs.train.GradientDescentOptimizer(0.0).minimize(loss), *gs.get_collection(gs.GraphKeys.UPDATE_OPS)
        )
        initialized(session)
        for _ in range(3):
            session.run(train_op)
        assert session.run(loss.variables["count"]) == 3


def test_in_a_monitored_session_with_checkpoints(tmp_path, data, feed):
    net = network(nn.BatchNorm1d(5))
    loss = gs.torch(net, cross_entropy, data)
    step = gs.train.get_or_create_global_step()
    with gs.control_dependencies(gs.get_collection(gs.GraphKeys.UPDATE_OPS)):
        train_op = gs.train.AdamOptimizer(0.05).minimize(loss, global_step=step)
    hooks = [gs.train.StopAtStepHook(last_step=5)]
    with gs.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as sess:
        while not sess.should_stop():
            sess.run(train_op, feed)
    FileWriterCache.clear()
    with gs.Session() as sess:
        gs.train.Saver().restore(sess, gs.train.latest_checkpoint(str(tmp_path)))
        found = sess.run(loss.variables)
    assert found["1.num_batches_tracked"] == 5
    # The module itself is at the values that the last step started from, one step behind.
    net.load_state_dict({name: torch.as_tensor(value) for name, value in found.items()})


def test_without_torch_the_extra_is_named(monkeypatch):
    def refuse(name, *args, **options):
        if name == "torch":
            raise ImportError("No module named 'torch'", name="torch")
        return real(name, *args, **options)

    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(ImportError, match=r"gs\.torch needs torch, .* Run `pip install 'globalstep\[torch\]'`"):
        gs.torch(None, None)


def test_frameworks_are_imported_when_they_are_used():
    program = "import sys, globalstep as gs; gs.torch, gs.jax; print([m for m in ('torch', 'jax') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
