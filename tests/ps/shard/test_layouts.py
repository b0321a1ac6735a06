"""The layouts that a stream remembers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from globalstep.errors import LayoutUnknownError
from globalstep.ps.budget import Account, Budget, Kind
from globalstep.ps.shard.layouts import Layout, LayoutMemory
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
    budget = Budget(1 << 20)
    others = budget.claim(Kind.QUEUE, Account(budget, "others"), 1000)
    memory = LayoutMemory(account=Account(budget, "c"))
    for number in (1, 2, 3):
        memory.tell(number, layout(16), 10_000)
        memory.remember()
        assert budget.used_bytes == others.nbytes + number * (2 * 512 + 16 * 10_000)
    memory.tell(4, layout(16), 10_000)
    memory.remember()
    assert budget.used_bytes == others.nbytes
    for number in (1, 2, 3, 4):
        with pytest.raises(LayoutUnknownError):
            memory.recall(number, memoryview(bytes(16)))
