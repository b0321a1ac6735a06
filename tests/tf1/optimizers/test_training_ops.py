"""Optimizers that programs write themselves, of the slots and rules in TensorFlow's own modules."""

import numpy as np

import globalstep as gs
from globalstep.python.training import slot_creator, training_ops


def test_rules_as_ops_on_variables_follow_the_optimizers(session):
    start, rate, decay, momentum, epsilon = [1.0, -2.0], 0.1, 0.8, 0.7, 0.01
    ours, theirs = gs.Variable(start, name="ours"), gs.Variable(start, name="theirs")
    # As a program's own class does it, which takes Variables for references.
    squares = slot_creator.create_slot(ours, gs.ones([2]), "Mine")
    moves, wide = (slot_creator.create_zeros_slot(ours, "Mine", dtype) for dtype in (None, gs.float64))
    (gradient,) = gs.gradients(gs.reduce_sum(ours**2), [ours._ref()])
    step = training_ops.apply_rms_prop(
        ours, squares, moves, gs.convert_to_tensor(rate), decay, momentum, epsilon, gradient, use_locking=False
    )
    optimizer = gs.train.RMSPropOptimizer(rate, decay, momentum, epsilon)
    same = optimizer.minimize(gs.reduce_sum(theirs**2), var_list=[theirs])
    assert [slot.name for slot in (squares, moves)] == ["ours/Mine:0", "ours/Mine_1:0"]
    assert (moves.dtype, wide.dtype) == (gs.float32, gs.float64)
    opened = session()
    for _ in range(3):
        opened.run([step.op, same])
    mean, move = optimizer.get_slot(theirs, "rms"), optimizer.get_slot(theirs, "momentum")
    pairs = [(ours, theirs), (squares, mean), (moves, move)]
    for one, other in pairs:
        np.testing.assert_allclose(*opened.run([one, other]), rtol=1e-6)
