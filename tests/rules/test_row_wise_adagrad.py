"""Row-wise Adagrad: TorchRec's numbers, for rows and for whole gradients, on one PS and in parts."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.ps.store.store import VariableStore
from globalstep.rules import get_rule
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Read, VariableDecl
from globalstep.wire.expressions import constant

HYPER = {"learning_rate": 0.1, "epsilon": 1e-3}
RANDOM = np.random.default_rng(1)


def torchrec(values, sums, ids, rows):
    """`torchrec.optim.rowwise_adagrad._single_tensor_adagrad`, of rows."""
    values, sums = values.copy(), sums.copy()
    for at, row in zip(ids, rows, strict=True):
        sums[at] += np.mean(row**2)
        values[at] -= 0.1 * row / (np.sqrt(sums[at]) + 1e-3)
    return values, sums


@pytest.mark.parametrize(("dtype", "off"), [("float64", 1e-12), ("float32", 1e-5), ("float16", 1e-2)])
def test_rows_change_as_torchrecs(dtype, off):
    # More rows than are computed at a time.
    values, sums = RANDOM.normal(size=(3000, 40)).astype(dtype), RANDOM.uniform(size=(3000, 1)).astype(dtype)
    ids = RANDOM.permutation(3000)[:2000]
    rows = RANDOM.normal(size=(2000, 40)).astype(dtype)
    wanted = torchrec(*(array.astype(np.float64) for array in (values, sums)), ids, rows.astype(np.float64))
    get_rule("row_wise_adagrad").sparse(values, (sums,), ids, rows, HYPER)
    np.testing.assert_allclose(values, wanted[0], rtol=off, atol=off)
    np.testing.assert_allclose(sums, wanted[1], rtol=off, atol=off)


def store_of(shape, slot):
    store = VariableStore()
    hypers = {name: constant(value) for name, value in HYPER.items()}
    store.declare(
        [VariableDecl("w", "float64", shape), VariableDecl("a", "float64", slot, primary="w", optimizer="o", slot="a")],
        [OptimizerDecl("o", "row_wise_adagrad", hypers, {"w": ("a",)})],
    )
    return store


def test_a_whole_gradient_is_that_of_all_rows():
    store, (values, grad) = store_of((5, 2, 3), (5, 1)), RANDOM.normal(size=(2, 5, 2, 3))
    store.apply([Op(OpKind.ASSIGN, "w", values), Op(OpKind.ASSIGN, "a", fill=0.0)], {})
    push = [Op(OpKind.APPLY, "w", grad, optimizer="o")]
    store.check(push)
    data = memoryview(grad.tobytes())
    bound = [Op(OpKind.APPLY, "w", np.frombuffer(data).reshape(grad.shape), optimizer="o")]
    wanted = torchrec(values.reshape(5, 6), np.zeros((5, 1)), range(5), grad.reshape(5, 6))
    store.apply(bound, {("o", False): HYPER}, data)
    found = store.read([Read("w"), Read("a")])
    np.testing.assert_allclose(found[0].reshape(5, 6), wanted[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)
    plan = store.plan(bound, [], data)
    store.apply_plan(plan, {("o", False): HYPER}, data)
    again = torchrec(*wanted, range(5), grad.reshape(5, 6))
    np.testing.assert_allclose(store.read([Read("w")])[0].reshape(5, 6), again[0], rtol=1e-12)


@pytest.mark.parametrize(("shape", "slot", "said"), [((5, 2), (5, 2), r"needs it to be float64 \[5, 1\]"),
                                                     ((5,), (5,), "it is for tables")])  # fmt: skip
def test_what_is_no_table_is_refused(shape, slot, said):
    with pytest.raises(InvalidArgumentError, match=said):
        store_of(shape, slot)


def test_a_table_is_trained_with_it():
    torch = pytest.importorskip("torch")
    table = gs.torch.Embedding(6, 4)
    start = table.weight.numpy().astype(np.float64)
    ids = torch.tensor([1, 4, 4])
    result = gs.fit(
        table,
        lambda model, ids: (model(ids) ** 2).sum(),
        [ids],
        optimizer=gs.optim.RowWiseAdagrad(0.1, eps=1e-3),
        steps=3,
    )
    sums = np.zeros((6, 1))
    for _ in range(3):
        start, sums = torchrec(start, sums, [1, 4], [2 * start[1], 4 * start[4]])
    np.testing.assert_allclose(result.model.weight, start, rtol=1e-5)


def test_parameters_that_are_no_tables_are_named():
    with pytest.raises(ValueError, match=r"RowWiseAdagrad keeps a number for each row.*'model/b' has shape \[3\]"):
        gs.fit(
            {"b": np.zeros(3, np.float32)},
            lambda params, x: (0.0, {"b": x}),
            [np.ones(3, np.float32)],
            optimizer=gs.optim.RowWiseAdagrad(),
            steps=1,
        )
