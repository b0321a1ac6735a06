"""Files of a model for other programs."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import globalstep as gs
from globalstep.chief.training.saved_model import export_model
from globalstep.deploy.cli import main
from globalstep.errors import InvalidArgumentError


@pytest.fixture
def run_dir(tmp_path):
    def loss_fn(params, x):
        return np.mean((x - params["w"]) ** 2), {"w": params["w"] - x.mean(0)}

    evaluate = gs.Evaluate([np.ones((2, 3), np.float32)], {"step": lambda params, _: -params["w"].sum()}, every_steps=2)
    gs.fit({"w": np.zeros(3, np.float32)}, loss_fn, [np.ones((2, 3), np.float32)], optimizer=gs.optim.Adam(), steps=4,
           run_dir=tmp_path / "run", evaluate=evaluate, ema_decay=0.5)  # fmt: skip
    return tmp_path / "run"


def test_safetensors_and_npz(run_dir, tmp_path, capsys):
    wanted = gs.load(run_dir)["w"].tolist()
    assert main(["checkpoint", "export", str(run_dir), str(tmp_path / "model.safetensors")]) == 0
    assert "Wrote 1 tensors" in capsys.readouterr().out
    assert {name: value.tolist() for name, value in load_file(tmp_path / "model.safetensors").items()} == {"w": wanted}
    assert main(["checkpoint", "export", str(run_dir), str(tmp_path / "best.npz"), "--step", "best"]) == 0
    with np.load(tmp_path / "best.npz") as best:
        assert best["w"].tolist() == gs.load(run_dir, step=2)["w"].tolist() != wanted
    assert main(["checkpoint", "export", str(run_dir), str(tmp_path / "ema.npz"), "--ema", "--step", "4"]) == 0
    with np.load(tmp_path / "ema.npz") as averages:
        assert averages["w"].tolist() == gs.load(run_dir, ema=True)["w"].tolist() != wanted


def test_scalars_stay_scalars(tmp_path):
    def loss_fn(params, x):
        return float(params["b"]), {"b": np.ones((), np.float32)}

    gs.fit({"b": np.zeros((), np.float32)}, loss_fn, [0], optimizer=gs.optim.SGD(0.5), steps=2, run_dir=tmp_path)
    for ending in ("safetensors", "npz"):
        export_model(tmp_path, tmp_path / f"model.{ending}")
    assert load_file(tmp_path / "model.safetensors")["b"].shape == ()
    with np.load(tmp_path / "model.npz") as found:
        assert found["b"].shape == ()


def test_a_state_dict_of_torch(run_dir, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch==2.13.0` runs this test")
    assert export_model(run_dir, tmp_path / "model.pt") == ["w"]
    assert torch.load(tmp_path / "model.pt")["w"].tolist() == gs.load(run_dir)["w"].tolist()


def test_what_cannot_be_written(run_dir, tmp_path, capsys):
    with pytest.raises(InvalidArgumentError, match=r"must be one of .pt, .pth, .safetensors, .npz"):
        export_model(run_dir, tmp_path / "model.h5")
    assert main(["checkpoint", "export", str(tmp_path), str(tmp_path / "model.npz")]) == 1
    assert "it has none" in capsys.readouterr().err
