"""The layouts that a shard has promised to apply."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from globalstep.errors import LayoutUnknownError
from globalstep.ps.ledger.ledger import CarriedPart
from globalstep.ps.service.in_flight import InFlightMemory, ShareInFlight
from globalstep.ps.shard.layouts import Layout, LayoutMemory, PromisedLayouts
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Read


@dataclass
class Tensor:
    offset: int


@dataclass
class Change:
    variable: str
    value: Tensor
    optimizer: str = "SGD"
    after_increment: bool = False


def layout(data_bytes, variable="w"):
    changes = [Change(variable, Tensor(0))]
    return Layout(changes, lambda op, data: op, [Read(variable)], [], [], data_bytes)


def test_layouts_that_are_alike_share_a_promise():
    promises = PromisedLayouts()
    first = promises.number_of(layout(16), "client", 4)
    assert promises.number_of(layout(16), "client", 4) == first
    assert promises.number_of(layout(16, "b"), "client", 4) != first


def test_bytes_behind_the_last_gradient_take_nothing_from_others_parts():
    promises = PromisedLayouts()
    padded = promises.number_of(layout(24), "client", 4)
    number = promises.number_of(layout(16), "client", 4)
    assert number != padded
    found = promises.layout(CarriedPart(number, bytes(16)))
    assert found is not None
    assert found.data_bytes == 16
    assert promises.layout(CarriedPart(number, bytes(24))) is None


def of_many(client_number, changes):
    """A layout of so many changes, which no other client's is like."""
    ops = [Change(f"v{at}", Tensor(8 * client_number)) for at in range(changes)]
    return Layout(ops, lambda op, data: op, [], [], [], 16)


def test_promised_layouts_have_so_many_changes_in_all_and_one_client_a_quarter():
    promises = PromisedLayouts()
    most = 16 * 100 + 4096  # of a shard that holds 100 Variables
    own = [promises.number_of(of_many(at, 100), "mallory", 100) for at in range(100)]
    assert sum(number > 0 for number in own) == most // 4 // 100
    assert promises.number_of(of_many(0, 100), "mallory", 100) == 1  # what is promised stays so
    others = [promises.number_of(of_many(at, 100), f"client{at}", 100) for at in range(100, 200)]
    assert sum(number > 0 for number in (*own, *others)) == most // 100


def test_a_layout_is_remembered_once_its_push_is_accepted():
    memory = LayoutMemory()
    memory.tell(1, layout(16), 100)
    with pytest.raises(LayoutUnknownError):
        memory.recall(1, memoryview(bytes(16)))
    memory.remember()
    assert memory.recall(1, memoryview(bytes(16))).data_bytes == 16
    memory.tell(1, layout(24), 100)  # the number is another layout's now, whether its push is accepted or not
    with pytest.raises(LayoutUnknownError):
        memory.recall(1, memoryview(bytes(16)))


def test_what_a_stream_remembers_is_counted_and_forgotten_where_there_is_no_memory():
    in_flight = InFlightMemory(1 << 20, ManualClock())
    others = in_flight.claim(1000)
    memory = LayoutMemory(memory=ShareInFlight(in_flight))
    for number in (1, 2, 3):
        memory.tell(number, layout(16), 10_000)
        memory.remember()
        assert in_flight.used_bytes == others.nbytes + number * (2 * 512 + 16 * 10_000)
    memory.tell(4, layout(16), 10_000)
    memory.remember()
    assert in_flight.used_bytes == others.nbytes
    for number in (1, 2, 3, 4):
        with pytest.raises(LayoutUnknownError):
            memory.recall(number, memoryview(bytes(16)))
