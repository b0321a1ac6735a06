"""What a shard holds of open aggregates: sums, their means, and the image that a log's segment begins with."""

from __future__ import annotations

import numpy as np
import pytest

from globalstep.ps.aggregates.contributions import Contributions
from globalstep.wire.declarations import Op, OpKind


def dense(*values):
    return Op(OpKind.APPLY, "w", np.array(values, np.float32), optimizer="sgd")


def sparse(ids, *values):
    return Op(OpKind.APPLY, "e", np.array(values, np.float32)[:, None], indices=np.array(ids), optimizer="sgd")


AVERAGE = Op(OpKind.APPLY, "w/average", source="w", optimizer="average", after_increment=True)


def held():
    found = Contributions()
    found.add("step", [dense(9.0, 9.0)], first=True)  # of a value of the step that was assigned away
    found.add("step", [dense(1.0, 2.0), sparse([2, 0], 4.0, 6.0), AVERAGE], first=True)
    found.add("step", [dense(3.0, 6.0), sparse([2], 8.0), AVERAGE], first=False)
    return found


def plain(ops):
    """Of each op the Variable, the numbers and the rows; None where it has none."""
    lists = [[None if array is None else array.tolist() for array in (op.value, op.indices)] for op in ops]
    return [(op.variable, *each) for op, each in zip(ops, lists, strict=True)]


def test_gradients_are_averaged_and_what_is_none_is_done_once():
    assert plain(held().close("step", 2)) == [
        ("w", [2.0, 4.0], None),
        ("e", [[2.0], [3.0], [4.0]], [2, 0, 2]),
        ("w/average", None, None),
    ]


def test_what_was_closed_is_held_no_more():
    found = held()
    found.close("step", 2)
    assert not found
    assert found.close("step", 1) == []


def test_the_memory_of_a_message_is_not_kept():
    found, gradient = Contributions(), np.ones(2, np.float32)
    found.add("step", [Op(OpKind.APPLY, "w", gradient, optimizer="sgd")], first=True)
    gradient[:] = 100.0
    assert plain(found.close("step", 1)) == [("w", [1.0, 1.0], None)]


def test_an_image_makes_the_same_sums_and_does_not_change_with_them():
    found = held()
    image = found.image()
    found.add("step", [dense(100.0, 100.0)], first=False)
    again = Contributions()
    again.resume(image)
    assert plain(again.close("step", 2)) == plain(held().close("step", 2))


#: Numbers whose sum depends on their order, of a dense gradient and of a row that several units bring.
UNITS = [[dense(x, 1.0), sparse([1], x)] for x in (1.0, 1e8, -1e8, 3.0, 0.5)]


def summed(order, cut_at=None):
    """What the units of UNITS make that come in an order; held anew from an image before the one at `cut_at`."""
    found = Contributions()
    for at, unit in enumerate(order):
        if at == cut_at:
            found, image = Contributions(), found.image()
            found.resume(image)
        found.add("step", UNITS[unit - 1], at == 0, unit)
    return plain(found.close("step", 1))


@pytest.mark.parametrize("order", [(5, 4, 3, 2, 1), (2, 3, 1, 5, 4), (3, 1, 2, 4, 5)])
def test_units_are_summed_in_their_order_whenever_they_come(order):
    expected = summed((1, 2, 3, 4, 5))
    assert expected[0] == ("w", [3.5, 5.0], None)
    assert summed(order) == expected
    assert [summed(order, cut_at) for cut_at in range(1, 5)] == [expected] * 4


def test_units_that_wait_for_their_turn_keep_no_memory_of_a_message():
    found, gradient = Contributions(), np.ones(2, np.float32)
    found.add("step", [Op(OpKind.APPLY, "w", gradient, optimizer="sgd")], True, 2)
    gradient[:] = 100.0
    assert found.optimizers("step") == {("sgd", False)}
    found.add("step", [dense(1.0, 1.0)], False, 1)
    assert plain(found.close("step", 2)) == [("w", [1.0, 1.0], None)]


def test_the_optimizers_of_what_is_held_are_known():
    assert held().optimizers("step") == {("sgd", False), ("average", True)}
    assert held().optimizers("other") == set()
