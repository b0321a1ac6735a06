"""The usual mistakes: each message names the place and what to do."""

import json
import logging
import socket
import threading

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.runtime.clock import ManualClock

X = np.ones((4, 3), np.float32)
Y = np.ones(4, np.float32)


def loss_fn(w, x, y):
    error = x @ w - y
    return np.mean(error**2), 2 * x.T @ error / len(x)


def fit(model=None, loss=loss_fn, batches=((X, Y),), optimizer=None, steps=1, **options):
    model = np.zeros(3, np.float32) if model is None else model
    batches = batches if callable(batches) else list(batches)
    return gs.fit(model, loss, batches, optimizer=optimizer or gs.optim.SGD(0.1), steps=steps, **options)


def refused(message, **options):
    with pytest.raises(InvalidArgumentError, match=message):
        fit(**options)


def warned(caplog, message):
    return [record for record in caplog.records if record.levelno == logging.WARNING and message in record.getMessage()]


def test_a_loss_that_is_not_finite_changes_nothing(tmp_path):
    def diverging(w, x, y):
        return np.float32(np.nan), np.full(3, np.nan, np.float32)

    refused(r"The loss is nan: its gradients were not pushed.*clip_grad_norm=1.0", loss=diverging, run_dir=tmp_path)
    assert gs.load(tmp_path)["params"].tolist() == [0, 0, 0]


def test_a_gradient_that_is_not_finite_is_named_when_the_loss_is_not():
    config = gs.ConfigProto(run_policy=gs.RunPolicy(on_nan="apply"))
    with pytest.raises(InvalidArgumentError, match="The loss is nan") as caught:
        fit(loss=lambda w, x, y: (np.sum(w), np.full(3, np.nan, np.float32)), steps=3, config=config)
    assert "The parameter 'params' was not finite before this step" in "".join(caught.value.__notes__)


def test_a_loss_that_trains_nothing(caplog):
    fit(loss=lambda w, x, y: (1.0, np.zeros(3, np.float32)), steps=3)
    assert len(warned(caplog, "All gradients of the first step are zero.")) == 1
    caplog.clear()
    fit(steps=2)
    assert not caplog.records or not warned(caplog, "zero")


def test_gradients_and_names_of_other_parameters():
    given = np.zeros(3, np.float32)
    refused(
        "gave a gradient for 'z'; the parameters are a", model={"a": given}, loss=lambda p, x, y: (1.0, {"z": given})
    )
    both = {"a": given, "b": given}
    refused("gave no gradient for 'b'; .* None stands for zeros", model=both, loss=lambda p, x, y: (1.0, {"a": given}))
    assert fit(model=both, loss=lambda p, x, y: (1.0, {"a": given, "b": None}), steps=1).step == 1
    refused("2 parameters have the path 'a/b'", model={"a/b": given, "a": {"b": given}})
    refused("A parameter is called 'a b'; a name is made of letters", model={"a b": given})


def test_batches_that_end_early(caplog):
    assert gs.fit(X[0], loss_fn, zip([X, X], [Y, Y], strict=True), optimizer=gs.optim.SGD(), steps=5).step == 2
    assert warned(caplog, "The batches ended at step 2 of 5: an iterator is gone through once. Give a list, or a")
    with pytest.raises(InvalidArgumentError, match=r"Of a torch dataset: torch.utils.data.DataLoader\("):
        gs.fit(X[0], loss_fn, object(), optimizer=gs.optim.SGD(), steps=5)


@pytest.mark.parametrize("error", [StopIteration, lambda: gs.errors.OutOfRangeError(None, None, "the end")])
@pytest.mark.parametrize("where", ["loss", "callback", "loop"])
def test_an_end_of_an_iterator_ends_no_training_in_silence(error, where, tmp_path):
    calls = []

    def called(*_):
        calls.append(None)
        if len(calls) == 5:
            raise error()

    def loss(params, x):
        if where == "loss":
            called()
        return float(np.mean(params * x)), x

    class Counts(gs.Callback):
        def on_step(self, trainer, step, loss):
            if where == "callback":
                called()

    trainer = gs.Trainer(X[0], loss, optimizer=gs.optim.SGD(), steps=30, run_dir=str(tmp_path), callbacks=[Counts()])
    ended = r"in the program of this worker at step [45], .* trainer\.stop\(\)"

    def train():
        with trainer:
            for batch in trainer.batches([X[0]]):
                trainer.step(batch)
                if where == "loop":
                    called()

    with pytest.raises(RuntimeError, match=ended) as raised:
        train()
    assert isinstance(raised.value.__cause__, type(error()))
    assert trainer.result is None


def test_an_end_before_the_last_step_is_told(caplog):
    with caplog.at_level("INFO"), gs.Trainer(X[0], loss_fn, optimizer=gs.optim.SGD(), steps=30) as trainer:
        trainer.step((X, Y))
    assert "Training ended at step 1 of 30." in caplog.messages


def test_two_arrays_in_place_of_batches():
    with pytest.raises(TypeError) as caught:
        fit(batches=(X, Y))
    assert "A batch that is a tuple or list gives loss_fn(params, *batch)" in "".join(caught.value.__notes__)


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
    refused(r"loss_fn is \[.{,400}\]; it must be a function.*: gs.fit\(model, loss_fn, batches\)", loss=[(X, Y)] * 999)
    refused(r"optimizer is the class Adam: give an optimizer, Adam\(...\)", optimizer=gs.optim.Adam)
    refused(r"optimizer is 'adam'; it must be one of gs.optim", optimizer="adam")
    with pytest.raises(TypeError, match=r"Adam gets the rate first, Adam\(lr=0.001\), and no parameters"):
        gs.optim.Adam(iter([X]), lr=1e-3)
    with pytest.raises(ValueError, match=r"betas are 0.9; they must be two numbers"):
        gs.optim.Adam(betas=0.9)
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
    refused(r"evaluate is \[.{,400}\]; it must be a gs.Evaluate", evaluate=[(X, Y)] * 999)
    refused(r"callbacks: 'csv' is no gs.Callback", callbacks=["csv"])
    refused(r"CSVLogger'> is no gs.Callback. It is a class", callbacks=[gs.CSVLogger])
    refused(r"callbacks is None; it must be a list", callbacks=None)
    refused("checkpoint_every_steps is 0; it must be a whole number of at least 1", checkpoint_every_steps=0)
    refused("keep_checkpoints is -1", keep_checkpoints=-1)
    refused("seed is 'a'", seed="a")
    refused("seed is None", seed=None)
    refused("clip_grad_norm is '1'; it must be positive", clip_grad_norm="1")
    refused("ema_decay is '1'; it must lie", ema_decay="1")
    refused("config is {}; it must be a gs.ConfigProto", config={})
    refused("run_dir is ''; it must be a path", run_dir="")
    refused("run_dir is 3; it must be a path", run_dir=3)
    refused(r"run_dir is '~/runs': only a shell expands ~. Give os.path.expanduser\('~/runs'\)", run_dir="~/runs")
    with pytest.raises(TypeError, match=r"gs.fit has no argument 'step'. Did you mean 'steps'\?"):
        fit(step=3)
    with pytest.raises(TypeError, match=r"gs.fit has no argument 'lr'. The learning rate and such are the optimizer's"):
        fit(lr=3)
    with pytest.raises(InvalidArgumentError, match="epochs is 2, and batches an iterator.*gone through once"):
        gs.fit(np.zeros(3, np.float32), loss_fn, iter([(X, Y)]), optimizer=gs.optim.SGD(), epochs=2)


def test_an_evaluation_that_gives_no_number():
    bad = gs.Evaluate([(X, Y)], {"error": lambda *_: Y}, every_steps=1)
    refused(r"The metric 'error' must be a real number; its function gave float32\[4\]", evaluate=bad)
    for metrics in (max, [max], {}):
        with pytest.raises(InvalidArgumentError, match="metrics must be functions by name"):
            gs.Evaluate([(X, Y)], metrics)
    for fails, said in (
        ({"metrics": {"error": lambda y: 0.0}}, "The metric 'error' is called as fn(model, batches)."),
        ({"metrics": {"error": max}, "predict": lambda w, x: x}, "predict is called as predict(model, *batch)."),
        ({"metrics": {"error": lambda: 0.0}, "predict": lambda w, x, y: y}, "what predict gave, joined: (float32[4])."),
    ):
        with pytest.raises(TypeError) as caught:
            fit(evaluate=gs.Evaluate([(X, Y)], every_steps=1, **fails))
        assert said in "".join(caught.value.__notes__)
    refused("There is no batch to evaluate on. Each evaluation goes through the batches anew",
            evaluate=gs.Evaluate(iter([(X, Y)]), every_steps=1), steps=2)  # fmt: skip
    with pytest.raises(InvalidArgumentError, match=r"best is 'auc'; it must be one of the metrics: loss"):
        gs.Evaluate([(X, Y)], best="auc")
    with pytest.raises(InvalidArgumentError, match="mode is 'up'"):
        gs.Evaluate([(X, Y)], mode="up")


def test_numbers_of_an_evaluation_that_cannot_be():
    for number in (0, "3", 1.5):
        with pytest.raises(InvalidArgumentError, match=f"patience is {number!r}; it must be a whole number of at leas"):
            gs.Evaluate([(X, Y)], patience=number)
        with pytest.raises(InvalidArgumentError, match=f"every_steps is {number!r}; it must be a whole number of at "):
            gs.Evaluate([(X, Y)], every_steps=number)


def test_a_step_of_numpy_is_the_last_one_as_well(caplog, tmp_path):
    caplog.set_level(logging.INFO)
    for _ in range(2):
        assert fit(steps=np.int64(2), run_dir=tmp_path).step == 2
    said = caplog.text
    assert "now at 2 of 2" in said
    assert "already at 2 of 2, nothing to do: a larger last step (steps=, or last_step=), or another dir" in said


def test_nothing_is_said_of_a_directory_that_is_deleted(caplog):
    """Evaluations need checkpoints; without a run_dir theirs are in a directory that goes with the Trainer."""
    caplog.set_level(logging.INFO)
    fit(steps=2, evaluate=gs.Evaluate([(X, Y)], every_steps=1))
    (said,) = [message for message in caplog.messages if message.startswith("done:")]
    assert said.endswith("now at 2 of 2; without a run_dir, or checkpoint_dir, nothing is kept")


def test_callbacks_that_nothing_would_call(caplog):
    class Keras(gs.Callback):
        def on_epoch_end(self, trainer):
            """Never called."""

    fit(callbacks=[Keras()])
    assert warned(caplog, "Keras has on_epoch_end, which is never called: a callback has on_start, on_step, on_evalua")

    class Short(gs.Callback):
        def on_step(self, step):
            """Of other arguments than it gets."""

    refused(r"Short.on_step is called as on_step\(trainer, step, loss\): give it these ", callbacks=[Short()])


def test_a_rate_that_is_no_number():
    for given, said in ((None, "None"), (-0.1, "-0.1"), (np.nan, "nan"), ("0.1x", "'0.1x'")):
        with pytest.raises(ValueError, match=f"SGD: lr gave {said} at step 0; it must give a number of at least 0"):
            fit(optimizer=gs.optim.SGD(lambda step, given=given: given))
    assert fit(optimizer=gs.optim.SGD(lambda step: np.float32(0.1))).step == 1


def test_a_function_of_units_of_other_arguments():
    refused(r"batches is called as batches\(step, unit\)", batches=lambda step: (X, Y), units=gs.WorkUnits(2))


def test_a_directory_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    refused(r"run_dir '.*file/runs' cannot be written to.*Give a directory", run_dir=str(tmp_path / "file" / "runs"))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"model": np.zeros(2, np.float32), "batches": [(X[:, :2], Y)]}, r"lhs shape= \[2\] rhs shape= \[3\]"),
        ({"optimizer": gs.optim.Adam(0.1)}, "Key beta1_power not found"),
    ],
)
def test_a_directory_of_another_model(other, reason, tmp_path):
    fit(run_dir=tmp_path)
    with pytest.raises(gs.OpError, match=f"another model or optimizer.*{reason}.*Give another run_dir, or") as caught:
        fit(run_dir=tmp_path, steps=2, **other)
    assert "most likely" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_workers_without_a_parameter_server(monkeypatch):
    task = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    refused("TF_CONFIG has 2 workers and no ps, so each would train by itself")


def test_a_loop_without_steps():
    trainer = gs.Trainer(np.zeros(3, np.float32), loss_fn, optimizer=gs.optim.SGD())
    with pytest.raises(RuntimeError, match=r"trains in a `with` block"):
        trainer.step((X, Y))
    with pytest.raises(RuntimeError, match=r"gives batches in a `with` block"):
        next(trainer.batches([(X, Y)]))
    with trainer:
        unused = trainer.batches([(X, Y)])
        with pytest.raises(RuntimeError, match=r"1000 batches were taken, and no step: call trainer.step\(batch\)"):
            list(unused)
    again = gs.Trainer(np.zeros(3, np.float32), loss_fn, optimizer=gs.optim.SGD())
    with again:
        again.step((X, Y))
        with pytest.raises(InvalidArgumentError, match=r"step\(\) needs a batch"):
            again.step()
        with pytest.raises(TypeError) as caught:
            again.step(X, Y)
        assert "step() was given 2 batches; one batch of two parts is step((x, y))" in "".join(caught.value.__notes__)
    with pytest.raises(RuntimeError, match="A Trainer trains once: make another one"), again:
        pass


class WaitsAMinute(ManualClock):
    """A clock by which the thread that made it, when it waits, is interrupted after a minute."""

    def __init__(self):
        super().__init__()
        self._thread, self._interrupted = threading.get_ident(), False

    def wait(self, event, timeout_secs):
        if self.monotonic() > 60.0 and threading.get_ident() == self._thread and not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt
        return super().wait(event, timeout_secs)


def test_a_port_of_another_server(caplog):
    """The session waits for a task that may start yet; it says for whom, and why that may be."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
    session = gs.Session(f"grpc://{address}", clock=WaitsAMinute())
    with caplog.at_level(logging.WARNING, "globalstep"), session, pytest.raises(KeyboardInterrupt):
        session.run(gs.Variable(1.0, name="w"))
    assert any(f"nothing listens on port {address.rpartition(':')[2]}" in text for text in caplog.messages)


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
        nested = {"x": [torch.ones(4, 3, requires_grad=True)]}
        self.refused("batch['x'][0], float32[4, 3] on cpu, requires a gradient", batch=nested)
        self.refused("Make the batch's arrays tensors where it is made: torch.from_numpy", kind=TypeError, batch=(X, Y))
        entropy = torch.nn.CrossEntropyLoss()
        self.refused("Numbers of classes are integers: make them so where the batch is made, labels.long()",
                     kind=RuntimeError, loss=lambda model, x, y: entropy(model(x), y))  # fmt: skip
        self.refused("A batch that is a tuple or list gives loss_fn(module, *batch)", kind=TypeError,
                     loss=lambda model, batch: model(batch[0]).mean())  # fmt: skip
        self.refused("The loss is nan", batch=(torch.ones(0, 3), torch.ones(0)))

    @pytest.mark.parametrize(
        ("loss", "outputs", "labels", "said"),
        [
            ("binary_cross_entropy_with_logits", 1, [[1], [0]], "that are probabilities, or 0 and 1, are floats: make"),
            ("cross_entropy", 4, [[0, 1, 0, 0], [1, 0, 0, 0]], "that are probabilities, or 0 and 1, are floats: make"),
            ("cross_entropy", 4, [[1], [2]], "have one dimension less than what the module gives: labels.squeeze(-1)"),
            ("cross_entropy", 4, [1, 4], "Numbers of classes go from 0 to one less than the module's outputs"),
        ],
    )
    def test_labels(self, loss, outputs, labels, said):
        functional, torch = self.torch.nn.functional, self.torch
        self.refused(said, kind=Exception, model=torch.nn.Linear(3, outputs),
                     loss=lambda model, x, y: getattr(functional, loss)(model(x), y),
                     batch=(torch.ones(2, 3), torch.tensor(labels)))  # fmt: skip

    def test_losses(self):
        def backward(loss):
            loss.backward()
            return loss

        self.refused("it gave None: is `return` missing?", loss=lambda model, x, y: None)
        self.refused("it gave a float. Return the tensor itself, not loss.item()",
                     loss=lambda model, x, y: model(x).mean().item())  # fmt: skip
        self.refused("it gave a tensor of shape [4, 1]. Take its mean() or sum()", loss=lambda model, x, y: model(x))
        self.refused("does not depend on the module's parameters", loss=lambda model, x, y: model(x).mean().detach())
        self.refused("it gave a tuple. Return the loss alone.", loss=lambda model, x, y: (model(x).mean(), 1))
        self.refused("gs does them", kind=RuntimeError, loss=lambda model, x, y: backward(model(x).square().mean()))
        self.refused("The loss is complex", loss=lambda model, x, y: (model(x) * 1j).mean())

    def test_models_and_optimizers(self):
        torch = self.torch
        linear = torch.nn.Linear(3, 1)
        self.refused("Linear is a class of modules: give a module, Linear(...)", model=torch.nn.Linear)
        self.refused("Tensors by themselves are no model", model=[torch.ones(3)])
        self.refused("has no parameter that requires a gradient", model=torch.nn.ReLU())
        self.refused("dtype float8_e5m2", model=torch.nn.Linear(3, 1).to(torch.float8_e5m2), kind=TypeError)
        self.refused("has no shape yet", model=torch.nn.LazyLinear(1), kind=ValueError)
        self.refused("optimizer is torch.optim.Adam, which would change the module in this process alone",
                     optimizer=torch.optim.Adam(linear.parameters()))  # fmt: skip
        self.refused("Give gs.optim.Adam(...), which", optimizer=torch.optim.Adam)
        known = "Adadelta, Adagrad, Adam, AdamW, DelayedNesterov, RMSprop, RowWiseAdagrad, SGD, SparseAdam"
        self.refused(f"gs.optim has {known}.", optimizer=torch.optim.NAdam(linear.parameters()))
        self.refused("Schedules stand in place of the rate",
                     optimizer=torch.optim.lr_scheduler.StepLR(torch.optim.SGD(linear.parameters()), 1))  # fmt: skip
        self.refused("device 'meta' and has no values", model=torch.nn.Linear(3, 1, device="meta"), kind=ValueError)
        table = torch.nn.Sequential(gs.torch.Embedding(5, 3))
        self.refused("weight_decay is not for it, as in PyTorch", model=table, optimizer=gs.optim.SGD(weight_decay=0.1),
                     loss=lambda model, x, y: model(x.long()).mean())  # fmt: skip

    def test_what_trains_otherwise_than_is_thought(self, caplog):
        torch = self.torch
        batches = [(torch.ones(4, 3), torch.ones(4))]
        model, other = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
        gs.fit(model.eval(), lambda _, x, y: other(x).mean(), batches, optimizer=gs.optim.SGD(0.1), steps=1)
        assert warned(caplog, "Linear is in eval(): it trains without dropout")
        assert warned(caplog, "All gradients of the first step are zero. Does the loss depend on the parameters")


def frames(error):
    """Where each line of an error's traceback is: of globalstep's, or of others."""
    found = []
    place = error.__traceback__
    while place is not None:
        name, module = place.tb_frame.f_code.co_name, place.tb_frame.f_globals["__name__"]
        found.append(name if module == __name__ else module.partition(".")[0])
        place = place.tb_next
    return found


def step(loss):
    with gs.Trainer(np.zeros(3, np.float32), loss, optimizer=gs.optim.SGD(0.1)) as trainer:
        trainer.step((X, Y))


def unit(loss):
    with gs.Trainer(np.zeros(3, np.float32), loss, optimizer=gs.optim.SGD(0.1), units=gs.WorkUnits(2)) as trainer:
        trainer.unit([(X, Y)])


WAYS = {
    "fit": lambda loss: fit(loss=loss),
    "fit, by local steps": lambda loss: fit(loss=loss, local_steps=gs.LocalSteps(gs.optim.SGD(0.1), every=2)),
    "step": step,
    "unit": unit,
}


@pytest.mark.parametrize("how", WAYS)
def test_an_error_of_the_loss_function_is_shown_without_what_lies_between(how, caplog):
    def within():
        raise KeyError("nothing")

    def wrong(w, x, y):
        return within()

    caplog.set_level(logging.DEBUG, "globalstep")
    with pytest.raises(KeyError) as caught:
        WAYS[how](wrong)
    seen = frames(caught.value)
    assert seen[-2:] == ["wrong", "within"]
    assert seen.count("globalstep") <= 4
    assert "In the loss function, with the batch (float32[4, 3], float32[4])" in caught.value.__notes__[0]
    assert caplog.text.count("The whole way") == 1
    assert "stepping.py" in caplog.text


def test_an_error_that_globalstep_finds_in_a_loss_keeps_its_way():
    with pytest.raises(InvalidArgumentError, match="must give") as caught:
        fit(loss=lambda w, x, y: 3)
    assert frames(caught.value).count("globalstep") > 5
