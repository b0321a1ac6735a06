"""SyncReplicasOptimizer: every step is made of the mean of several workers' gradients.

The parameter servers hold and average the contributions ("Aggregates" in docs/design/steps-of-several-workers.md). What
TensorFlow has for that in the chief's process (a queue of tokens, a thread that takes gradients) is there by name, for
programs that call it, and has nothing to do.

Layer: tf1. Source of names, defaults and texts: TensorFlow 1.15 `python/training/sync_replicas_optimizer.py`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.tf1.graph.graph import GraphKeys, Node, add_to_collection
from globalstep.tf1.graph.mutations import Mutation, MutationPart
from globalstep.tf1.inputs.queue_runner import QueueRunner
from globalstep.tf1.inputs.queues import FIFOQueue
from globalstep.tf1.ops.control_flow_ops import group, no_op
from globalstep.tf1.optimizers.minimized import remember_loss
from globalstep.tf1.optimizers.moving_averages import ExponentialMovingAverage
from globalstep.tf1.optimizers.optimizer import Optimizer
from globalstep.tf1.optimizers.optimizer_arguments import Gradient, is_floating_scalar
from globalstep.tf1.variables.assignments import assign
from globalstep.tf1.variables.training_util import assert_global_step
from globalstep.tf1.variables.variable_collections import global_variables, report_uninitialized_variables
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import OpKind

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator


_log = logging.getLogger("globalstep")


class SyncReplicasOptimizer(Optimizer):
    """Makes each step of the mean of `replicas_to_aggregate` gradients, computed from the values of the step before.

    A run of the train op contributes its worker's gradients, and returns once the step has been made: by the
    contributions that are wanted, or, where workers have died or left, by those of the workers that are here. One set
    of contributions makes the step for all Variables. The step moves on by one, a learning-rate schedule and Adam's
    powers with it. A contribution that comes after its step has been made changes nothing, and its run returns at once:
    `session.last_outcome` says LATE. With more replicas than are aggregated the slowest are backups for the others.

    All workers make it alike. The hook, the queue runner, the tokens and the initializers of TensorFlow's class are
    there, and harmless; a program needs none of them here.

    Args:
        opt: The optimizer that applies the mean; for `gs.fit` one of `gs.optim`, too.
        replicas_to_aggregate: How many contributions make a step.
        total_num_replicas: How many workers there are; default `replicas_to_aggregate`. With fewer, each may contribute
            several times to a step.
        variable_averages: An ExponentialMovingAverage that is updated with each step.
        variables_to_average: The Variables that it averages; required with `variable_averages`.
        use_locking: As for any optimizer.
        name: Name of the train op.

    Raises:
        ValueError: If a number of replicas is less than 1, or there are no Variables to average.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default(), gs.Session() as sess:
    ...     w = gs.Variable([1.0, 2.0], name="w")
    ...     step = gs.train.get_or_create_global_step()
    ...     opt = gs.train.SyncReplicasOptimizer(gs.train.GradientDescentOptimizer(0.5), replicas_to_aggregate=1)
    ...     train_op = opt.minimize(gs.reduce_sum(w * w), global_step=step)
    ...     sess.run(gs.global_variables_initializer())
    ...     print(sess.run(train_op), sess.run(w))
    1 [0. 0.]
    """

    def __init__(
        self,
        opt: Any,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: ExponentialMovingAverage | None = None,
        variables_to_average: Iterable[Any] | None = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
    ) -> None:
        super().__init__(use_locking, name)
        total = replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        for what, number in (("replicas_to_aggregate", replicas_to_aggregate), ("total_num_replicas", total)):
            if isinstance(number, bool) or int(number) != number or number < 1:
                raise ValueError(f"{what} must be a whole number of at least 1; got {number!r}.")
        if variable_averages is not None and not variables_to_average:
            raise ValueError("variable_averages without variables_to_average: name the Variables to average.")
        self._opt: Optimizer = opt
        #: How many contributions make a step, and how many workers there are to make them.
        self.replicas_to_aggregate, self.total_num_replicas = int(replicas_to_aggregate), int(total)
        self._variable_averages = variable_averages
        self._variables_to_average = [] if variables_to_average is None else list(variables_to_average)
        self._queue_runner: QueueRunner | None = None
        self._no_tokens: Node | None = None
        _log.info("SyncReplicasV2: replicas_to_aggregate=%s; total_num_replicas=%s", replicas_to_aggregate, total)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Gradient | None, Variable]]:
        """Give the gradients as the wrapped optimizer does; see Optimizer.compute_gradients."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Node:
        """Make the op that contributes gradients to the next step, and waits until that has been made.

        Args:
            grads_and_vars: As for any optimizer.
            global_step: The step; required.
            name: Name of the op.

        Returns:
            The train op, whose value is the step as it is afterwards.

        Raises:
            ValueError: Without Variables, gradients or a global step; or for a Variable with a constraint.
            TypeError: If the step is no number, or the wrapped optimizer does more than one push.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            raise ValueError("Must supply at least one variable")
        if global_step is None:
            raise ValueError("Global step is required to check staleness")
        _refuse_what_is_not_shared(pairs)
        graph = global_step.graph
        counted: list[MutationPart] = []
        if is_floating_scalar(global_step):
            # Programs that name no dtype have one: it counts along, and workers wait for a step of whole numbers.
            counted.append(MutationPart(OpKind.ASSIGN_ADD, global_step, fill=1.0))
            with graph.as_default(), graph.control_dependencies(None):
                global_step = Variable(0, trainable=False, dtype="int64", name="sync_rep_step")
        else:
            assert_global_step(global_step)
        with graph.as_default():
            self._opt._in_graph(graph).gate = self.GATE_OP  # a contribution is one push
            applied = self._opt.apply_gradients(pairs, global_step)
            train_ops = graph.get_collection_ref(GraphKeys.TRAIN_OP)
            train_ops[:] = [node for node in train_ops if node is not applied]
            if not isinstance(applied, Mutation) or applied.increments != ((global_step, 1),):
                raise TypeError(
                    f"{type(self._opt).__name__} does more than to apply gradients and to move the step on, and cannot "
                    "be wrapped by a SyncReplicasOptimizer. Wrap the optimizer that it wraps."
                )
            with graph.name_scope(name or self._name) as scope:
                with graph.control_dependencies(None), graph.name_scope(None):
                    local_step = _local_step(global_step)
                averages, averaged = self._variable_averages, self._variables_to_average
                wanted, total = self.replicas_to_aggregate, self.total_num_replicas
                made = _Replicas(wanted, total, averages, averaged)
                train_op = made.contribution(applied, global_step, local_step, counted, scope)
                with graph.control_dependencies(None):
                    self.local_step_init_op = assign(local_step, global_step)
                    self.chief_init_op = group(self.local_step_init_op)
                    self.ready_for_local_init_op = report_uninitialized_variables(global_variables())
                    self._no_tokens, self._queue_runner = no_op(name="init_tokens"), _queue_runner(global_step)
        remember_loss(train_op, self._opt._in_graph(graph).loss)
        add_to_collection(GraphKeys.TRAIN_OP, train_op)
        return train_op

    @property
    def wrapped(self) -> Any:
        """The optimizer that applies the mean."""
        return self._opt

    @property
    def is_applied(self) -> bool:
        """Whether apply_gradients has been called."""
        return self._no_tokens is not None

    def get_chief_queue_runner(self) -> QueueRunner:
        """Give a QueueRunner without threads: the parameter servers do what TensorFlow's does in the chief.

        Raises:
            ValueError: Before apply_gradients.
        """
        if self._queue_runner is None:
            raise ValueError("Should be called after apply_gradients().")
        return self._queue_runner

    def get_init_tokens_op(self, num_tokens: int = -1) -> Node:
        """Give an op that does nothing: a step begins with its first contribution, without a token.

        Args:
            num_tokens: As in TensorFlow, whose check is made; has no effect.

        Raises:
            ValueError: Before apply_gradients, or with too few tokens.
        """
        if self._no_tokens is None:
            raise ValueError("get_init_tokens_op() should be called after apply_gradients().")
        wanted = self.replicas_to_aggregate
        tokens, needed = wanted if num_tokens == -1 else num_tokens, wanted - self.total_num_replicas
        if tokens < needed:
            raise ValueError(f"Too few tokens to finish the first step: {tokens} (given) vs {needed} (needed)")
        return self._no_tokens

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> SessionRunHook:
        """Give the hook that TensorFlow's programs use; here it initializes the local step, and checks as theirs does.

        Args:
            is_chief: Whether this is the chief's.
            num_tokens: See get_init_tokens_op.
        """
        return _SyncReplicasOptimizerHook(self, is_chief, num_tokens)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """Give a slot of the wrapped optimizer; see Optimizer.get_slot."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The names of the wrapped optimizer's slots."""
        return self._opt.get_slot_names()

    def variables(self) -> list[Variable]:
        """The Variables of the wrapped optimizer's state."""
        return self._opt.variables()


@dataclass(frozen=True)
class _Replicas:
    """Makes the train op of so many replicas."""

    wanted: int
    total: int
    averages: ExponentialMovingAverage | None
    averaged: list[Any]

    def contribution(
        self, applied: Mutation, step: Variable, local_step: Variable, counted: Sequence[MutationPart], scope: str
    ) -> Mutation:
        """Make the train op: the wrapped optimizer's, as a contribution, and the averages that go with it."""
        # The local step becomes the one that the values belong to which the gradients were computed from.
        parts = [*applied.parts, *counted, MutationPart(OpKind.ASSIGN, local_step, step)]
        alone = self.averages is None
        push = Mutation(
            parts,
            increments=applied.increments,
            uses=applied.uses,
            op_type="Assign" if alone else "NoOp",
            name=scope if self.averages is None else "contribution",
            value_of=step if alone else None,
        )
        contribution = self.wanted, -(-self.wanted // self.total)
        push.attrs["contribution"] = contribution
        if self.averages is None:
            return push
        with step.graph.control_dependencies([push]):
            moved = self.averages.apply(self.averaged)
            train_op = Mutation(
                moved.parts,
                uses=moved.uses,
                after_increment=moved.after_increment,
                op_type="Assign",
                name=scope,
                value_of=step,
            )
        train_op.attrs["contribution"] = contribution
        return train_op


def _local_step(step: Variable) -> Variable:
    return Variable(
        0,
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES],
        dtype=step.dtype.base_dtype,
        name="sync_rep_local_step",
    )


def _queue_runner(step: Variable) -> QueueRunner:
    queue = FIFOQueue(1, [step.dtype.base_dtype], shapes=[()], name="dummy_queue")
    return _NothingToRun(queue, [no_op(name="sync_op")])


def _refuse_what_is_not_shared(pairs: Iterable[tuple[Any, Variable]]) -> None:
    own = [variable.name for grad, variable in pairs if grad is not None and variable.is_local]
    if own:
        raise ValueError(
            f"{own} are local Variables, each process's own: there is no mean of several workers' gradients for them. "
            "Train them by another optimizer."
        )
    bound = [variable.name for grad, variable in pairs if grad is not None and variable.constraint is not None]
    if bound:
        raise ValueError(
            f"Variables with a constraint, {bound}, cannot be trained by a SyncReplicasOptimizer: only a worker could "
            "compute it, from a step that others may have passed. Clip what is computed from them instead."
        )


class _NothingToRun(QueueRunner):
    """Keeps no queue filled."""

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        return []


class _SyncReplicasOptimizerHook(SessionRunHook):
    """See SyncReplicasOptimizer.make_session_run_hook."""

    def __init__(self, opt: SyncReplicasOptimizer, is_chief: bool, num_tokens: int) -> None:
        self._opt = opt
        self._is_chief = is_chief
        self._num_tokens = num_tokens

    def begin(self) -> None:
        if not self._opt.is_applied:
            raise ValueError("SyncReplicasOptimizer.apply_gradient should be called before using the hook.")
        if self._is_chief:
            self._opt.get_init_tokens_op(self._num_tokens)

    def after_create_session(self, session: Any, coord: Any) -> None:
        init_op = self._opt.chief_init_op if self._is_chief else self._opt.local_step_init_op
        missing = session.run(self._opt.ready_for_local_init_op)
        if len(missing):
            names = ", ".join(name.decode() if isinstance(name, bytes) else str(name) for name in missing)
            raise RuntimeError(
                "Init operations did not make model ready for SyncReplicasOptimizer local_init. Init op: "
                f"{init_op.name}, error: Variables not initialized: {names}"
            )
        session.run(init_op)
