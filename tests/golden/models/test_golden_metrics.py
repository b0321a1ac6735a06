"""Metrics give TensorFlow's numbers, under its names; scripts/make_golden_models.py made the data."""

import pathlib

import golden_metrics
import numpy as np
import pytest

import globalstep as gs

DATA = np.load(pathlib.Path(__file__).parent / "metrics.npz")
CASES = golden_metrics.metric_cases()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_metric_follows_tensorflow(case):
    with gs.Session() as session:
        found = golden_metrics.run(
            case,
            gs.metrics,
            gs.placeholder,
            session,
            gs.local_variables_initializer,
            lambda: [variable.op.name for variable in gs.local_variables()],
        )
    assert found["names"].tolist() == DATA[f"{case.name}/names"].tolist()
    for key in ("updates", "value"):
        wanted = DATA[f"{case.name}/{key}"]
        assert found[key].dtype == wanted.dtype
        np.testing.assert_allclose(found[key], wanted, rtol=2e-6, atol=1e-7, err_msg=f"{case.name}/{key}")
    assert gs.get_collection(gs.GraphKeys.METRIC_VARIABLES) == gs.local_variables()
    assert gs.global_variables() == gs.trainable_variables() == []


def test_every_metric_that_tensorflow_has_is_checked():
    older = {"sparse_average_precision_at_k", "sparse_precision_at_k"}
    assert {case.metric for case in CASES} == set(gs.metrics.__all__) - older
