"""The layouts that a shard has promised to apply."""

from __future__ import annotations

from dataclasses import dataclass

from globalstep.ps.ledger.ledger import CarriedPart
from globalstep.ps.shard.layouts import Layout, PromisedLayouts
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
    first = promises.number_of(layout(16))
    assert promises.number_of(layout(16)) == first
    assert promises.number_of(layout(16, "b")) != first


def test_bytes_behind_the_last_gradient_take_nothing_from_others_parts():
    promises = PromisedLayouts()
    padded = promises.number_of(layout(24))
    number = promises.number_of(layout(16))
    assert number != padded
    found = promises.layout(CarriedPart(number, bytes(16)))
    assert found is not None
    assert found.data_bytes == 16
    assert promises.layout(CarriedPart(number, bytes(24))) is None
