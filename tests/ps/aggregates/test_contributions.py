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
        ("e", [[6.0], [3.0]], [2, 0]),
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


def test_rows_take_twice_what_those_of_each_id_do_however_many_come():
    rng, found = np.random.default_rng(3), Contributions()
    for number in range(64):
        ids = rng.integers(0, 1000, 4000)
        rows = rng.normal(size=(4000, 16)).astype(np.float32)
        found.add("step", [Op(OpKind.APPLY, "e", rows, indices=ids, optimizer="sgd")], first=not number)
        assert found.nbytes < 2 * 1000 * (16 * 4 + 8) + (2 << 20)


def test_rows_have_the_same_bits_whenever_they_were_merged():
    def contribution(number):
        rng = np.random.default_rng(number)
        ids, rows = rng.integers(0, 500, 3000), rng.normal(size=(3000, 32)).astype(np.float32)
        return Op(OpKind.APPLY, "e", rows, indices=ids, optimizer="sgd")

    whole, resumed = Contributions(), Contributions()
    for number in range(8):
        whole.add("step", [contribution(number)], first=not number)
        resumed.add("step", [contribution(number)], first=not number)
        image, resumed = resumed.image(), Contributions()  # as a task does that comes back from its log
        resumed.resume(image)
    one, other = whole.close("step", 8)[0], resumed.close("step", 8)[0]
    assert np.array_equal(one.indices, other.indices)
    assert one.value.tobytes() == other.value.tobytes()


def test_what_is_held_is_known_while_units_wait_and_after():
    found = Contributions()
    for unit in (4, 3, 2):
        found.add("step", [dense(1.0, 2.0)], unit == 4, unit)
    assert found.nbytes > 3 * 512
    found.add("step", [dense(1.0, 2.0)], False, 1)
    assert found.nbytes < 2 * 512
