"""Transformations of a pipeline's elements: iterators over iterators.

Layer: tf1. Threads: an iterator is used by one thread at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.data.elements import Pass, Values
from globalstep.tf1.ops.random_ops import get_seed


class Order:
    """The order of a `shuffle`.

    Args:
        seed: Of it, None for that of the graph.
        anew: Whether each repetition has an order of its own.
    """

    def __init__(self, seed: int | None, anew: bool) -> None:
        graph_seed, op_seed = get_seed(seed)
        self._entropy = None if op_seed is None else [abs(int(graph_seed or 0)), abs(int(op_seed))]
        self._anew = anew

    def generator(self, run: Pass) -> np.random.Generator:
        """Give what draws in the next repetition."""
        if self not in run.memory:
            first = np.random.default_rng(self._entropy)
            # Kept, so that each repetition can start from it.
            run.memory[self] = (first, first.bit_generator.state)
        generator: np.random.Generator
        generator, state = run.memory[self]
        if not self._anew:
            generator.bit_generator.state = state
        return generator


def batches(
    source: Iterator[Values], size: int, whole: bool, join: Callable[[Sequence[Values]], Values]
) -> Iterator[Values]:
    """Give batches; if `whole`, none that is smaller than `size`."""
    while rows := list(itertools.islice(source, size)):
        if len(rows) == size or not whole:
            yield join(rows)


def shuffled(source: Iterator[Values], size: int, draw: np.random.Generator) -> Iterator[Values]:
    """Give the elements, each drawn from the next `size`."""
    waiting: list[Values] = []
    for values in source:
        waiting.append(values)
        if len(waiting) == size:
            yield _drawn(waiting, draw)
    while waiting:
        yield _drawn(waiting, draw)


def _drawn(waiting: list[Values], draw: np.random.Generator) -> Values:
    at = int(draw.integers(len(waiting)))
    waiting[at], waiting[-1] = waiting[-1], waiting[at]
    return waiting.pop()


def interleaved(sources: Iterator[Any], cycle: int, block: int) -> Iterator[Values]:
    """Give `block` elements of each of `cycle` iterators in turn; one that has ended makes room for the next one."""
    places: list[Any] = [next(sources, None) for _ in range(cycle)]
    while any(place is not None for place in places):
        for at in range(cycle):
            if places[at] is None:
                continue
            count = 0
            for values in itertools.islice(places[at], block):
                count += 1
                yield values
            if count < block:
                places[at] = next(sources, None)


def zipped(sources: Sequence[Iterator[Values]]) -> Iterator[Values]:
    """Give elements that have one of each; the shortest ends it."""
    return (tuple(itertools.chain(*each)) for each in zip(*sources, strict=False))


def repeated(begin: Callable[[], Iterator[Values]], times: int) -> Iterator[Values]:
    """Repeat all elements `times` times, or for ever with -1; without elements it ends at once."""
    for _ in itertools.count() if times < 0 else range(times):
        empty = True
        for values in begin():
            empty = False
            yield values
        if empty:
            return


def cached(begin: Callable[[], Iterator[Values]], run: Pass, key: object) -> Iterator[Values]:
    """Give the elements, from memory once all of them were given."""
    held = run.memory.get(key)
    if held is not None:
        yield from held
        return
    elements = []
    for values in begin():
        elements.append(values)
        yield values
    run.memory[key] = elements


def first(source: Iterator[Values], number: int) -> Iterator[Values]:
    """Give the first elements, all of them for -1."""
    return itertools.islice(source, None if number < 0 else number)


def rest(source: Iterator[Values], number: int) -> Iterator[Values]:
    """Give what follows the first elements, nothing for -1."""
    return iter(()) if number < 0 else itertools.islice(source, number, None)
