"""What is left to a worker under --no-worker-assigns: gradients, and steps as the chief's program declares them."""

from __future__ import annotations

import numpy as np
import pytest
from counting_run import SHAPES, STEP, USES, declarations, initialize, state, step_push
from served_tasks import TokenTasks

import globalstep as gs
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import LayoutUnknownError, PermissionDeniedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.tf1.variables.graph_program import declarations as declarations_of
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, PushId, VariableDecl
from globalstep.wire.expressions import constant

RATE = {"learning_rate": constant(0.5)}


class Strict(TokenTasks):
    """A run of one task, and a worker that may do nothing but push gradients."""

    def __init__(self, folder, transport="auto", declared=(), **options):
        super().__init__(folder, workers_assign=False, **options)
        self.chief = self.join("chief", transport)
        self.chief.begin(open=False)
        variables, optimizers = declarations(1)
        steps = [VariableDecl("global_step", "int64", (), is_step=True, increments=tuple(declared))]
        self.chief.declare([*steps, *variables[1:]], optimizers)
        names = ("global_step", *SHAPES)
        self.chief.push(Push(ops=[Op(OpKind.ASSIGN, name, fill=0.0) for name in names]))
        self.chief.open()
        self.worker = self.join("worker", transport)
        self.worker.refresh()


@pytest.fixture
def strict(tmp_path):
    with Strict(tmp_path) as run:
        yield run


@pytest.mark.parametrize(
    ("variables", "optimizers"),
    [
        ([VariableDecl("mine", "float32", (2,))], []),
        ([], [OptimizerDecl("mine", "gradient_descent", RATE, {})]),
        ([], [OptimizerDecl("sgd", "gradient_descent", RATE, {"mine": ()})]),
        ([], [OptimizerDecl("mine", "zero_debias_moving_average", {}, {}, ("count",))]),
    ],
)
def test_a_worker_declares_nothing_new(strict, variables, optimizers):
    before = strict.servers[0].shard.view()
    with pytest.raises(PermissionDeniedError, match="'worker' may not declare.*--no-worker-assigns"):
        strict.worker.declare(variables, optimizers)
    after = strict.servers[0].shard.view()
    assert (after.variables, after.optimizers) == (before.variables, before.optimizers)
    strict.worker.declare(*declarations(1))
    strict.worker.push(step_push())
    assert state(strict.chief)["global_step"] == 1


@pytest.mark.parametrize("transport", ["grpc", "auto", "unix"])
@pytest.mark.parametrize("by", [100_004, -5, 0])
def test_a_worker_moves_a_step_by_one(tmp_path, transport, by):
    with Strict(tmp_path, transport) as run:
        push = step_push()
        push.increments = [Increment("global_step", by)]
        counting = Push(increments=[Increment("global_step", by)], layout="counts")
        for one in (push, counting, counting):
            with pytest.raises(PermissionDeniedError, match=rf"move step 'global_step' on by {by}"):
                run.worker.push(one)
        assert state(run.chief)["global_step"] == 0
        run.worker.push(step_push())
        assert state(run.chief)["global_step"] == 1


def test_a_step_moves_by_what_the_program_declares(tmp_path):
    with Strict(tmp_path, declared=(8,)) as run:
        for by in (8, 1):
            run.worker.push(Push(increments=[Increment("global_step", by)]))
        with pytest.raises(PermissionDeniedError, match="by 7"):
            run.worker.push(Push(increments=[Increment("global_step", 7)]))
        assert state(run.chief)["global_step"] == 9


def test_a_push_without_a_part_is_looked_at_as_well(strict):
    handler = strict.servers[0].control.handler
    from globalstep.ps.access.authorization import Caller, Role

    memory = handler.stream_memory(Caller(Role.WORKER))
    request = pb.Request(push=pb.PushRequest(incarnation=strict.chief.incarnation))
    request.push.id.CopyFrom(pb.PushId(client="x", sequence=2))
    request.push.increments.add(step="global_step", by=50)
    reply, _ = handler.begin(request, memoryview(b""), memory)
    assert reply.error.type == "PermissionDeniedError"
    assert state(strict.chief)["global_step"] == 0


def test_a_layout_that_was_refused_is_not_known(strict):
    from globalstep.ps.access.authorization import Caller, Role

    handler = strict.servers[0].control.handler
    memory = handler.stream_memory(Caller(Role.WORKER))
    told = pb.Request(push=pb.PushRequest(incarnation=strict.chief.incarnation, layout=1))
    told.push.id.CopyFrom(pb.PushId(client="x", sequence=1))
    told.push.increments.add(step="global_step", by=50)
    assert handler.begin(told, memoryview(b""), memory)[0].error.type == "PermissionDeniedError"
    again = pb.Request(push=pb.PushRequest(incarnation=strict.chief.incarnation, layout=1, known_layout=True))
    again.push.id.CopyFrom(pb.PushId(client="x", sequence=2))
    assert handler.begin(again, memoryview(b""), memory)[0].error.type == LayoutUnknownError.__name__
    assert PushId("x", 2) not in strict.servers[0].shard.now.staged


def test_a_worker_overrides_no_number_that_is_declared(strict):
    grad = np.full(SHAPES["w"], 100.0, np.float32)
    op = Op(OpKind.APPLY, "w", grad, optimizer="sgd")
    push = Push(ops=[op], uses=[OptimizerUse("sgd", overrides={"learning_rate": 1.0})])
    with pytest.raises(PermissionDeniedError, match=r"give \['learning_rate'\] of optimizer 'sgd'"):
        strict.worker.push(push)
    assert state(strict.chief)["w"] == [0.0] * 3
    strict.chief.declare([], [OptimizerDecl("free", "gradient_descent", {}, {"w": ()})])
    op.optimizer = "free"
    push.uses = [OptimizerUse("free", overrides={"learning_rate": 0.01})]
    strict.worker.push(push)
    assert state(strict.chief)["w"] == [-1.0] * 3


def test_without_the_option_a_worker_moves_steps_as_it_likes(tmp_path):
    with TokenTasks(tmp_path) as tasks:
        chief = tasks.join("chief")
        initialize(chief)
        worker = tasks.join("worker")
        worker.refresh()
        worker.push(Push(increments=[Increment("global_step", 5)], uses=list(USES)))
        assert state(chief)["global_step"] == 5
        assert STEP


def test_a_program_declares_by_how_much_it_moves_its_steps():
    with gs.Graph().as_default() as graph:
        step = gs.train.get_or_create_global_step()
        gs.assign_add(step, 1)
        gs.assign_add(step, 16)
        (found,) = [decl for decl in declarations_of(graph, 1, RunPolicy()).variables if decl.is_step]
    assert found.increments == (16,)
