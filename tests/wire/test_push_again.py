"""A push of the same ops with other values."""

import numpy as np

from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, Push, Read


def made():
    ops = [
        Op(OpKind.APPLY, "w", np.zeros(2), optimizer="Adam", unique=True),
        Op(OpKind.ASSIGN, "b", fill=3.0, after_increment=True),
    ]
    return Push(ops, [Increment("step")], [OptimizerUse("Adam")], [Read("w")], {"step": 4}, "train")


def test_all_but_the_values_is_that_of_the_first_push():
    first, value = made(), np.ones(2)
    push = first.again([value, None])
    assert [(op.kind, op.variable, op.fill, op.optimizer, op.unique, op.after_increment) for op in push.ops] == [
        (OpKind.APPLY, "w", None, "Adam", True, False),
        (OpKind.ASSIGN, "b", 3.0, "", False, True),
    ]
    assert push.ops[0].value is value
    assert push.ops[-1].value is None
    assert push.values == [value, None]
    assert len(push.ops[:1]) == 1
    assert (push.increments, push.uses, push.reads, push.seen_steps, push.layout) == (
        first.increments,
        first.uses,
        first.reads,
        {"step": 4},
        "train",
    )
    assert first.values[0] is first.ops[0].value


def test_what_differs_besides_is_given():
    push = made().again([np.ones(2), None], [OptimizerUse("SGD")], [], {"step": 5})
    assert (push.uses, push.reads, push.seen_steps) == ([OptimizerUse("SGD")], [], {"step": 5})


def test_again_of_again_and_another_value_for_one_op():
    first = made().again([np.ones(2), None])
    second, value = first.again([np.zeros(2), None]), np.full(2, 7.0)
    second.set_value(0, value)
    assert second.ops[0].value is value
    assert np.array_equal(first.values[0], [1, 1])
    plain = made()
    plain.set_value(0, value)
    assert plain.values[0] is value
