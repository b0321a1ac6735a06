"""What optimizers that programs write call in TensorFlow: makers of slots, and rules as ops on Variables.

Layer: tf1. Source: TensorFlow 1.15 `python/training/slot_creator.py`, `python/training/training_ops.py`.
"""

from __future__ import annotations

from typing import Any

from globalstep.tf1.graph.graph import Node, as_node, control_dependencies
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.constant_ops import zeros_like
from globalstep.tf1.optimizers.slots import slot_variable
from globalstep.tf1.variables.assignments import assign, assign_add, assign_sub
from globalstep.tf1.variables.variables import Variable

__all__ = ["apply_rms_prop", "create_slot", "create_zeros_slot"]


def create_slot(primary: Variable, val: Any, name: str, colocate_with_primary: bool = True) -> Variable:
    """Make a Variable that begins as `val`, on the PS of `primary` and named after it."""
    return slot_variable(primary, name, initial=as_node(val))


def create_zeros_slot(primary: Variable, name: str, dtype: Any = None, colocate_with_primary: bool = True) -> Variable:
    """Make a Variable of zeros like `primary`, on its PS and named after it; by default of its dtype."""
    return slot_variable(primary, name, initial=0.0 if dtype is None else zeros_like(primary, dtype))


def apply_rms_prop(
    var: Variable, ms: Variable, mom: Variable, lr: Any, rho: Any, momentum: Any, epsilon: Any, grad: Any,
    use_locking: bool = False, name: str | None = None,
) -> Mutation:  # fmt: skip
    """Move a Variable by RMSProp: `ms` is its mean of squares, `mom` its last move; a node of the new value."""
    change = math_ops.multiply(math_ops.square(grad) - ms, 1.0 - rho)
    move: Node = mom * momentum + math_ops.multiply(grad, lr) * math_ops.rsqrt(ms + change + epsilon)
    with control_dependencies([assign_add(ms, change), assign(mom, move)]):
        return assign_sub(var, move, name=name)
