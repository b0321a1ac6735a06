"""MLflow and Weights & Biases, the real libraries, with stores in a folder."""

import numpy as np
import pytest

import globalstep as gs

X = np.eye(3, dtype=np.float32)


def loss_fn(w, x, y):
    error = x @ w - y
    return np.mean(error**2), 2 * x.T @ error / len(x)


def fit(*callbacks):
    evaluate = gs.Evaluate([(X, X[0])], every_steps=2)
    return gs.fit(
        np.zeros(3, np.float32), loss_fn, [(X, X[0])], optimizer=gs.optim.SGD(0.1), steps=4, evaluate=evaluate,
        callbacks=callbacks,
    )  # fmt: skip


def test_a_library_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(ImportError, match=r"gs.MLflowLogger needs mlflow.*pip install 'globalstep\[mlflow\]'"):
        fit(gs.MLflowLogger())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed; `pip install mlflow-skinny` runs this test")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path}/store")
    result = fit(gs.MLflowLogger(every_steps=1, run_name="clicks", params={"rate": 0.1}))
    assert mlflow.active_run() is None
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.info.status, run.data.params) == ("clicks", "FINISHED", {"rate": "0.1"})
    assert [point.step for point in client.get_metric_history(run.info.run_id, "loss")] == [1, 2, 3, 4]
    evaluated = {point.step: point.value for point in client.get_metric_history(run.info.run_id, "eval/loss")}
    assert evaluated == {entry["step"]: entry["metrics"]["loss"] for entry in result.history}


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed; `pip install wandb` runs this test")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(project="test", dir=tmp_path) as run:
        fit(gs.WandbLogger(every_steps=2))
        assert run.summary["global_step"] == 4
        assert 0 < run.summary["eval/loss"] < run.summary["loss"] + 1
    wandb.teardown()
    assert list(tmp_path.rglob("*.wandb"))
