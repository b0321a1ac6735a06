"""The usual mistakes: each message names the place and what to do. docs/training.md has them as a table."""

import socket

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError, UnavailableError

X = np.ones((4, 3), np.float32)
Y = np.ones(4, np.float32)


def loss_fn(w, x, y):
    error = x @ w - y
    return np.mean(error**2), 2 * x.T @ error / len(x)


def fit(model=None, loss=loss_fn, batches=((X, Y),), optimizer=None, steps=1, **options):
    model = np.zeros(3, np.float32) if model is None else model
    return gs.fit(model, loss, list(batches), optimizer=optimizer or gs.optim.SGD(0.1), steps=steps, **options)


def refused(message, **options):
    with pytest.raises(InvalidArgumentError, match=message):
        fit(**options)


def test_a_loss_that_is_not_finite_changes_nothing(tmp_path):
    def diverging(w, x, y):
        return np.float32(np.nan), np.full(3, np.nan, np.float32)

    refused(r"The loss is nan: its gradients were not pushed.*clip_grad_norm=1.0", loss=diverging, run_dir=tmp_path)
    assert gs.load(tmp_path)["params"].tolist() == [0, 0, 0]


def test_arrays_that_do_not_fit():
    with pytest.raises(ValueError, match="matmul") as caught:
        fit(batches=[(X[:, :2], Y)])
    assert "with the batch (float32[4, 2], float32[4])" in "".join(caught.value.__notes__)
    refused(r"The gradient of 'params' is float32\[2\], and the parameter float32\[3\]",
            loss=lambda w, x, y: (0.0, np.ones(2, np.float32)))  # fmt: skip
    refused(r"gradient of 'params' is complex64\[3\].*floating",
            loss=lambda w, x, y: (0.0, np.ones(3, np.complex64)))  # fmt: skip
    refused(r"must give \(loss, gradients\); it gave float", loss=lambda w, x, y: 1.0)
    refused(r"The loss must be a real scalar; the loss function gave float32\[4\]",
            loss=lambda w, x, y: (Y, w))  # fmt: skip
    refused(r"'params' is complex128\[3\], and a parameter is one of .*astype", model=np.zeros(3, complex))
    refused("no floating array, so there is nothing to train", model=np.zeros(3, int))


def test_what_is_no_model_function_or_optimizer():
    refused("must be a torch module, or arrays .*; 'params' is a str", model="model")
    refused("loss_fn is 3; it must be a function", loss=3)
    refused(r"optimizer is the class Adam: give an optimizer, Adam\(...\)", optimizer=gs.optim.Adam)
    refused(r"optimizer is 'adam'; it must be one of gs.optim", optimizer="adam")
    refused("no parameter is left for 'layer.*'; the parameters are params", optimizer={"layer.*": gs.optim.SGD()})
    with pytest.raises(InvalidArgumentError, match=r'no pattern fits b. End with "\*"'):
        gs.fit({"a": X, "b": Y}, loss_fn, [X], optimizer={"a": gs.optim.SGD()})


def test_numbers_that_cannot_be():
    refused("steps is 0; it must be a whole number of at least 1", steps=0)
    refused("steps is 10.0", steps=10.0)
    refused("Give steps or epochs, not both", epochs=1)
    refused("accumulate is 0", accumulate=0)
    refused("clip_grad_norm is -1; it must be positive", clip_grad_norm=-1)
    refused("ema_decay is 1.5; it must lie between 0 and 1", ema_decay=1.5)
    refused(r"evaluate is \[\]; it must be a gs.Evaluate", evaluate=[])
    refused(r"callbacks: 'csv' is no gs.Callback", callbacks=["csv"])
    with pytest.raises(InvalidArgumentError, match="epochs needs batches whose number is known.*Give steps"):
        gs.fit(np.zeros(3, np.float32), loss_fn, iter([(X, Y)]), optimizer=gs.optim.SGD(), epochs=2)


def test_an_evaluation_that_gives_no_number():
    bad = gs.Evaluate([(X, Y)], {"error": lambda *_: Y}, every_steps=1)
    refused(r"The metric 'error' must be a real number; its function gave float32\[4\]", evaluate=bad)
    with pytest.raises(InvalidArgumentError, match=r"best is 'auc'; it must be one of the metrics: loss"):
        gs.Evaluate([(X, Y)], best="auc")
    with pytest.raises(InvalidArgumentError, match="mode is 'up'"):
        gs.Evaluate([(X, Y)], mode="up")


def test_a_directory_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    refused(r"run_dir '.*file/runs' cannot be written to.*Give a directory", run_dir=str(tmp_path / "file" / "runs"))


def test_a_directory_of_another_model(tmp_path):
    fit(run_dir=tmp_path)
    with pytest.raises(gs.OpError, match=r"shape|another"):
        fit(model=np.zeros(2, np.float32), batches=[(X[:, :2], Y)], run_dir=tmp_path, steps=2)


def test_a_loop_without_steps():
    trainer = gs.Trainer(np.zeros(3, np.float32), loss_fn, optimizer=gs.optim.SGD())
    with pytest.raises(RuntimeError, match=r"trains in a `with` block"):
        trainer.step((X, Y))
    with trainer:
        unused = trainer.batches([(X, Y)])
        with pytest.raises(RuntimeError, match=r"1000 batches were taken, and no step: call trainer.step\(batch\)"):
            list(unused)
    again = gs.Trainer(np.zeros(3, np.float32), loss_fn, optimizer=gs.optim.SGD())
    with again:
        again.step((X, Y))
        with pytest.raises(InvalidArgumentError, match=r"step\(\) needs a batch"):
            again.step()
    with pytest.raises(RuntimeError, match="A Trainer trains once: make another one"), again:
        pass


def test_a_port_of_another_server():
    """Something listens there, but it is no parameter server."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
    session = gs.Session(f"grpc://{address}", retry_secs=0.1)
    with session, pytest.raises(UnavailableError, match=address):
        session.run(gs.Variable(1.0, name="w"))


class TestTorch:
    """Mistakes with tensors."""

    torch = property(lambda self: pytest.importorskip("torch", reason="PyTorch is not installed"))

    def refused(self, message, loss=None, batch=None, kind=InvalidArgumentError, model=None, **options):
        torch = self.torch
        model = torch.nn.Linear(3, 1) if model is None else model
        batch = (torch.ones(4, 3), torch.ones(4)) if batch is None else batch
        loss = loss or (lambda model, x, y: ((model(x)[:, 0] - y) ** 2).mean())
        options = {"optimizer": gs.optim.SGD(0.1), "steps": 1, **options}
        with pytest.raises(kind) as caught:
            gs.fit(model, loss, [batch], **options)
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert message in text, text

    def test_inputs(self):
        torch = self.torch
        self.refused("float64[4, 3] on cpu, float32[4] on cpu); the module's parameters are float32 on cpu. Make the "
                     "batch's floats float32 where it is made: tensor.float()", kind=RuntimeError,
                     batch=(torch.ones(4, 3).double(), torch.ones(4)))  # fmt: skip
        self.refused("complex64[4, 3] on cpu", kind=RuntimeError, batch=(torch.ones(4, 3) * 1j, torch.ones(4)))
        self.refused("Move the batch there: batch.to('cpu')", kind=Exception,
                     batch=(torch.ones(4, 3, device="meta"), torch.ones(4)))  # fmt: skip
        self.refused(
            "batch[0], float32[4, 3] on cpu, requires a gradient", batch=(torch.ones(4, 3, requires_grad=True), Y)
        )
        self.refused("mat1 and mat2 shapes cannot be multiplied", kind=RuntimeError, batch=(torch.ones(4, 2), Y))
        self.refused("A batch that is a tuple or list gives loss_fn(module, *batch)", kind=TypeError,
                     loss=lambda model, batch: model(batch[0]).mean())  # fmt: skip
        self.refused("The loss is nan", batch=(torch.ones(0, 3), torch.ones(0)))

    def test_losses(self):
        self.refused("it gave None: is `return` missing?", loss=lambda model, x, y: None)
        self.refused("it gave a float. Return the tensor itself, not loss.item()",
                     loss=lambda model, x, y: model(x).mean().item())  # fmt: skip
        self.refused("it gave a tensor of shape [4, 1]. Take its mean() or sum()", loss=lambda model, x, y: model(x))
        self.refused("does not depend on the module's parameters", loss=lambda model, x, y: model(x).mean().detach())
        self.refused("The loss is complex", loss=lambda model, x, y: (model(x) * 1j).mean())

    def test_models_and_optimizers(self):
        torch = self.torch
        linear = torch.nn.Linear(3, 1)
        self.refused("Linear is a class of modules: give a module, Linear(...)", model=torch.nn.Linear)
        self.refused("Tensors by themselves are no model", model=[torch.ones(3)])
        self.refused("has no parameter that requires a gradient", model=torch.nn.ReLU())
        self.refused("dtype bfloat16", model=torch.nn.Linear(3, 1).bfloat16(), kind=TypeError)
        self.refused("has no shape yet", model=torch.nn.LazyLinear(1), kind=ValueError)
        self.refused("optimizer is torch.optim.Adam, which would change the module in this process alone",
                     optimizer=torch.optim.Adam(linear.parameters()))  # fmt: skip
        table = torch.nn.Sequential(gs.torch.Embedding(5, 3))
        self.refused("weight_decay is not for it, as in PyTorch", model=table, optimizer=gs.optim.SGD(weight_decay=0.1),
                     loss=lambda model, x, y: model(x.long()).mean())  # fmt: skip
