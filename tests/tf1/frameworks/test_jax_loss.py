"""A loss that jax computes."""

import importlib
from typing import NamedTuple

import numpy as np
import pytest

import globalstep as gs

jax = pytest.importorskip("jax", reason="jax is not installed; `pip install jax` runs these tests")
jnp = jax.numpy

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(8, 4)).astype(np.float32)
Y = RANDOM.normal(size=(8, 3)).astype(np.float32)


class Layer(NamedTuple):
    kernel: np.ndarray
    bias: np.ndarray


def parameters():
    random = np.random.default_rng(1)
    return {
        "layers": [
            Layer(random.normal(size=(4, 5)).astype(np.float32), np.zeros(5, np.float32)),
            Layer(random.normal(size=(5, 3)).astype(np.float32), np.zeros(3, np.float32)),
        ]
    }


def squares(params, x, y):
    one, two = params["layers"]
    hidden = jnp.tanh(x @ one.kernel + one.bias)
    return jnp.mean((hidden @ two.kernel + two.bias - y) ** 2)


@pytest.fixture
def data():
    return [gs.placeholder(gs.float32, [None, 4]), gs.placeholder(gs.float32, [None, 3])]


@pytest.fixture
def feed(data):
    return dict(zip(data, (X, Y), strict=True))


def initialized(session):
    session.run(gs.global_variables_initializer())
    return session


class TestVariables:
    def test_leaves_by_their_paths(self, session, data):
        params = parameters()
        loss = gs.jax(params, squares, data)
        assert [v.op_name for v in gs.trainable_variables()] == [
            "model/layers/0/kernel",
            "model/layers/0/bias",
            "model/layers/1/kernel",
            "model/layers/1/bias",
        ]
        first = loss.variables["layers"][0]
        assert isinstance(first, Layer)
        assert initialized(session).run(first.kernel).tolist() == params["layers"][0].kernel.tolist()
        assert (loss.dtype, loss.shape) == (gs.float32, ())

    def test_one_array_is_a_pytree(self):
        assert gs.jax(np.ones(3, np.float32), jnp.sum, name="w").variables.op_name == "w/params"

    def test_another_loss_shares_them(self, session, data, feed):
        loss = gs.jax(parameters(), squares, data)
        doubled = gs.jax(loss.variables, lambda params, x, y: 2 * squares(params, x, y), data)
        assert doubled.variables == loss.variables
        assert len(gs.global_variables()) == 4
        one, two = initialized(session).run([loss, doubled], feed)
        assert two == pytest.approx(2 * one)

    def test_numbers_that_cannot_be_trained(self, session):
        loss = gs.jax({"w": np.float32(3), "power": 2}, lambda p: p["w"] ** p["power"])
        assert [v.op_name for v in gs.trainable_variables()] == ["model/w"]
        assert loss.variables["power"].dtype == gs.int32
        w, power = loss.variables["w"], loss.variables["power"]
        assert gs.gradients(loss, [power]) == [None]
        assert initialized(session).run(gs.gradients(loss, [w])[0]) == 6

    def test_dtypes_are_those_of_jax(self):
        loss = gs.jax({"w": np.ones(2), "n": np.arange(2)}, lambda p: p["w"].sum())
        assert {name: v.dtype.name for name, v in loss.variables.items()} == {"n": "int32", "w": "float32"}

    def test_dtypes_that_no_variable_can_have(self):
        with pytest.raises(TypeError, match=r"'w': it has dtype float8_e4m3fn, and a Variable is one of float16"):
            gs.jax({"w": jnp.ones(2, jnp.float8_e4m3fn)}, lambda p: p["w"].sum())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
class TestHalfPrecision:
    def test_steps_too_small_for_the_parameters_are_kept(self, session, dtype):
        """Beside a float32 master kept by hand; without it, not one of these steps would move a weight of 1."""
        params = {"w": jnp.ones(4, dtype), "count": 3}
        x = jnp.arange(1, 5, dtype=dtype)

        def small(p):
            return jnp.sum(p["w"] * x) / 1024

        loss = gs.jax(params, small)
        assert loss.variables["w"].dtype == gs.float32
        train_op = gs.train.GradientDescentOptimizer(0.1).minimize(loss)
        initialized(session)
        master, slope = jnp.ones(4, "float32"), jax.grad(small)(params | {"count": 3.0})["w"]
        assert (master.astype(dtype) - (0.1 * slope).astype(dtype) == 1).any()
        for _ in range(50):
            session.run(train_op)
            master = master - np.float32(0.1) * slope.astype("float32")
        value = session.run(loss.variables["w"])
        np.testing.assert_allclose(value, master, rtol=1e-6)
        assert value.dtype == np.float32


class TestTraining:
    @pytest.mark.parametrize("jit", [True, False])
    def test_gradients_are_those_of_jax(self, session, data, feed, jit):
        params = parameters()
        loss = gs.jax(params, squares, data, jit=jit)
        leaves = jax.tree_util.tree_leaves(loss.variables)
        value, gradients = initialized(session).run([loss, gs.gradients(loss, leaves)], feed)
        expected, slopes = jax.value_and_grad(squares)(params, X, Y)
        assert value == pytest.approx(float(expected), rel=1e-6)
        for found, slope in zip(gradients, jax.tree_util.tree_leaves(slopes), strict=True):
            np.testing.assert_allclose(found, slope, rtol=1e-4, atol=1e-6)

    def test_it_is_compiled_once_for_each_shape(self, session, data):
        traced = []

        def counted(params, x, y):
            traced.append(x.shape)
            return squares(params, x, y)

        loss = gs.jax(parameters(), counted, data)
        train_op = gs.train.GradientDescentOptimizer(0.1).minimize(loss)
        initialized(session)
        for rows in (8, 8, 4, 8):
            session.run([train_op, loss], {data[0]: X[:rows], data[1]: Y[:rows]})
        assert traced == [(8, 4), (4, 4)]


def test_without_jax_the_extra_is_named(monkeypatch):
    def refuse(name, *args, **options):
        if name == "jax":
            raise ImportError("No module named 'jax'", name="jax")
        return real(name, *args, **options)

    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(ImportError, match=r"gs\.jax needs jax, .* Run `pip install 'globalstep\[jax\]'`"):
        gs.jax(None, None)
