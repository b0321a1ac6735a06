"""Declarations are law: what is declared is checked whole before anything changes, and never changed later."""

from __future__ import annotations

import numpy as np
import pytest
from counting_run import initialize, state, step_push
from served_tasks import TokenTasks

from globalstep.errors import AlreadyExistsError, InvalidArgumentError, OpError, ResourceExhaustedError
from globalstep.ps.store import checking, optimizer_table
from globalstep.ps.store.store import VariableStore
from globalstep.rules import get_rule
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import Expr, constant, variable

MOMENTUM = {"learning_rate": constant(0.5), "momentum": constant(1.0), "use_nesterov": constant(0.0)}
ADAM = {name: constant(0.5) for name in ("learning_rate", "beta1", "beta2", "epsilon")}
POWERS = ("p1", "p2")


def floats(*names, shape=(4,), dtype="float32", **more):
    return [VariableDecl(name, dtype, shape, **more) for name in names]


def momentum(name, slots, **hypers):
    return OptimizerDecl(name, "momentum", {**MOMENTUM, **hypers}, slots)


def adam(slots=("w/m", "w/v"), scalars=POWERS, name="adam"):
    return OptimizerDecl(name, "adam", ADAM, {"w": slots}, scalars)


# ---- Attacks on a task with a worker's token --------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run of one task whose chief has begun it."""
    with TokenTasks(tmp_path) as tasks:
        chief = tasks.join("chief")
        chief.begin(open=False)
        initialize(chief)
        chief.open()
        yield tasks, chief


def test_a_worker_cannot_read_beyond_a_slot_that_is_smaller_than_its_variable(run):
    tasks, chief = run
    worker = tasks.join("worker")
    worker.refresh()
    size = 1 << 14
    big, tiny = VariableDecl("big", "float32", (size,)), VariableDecl("tiny", "float32", (2,))

    def read_the_heap():
        worker.declare([big, tiny], [momentum("o", {"big": ("tiny",)}, learning_rate=constant(-1.0))])
        worker.push(Push(ops=[Op(OpKind.ASSIGN, name, fill=0.0) for name in ("big", "tiny")]))
        # `values += slot`: whatever lies behind the slot is then in the Variable.
        apply = Op(OpKind.APPLY, "big", np.zeros(size, np.float32), optimizer="o")
        worker.push(Push(ops=[apply], uses=[OptimizerUse("o")]))
        return worker.pull([Read("big")])[0]

    with pytest.raises(InvalidArgumentError, match=r"'tiny' of Variable 'big' is float32 \[2\]"):
        read_the_heap()
    chief.refresh()
    assert not {"big", "tiny"} & set(chief.variables)
    assert tasks.servers[0].shard.view().optimizers == [
        d for d in tasks.servers[0].shard.view().optimizers if d.name == "sgd"
    ]


def test_a_slot_that_is_too_small_is_found_when_it_comes_later_than_its_optimizer(run):
    tasks, _ = run
    worker = tasks.join("worker")
    worker.refresh()
    worker.declare(floats("big", shape=(64,)), [momentum("o", {"big": ("tiny",)})])
    with pytest.raises(InvalidArgumentError, match=r"'tiny'.*float32 \[2\].*'o'.*float32 \[64\]"):
        worker.declare(floats("tiny", shape=(2,)), [])
    worker.declare(floats("slot", shape=(2,)), [momentum("other", {"late": ("slot",)})])
    with pytest.raises(InvalidArgumentError, match=r"'slot'.*float32 \[2\].*'other'.*float32 \[64\]"):
        worker.declare(floats("late", shape=(64,)), [])


def test_a_worker_cannot_change_the_slots_of_the_runs_optimizer(run):
    tasks, chief = run
    chief.declare(floats("v", "v/m", "mine"), [momentum("Momentum", {"v": ("v/m",)})])
    chief.push(Push(ops=[Op(OpKind.ASSIGN, name, fill=0.0) for name in ("v", "v/m", "mine")]))
    worker = tasks.join("worker")
    worker.refresh()
    with pytest.raises(AlreadyExistsError, match=r"'Momentum'.*\['mine'\].*'v'.*\['v/m'\]"):
        worker.declare([], [momentum("Momentum", {"v": ("mine",)})])
    apply = Op(OpKind.APPLY, "v", np.ones(4, np.float32), optimizer="Momentum")
    chief.push(Push(ops=[apply], uses=[OptimizerUse("Momentum")]))
    slot, untouched = chief.pull([Read("v/m"), Read("mine")])
    assert slot.tolist() == [1.0] * 4
    assert not untouched.any()


def test_a_run_goes_on_after_declarations_that_were_refused(run):
    tasks, chief = run
    chief.declare([VariableDecl("n", "int64", ())], [])
    before = state(chief), tasks.servers[0].shard.view()
    worker = tasks.join("worker")
    worker.refresh()
    with pytest.raises(AlreadyExistsError):
        worker.declare(floats("new"), [OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(9.0)}, {})])
    with pytest.raises(AlreadyExistsError, match="step"):
        worker.declare([VariableDecl("n", "int64", (), is_step=True)], [])
    after = tasks.servers[0].shard.view()
    assert (state(chief), after.variables, after.optimizers) == (before[0], before[1].variables, before[1].optimizers)
    chief.push(step_push())
    assert state(chief)["global_step"] == 1


# ---- What is refused, whoever asks ------------------------------------------------------------------


@pytest.fixture
def store():
    made = VariableStore()
    made.declare(
        [*floats("w", "w/m", "w/v", "x"), *floats(*POWERS, shape=()), VariableDecl("step", "int64", (), is_step=True)],
        [adam()],
    )
    return made


def unchanged(store):
    return [*store.variables], [*store.optimizers], store.version


@pytest.mark.parametrize(
    ("variables", "optimizer", "text"),
    [
        (floats("s", shape=(3,)), momentum("o", {"x": ("s",)}), r"'s'.*\[3\].*\[4\]"),
        (floats("s", shape=(4, 1)), momentum("o", {"x": ("s",)}), r"'s'.*\[4, 1\].*\[4\]"),
        (floats("s", dtype="float64"), momentum("o", {"x": ("s",)}), "'s'.*float64.*float32"),
        ([], momentum("o", {"x": ("x",)}), "'x' as its own slot"),
        ([], momentum("o", {"x": ("step",)}), "'step'.*the step int64"),
        ([], momentum("o", {"step": ("x",)}), r"'x' of Variable 'step'.*int64 \[\]"),
        ([], OptimizerDecl("o", "gradient_descent", {}, {"step": ()}), "the step int64.*floating point only"),
        (floats("n", dtype="int32"), OptimizerDecl("o", "gradient_descent", {}, {"n": ()}), "floating point only"),
        (floats("q", shape=()), adam(("x", "y"), ("q", "step"), "a"), "'step'.*must be float32, of one element"),
        (floats("q", shape=(2,)), adam(("x", "y"), ("q", "r"), "a"), r"'q'.*\[2\].*of one element"),
        (floats("q", shape=(), dtype="float64"), adam(("x", "y"), ("q", "r"), "a"), "'q'.*float64.*must be float32"),
        ([], momentum("a name", {}), "'a name' cannot name an optimizer"),
        (floats("w\n\x1b[2J"), momentum("o", {}), "cannot name a Variable"),
        ([], momentum("o", {"x": ("s" * 2000,)}), "2000 characters.*cannot name a Variable"),
        ([], momentum("o", {}, learning_rate=variable("n" * 2000)), "2000 characters"),
        ([], momentum("o", {}, learning_rate=Expr("system", (constant(1),))), "'system' of 1 operands"),
        ([], momentum("o", {}, learning_rate=Expr("add", (constant(1),))), "'add' of 1 operands"),
        ([], momentum("o", {}, rate=constant(1.0)), "hyper-parameters"),
        ([VariableDecl("st", "float32", (), is_step=True)], momentum("o", {}), "'st' must be an integer scalar"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(store, variables, optimizer, text):
    before = unchanged(store)
    with pytest.raises(InvalidArgumentError, match=text):
        store.declare(variables, [optimizer])
    assert unchanged(store) == before


@pytest.mark.parametrize(
    ("variables", "optimizers", "text"),
    [
        ([], [momentum("o", {"x": ("w/m",)})], "'w/m' is declared as 'momentum' of Variable 'x'.*'m' of Variable 'w'"),
        ([], [momentum("o", {"x": ("p1",)})], "'p1'.*'beta1_power' of optimizer 'adam'"),
        ([], [momentum("o", {"w/m": ("s",)})], "'o' is declared for Variable 'w/m'.*'m' of Variable 'w'.*'adam'"),
        ([], [momentum("o", {"p1": ("s",)})], "'o' is declared for Variable 'p1'.*'beta1_power' of optimizer 'adam'"),
        ([], [adam(("a", "b"), ("p1", "q"), "other")], "'p1'.*'beta1_power' of optimizer 'adam'"),
        ([], [momentum("o", {"x": ("s",)}), momentum("u", {"w": ("s",)})], "'s'.*'u'.*'o'"),
        ([], [adam(("a", "a"), ("q", "r"), "other")], "'a'.*'v'.*'m'"),
        ([], [adam(scalars=("p2", "p1"))], r"'adam'.*scalars \['p2', 'p1'\].*\['p1', 'p2'\]"),
        ([], [adam(slots=("w/v", "w/m"))], r"'adam'.*\['w/v', 'w/m'\] for Variable 'w'.*\['w/m', 'w/v'\]"),
        ([], [momentum("o", {"x": ("s",)}), momentum("o", {"x": ("t",)})], r"'o'.*\['t'\].*\['s'\]"),
        ([], [momentum("adam", {})], "'adam' is declared as momentum.*as adam"),
        ([*floats("d", shape=(1,)), *floats("d", shape=(2,))], [], r"'d' is declared as float32 \[2\]"),
        ([VariableDecl("w", "float32", (5,))], [], r"'w' is declared as float32 \[5\].*\[4\]"),
    ],
)
def test_what_is_declared_stays(store, variables, optimizers, text):
    before = unchanged(store)
    with pytest.raises(AlreadyExistsError, match=text):
        store.declare(variables, optimizers)
    assert unchanged(store) == before


def test_an_optimizer_takes_in_more_variables_and_the_same_again(store):
    grown = OptimizerDecl("adam", "adam", ADAM, {"w": ("w/m", "w/v"), "x": ("x/m", "x/v")}, POWERS)
    store.declare(floats("x/m", "x/v"), [grown])
    store.declare(floats("x/m"), [grown, adam()])
    assert store.optimizers == [grown]


def test_what_is_deep_or_large_without_end_is_refused(store, monkeypatch):
    deep = constant(1.0)
    for _ in range(200):
        deep = Expr("neg", (deep,))
    wide = Expr("add", (constant(1.0),) * 2)
    for _ in range(14):
        wide = Expr("add", (wide, wide))
    for expr in (deep, wide):
        with pytest.raises(InvalidArgumentError, match="parts, or is deeper"):
            store.declare([], [momentum("o", {}, learning_rate=expr)])
    monkeypatch.setattr(checking, "LIMIT_VARIABLES", 10)
    with pytest.raises(ResourceExhaustedError, match="4 Variables are declared beside 7; 10 are the most"):
        store.declare(floats("a", "b", "c", "d"), [])
    monkeypatch.undo()
    with pytest.raises(ResourceExhaustedError, match="64 steps are declared; 64 are the most"):
        store.declare([VariableDecl(f"s{at}", "int64", (), is_step=True) for at in range(64)], [])
    checking.check_step_count(64)
    with pytest.raises(ResourceExhaustedError, match="65 steps are declared; 64 are the most"):
        checking.check_step_count(65)
    monkeypatch.setattr(optimizer_table, "LIMIT_DECLARED", 20)
    with pytest.raises(ResourceExhaustedError, match="20 are the most"):
        store.declare([], [momentum("o", {f"v{at}": (f"v{at}/m",) for at in range(10)})])
    with pytest.raises(ResourceExhaustedError, match="have 2[0-9] Variables"):  # long names count like more of them
        store.declare([], [momentum("o", {"v" * 1000: ("m" * 1000,)})])


def test_variables_of_no_elements_are_counted(store, monkeypatch):
    monkeypatch.setattr(checking, "available_bytes", lambda: 1 << 20)
    with pytest.raises(ResourceExhaustedError, match="2000 Variables of"):
        store.declare(floats(*(f"v{at}" for at in range(2000)), shape=(0,)), [])


@pytest.mark.parametrize("kind", ["momentum", "adam", "lamb", "ftrl"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_kernel_refuses_arrays_that_are_not_alike(kind, dtype):
    rule = get_rule(kind)
    values, grad = np.zeros(8, dtype), np.ones(8, dtype)
    hyper = dict.fromkeys((*rule.hypers, *rule.scalars), 0.5)
    for wrong in (np.zeros(2, dtype), np.zeros(8, np.float64)):
        with pytest.raises(OpError, match="was called with"):
            rule.dense(values, (wrong,) * len(rule.slots), grad, hyper)
    assert not values.any()
