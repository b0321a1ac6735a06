"""gs.fit with jax: parameters, embeddings, keys."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError

jax = pytest.importorskip("jax", reason="jax is not installed; `pip install jax` runs these tests")
jnp = jax.numpy

RANDOM = np.random.default_rng(11)
IDS = RANDOM.integers(50, size=(24, 2))
Y = RANDOM.normal(size=24).astype(np.float32)
BATCHES = [(IDS[at : at + 6], Y[at : at + 6]) for at in range(0, 24, 6)]


def start(table=None):
    return {"table": gs.jax.Embedding(50, 3) if table is None else table, "out": {"w": jnp.ones(6), "b": jnp.zeros(())}}


def score(params, ids):
    lookup = params["table"] if callable(params["table"]) else params["table"].__getitem__
    return lookup(ids).reshape(len(ids), -1) @ params["out"]["w"] + params["out"]["b"]


def loss_fn(params, ids, y):
    return jnp.mean((score(params, ids) - y) ** 2)


def test_bfloat16_parameters_have_float32_masters(tmp_path):
    run = str(tmp_path / "run")
    params = {"w": jnp.ones(4, "bfloat16"), "b": jnp.zeros((), "bfloat16")}
    x = jnp.ones(4, "bfloat16")

    def small(p, scale):
        assert p["w"].dtype == p["b"].dtype == "bfloat16"
        return (jnp.dot(p["w"], x) + p["b"]) * scale

    batches = [jnp.asarray(2.0**-10, "bfloat16")]
    result = gs.fit(params, small, batches, optimizer=gs.optim.SGD(1.0), steps=64, run_dir=run)
    # No step of 2**-10 moves a bfloat16 of 1; 64 of them do.
    assert result.model["w"].dtype == "bfloat16"
    assert (result.model["w"] == 1 - 64 * 2.0**-10).all()
    assert np.isfinite(result.loss)
    assert gs.load(run)["w"].dtype == np.float32
    assert gs.load(run, params)["b"].dtype == "bfloat16"


@pytest.mark.long
def test_a_run_is_that_of_jax():
    params = start()
    plain = start(params["table"].weight)
    result = gs.fit(params, loss_fn, BATCHES, optimizer=gs.optim.SGD(0.1), steps=9)
    gradient = jax.jit(jax.grad(loss_fn))
    for step in range(9):
        plain = jax.tree_util.tree_map(lambda w, g: w - 0.1 * g, plain, gradient(plain, *BATCHES[step % 4]))
    assert np.allclose(result.model["table"].weight, plain["table"], atol=1e-5)
    assert np.allclose(result.model["out"]["w"], plain["out"]["w"], atol=1e-5)


def test_several_batches_make_a_step_of_their_mean():
    whole = gs.fit(start(), loss_fn, [(IDS[:12], Y[:12])], optimizer=gs.optim.SGD(0.1), steps=3)
    parts = gs.fit(start(), loss_fn, BATCHES[:2], optimizer=gs.optim.SGD(0.1), steps=3, accumulate=2)
    assert np.allclose(whole.model["table"].weight, parts.model["table"].weight, atol=1e-5)
    assert np.allclose(whole.model["out"]["w"], parts.model["out"]["w"], atol=1e-5)


@pytest.mark.long
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(tmp_path):
    def noisy(params, ids, y, rng):
        return loss_fn(params, ids, y + jax.random.normal(rng, y.shape))

    def run(steps, run_dir):
        return gs.fit(
            start(), noisy, BATCHES, optimizer=gs.optim.Adam(0.01), steps=steps, run_dir=run_dir, seed=3
        ).model

    whole = run(9, None)
    run(4, tmp_path)
    for one, other in zip(*map(jax.tree_util.tree_leaves, (whole, run(9, tmp_path))), strict=True):
        assert np.array_equal(one, other)
    loaded = gs.load(tmp_path, start())
    assert np.array_equal(loaded["table"].weight, whole["table"].weight)
    assert np.array_equal(jax.jit(score)(loaded, IDS), jax.jit(score)(whole, IDS))


@pytest.mark.long
def test_evaluation(tmp_path):
    evaluate = gs.Evaluate(
        BATCHES, {"mse": lambda y, z: np.mean((y - z) ** 2)}, mode="min", every_steps=5,
        predict=lambda params, ids, y: (y, score(params, ids)),
    )  # fmt: skip
    result = gs.fit(start(), loss_fn, BATCHES, optimizer=gs.optim.Adagrad(0.1), steps=10, evaluate=evaluate)
    assert np.isclose(result.metrics["mse"], np.mean((score(result.model, IDS) - Y) ** 2), rtol=1e-4)


def fit(loss, params=None, batches=BATCHES):
    return gs.fit(start() if params is None else params, loss, batches, optimizer=gs.optim.SGD(0.1), steps=1)


def test_mistakes():
    with pytest.raises(InvalidArgumentError, match=r"an array of shape \[6\]. Take its mean\(\) or sum\(\)"):
        fit(lambda params, ids, y: (score(params, ids) - y) ** 2)
    with pytest.raises(InvalidArgumentError, match="it gave None: is `return` missing"):
        fit(lambda params, ids, y: None)
    with pytest.raises(InvalidArgumentError, match="it gave a tuple. Give the loss alone: jax computes the gradients"):
        fit(lambda params, ids, y: (loss_fn(params, ids, y), 1))
    with pytest.raises(InvalidArgumentError, match="The ids of a lookup depend on the parameters"):
        fit(lambda params, ids, y: params["table"](jnp.round(params["out"]["w"]).astype(int) + 3).sum())
    with pytest.raises(InvalidArgumentError, match="Id 80 is not in 'table', an Embedding of 50 rows"):
        fit(loss_fn, batches=[(np.full((2, 2), 80), Y[:2])])
    with pytest.raises(InvalidArgumentError, match="integer ids; it got float32"):
        fit(loss_fn, batches=[(np.ones((2, 2), np.float32), Y[:2])])
    with pytest.raises(InvalidArgumentError, match="The loss is complex64"):
        fit(lambda params, ids, y: loss_fn(params, ids, y) * 1j)
    with pytest.raises(TypeError) as caught:
        fit(loss_fn, batches=[(IDS[:2], ["a", "b"])])
    assert "In the loss function, with the batch (int64[2, 2], (str, str))" in "".join(caught.value.__notes__)
    with pytest.raises(InvalidArgumentError, match="no floating array"):
        fit(loss_fn, params={"w": jnp.ones(3, int)})


def test_sizes_that_no_embedding_has():
    for rows, width in ((0, 2), (2, 2.5), ("2", 2)):
        with pytest.raises(
            ValueError, match=f"An Embedding of {rows} rows of {width}: both must be whole numbers of a"
        ):
            gs.jax.Embedding(rows, width)
