"""Of many combinations a few in which every two values that some combination has together are together."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def pairwise(rows: Iterable[Sequence[Hashable]]) -> list[Sequence[Hashable]]:
    """Choose some of the rows, the same ones every time.

    Args:
        rows: The combinations that there are, each with as many values; none comes twice.

    Returns:
        Those that are enough for every pair of values, in their order.
    """
    left = {tuple(row): _pairs(row) for row in rows}
    order = list(left)
    missing = set().union(*left.values())
    # How much a row brings only grows less: one that was looked at again and is still first is the best, of several
    # the first in order.
    first = [(-len(left[row]), at) for at, row in enumerate(order)]
    heapq.heapify(first)
    chosen = set()
    while missing:
        brings, at = heapq.heappop(first)
        now = -len(left[order[at]] & missing)
        if now == brings:
            chosen.add(order[at])
            missing -= left[order[at]]
        elif now:
            heapq.heappush(first, (now, at))
    return [row for row in order if row in chosen]


def _pairs(row: Sequence[Hashable]) -> frozenset[tuple[tuple[int, Hashable], ...]]:
    """Give each two of a row's values, with their places."""
    return frozenset(combinations(enumerate(row), 2))


def in_pairs(*named: Mapping[str, Any]) -> list[ParameterSet]:
    """Give the parameters of a test that the quick tier has in pairs, and `make test-all` in every combination.

    Args:
        named: For each of the test's arguments its values, by what the test's id says for them.
    """
    every = list(product(*named))
    quick = set(pairwise(every))
    return [
        pytest.param(
            *(values[name] for values, name in zip(named, row, strict=True)),
            id="-".join(row),
            marks=[] if row in quick else [pytest.mark.long],
        )
        for row in every
    ]
