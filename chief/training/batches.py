"""Batches of a worker: its share of what the program gave, again and again, going on where the run was.

Layer: chief.
"""

from __future__ import annotations

import inspect
import itertools
import random
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.worker.frameworks.training_model import described, part_seed, seed_torch

#: What a function that gives batches may ask for by its arguments' names.
_ASKED = ("rank", "world_size", "seed", "epoch", "start")
#: In place of a rank, where all workers are to draw the same numbers.
_ALL = -1


@dataclass(frozen=True)
class Share:
    """A worker's share of the batches.

    Attributes:
        rank: Which worker it is, from 0.
        world_size: How many there are.
        seed: The run's.
        start: How many batches it has had before, in the run that is resumed.
        claim: Gives the number of the step, from 0, whose batches this worker takes next, from the number of those that
            it took last, or -1. None for every `world_size`-th step from where it has been.
        per_step: How many batches make a step.
        end: The first step whose batches nobody takes, where those before it make up the epochs; None for no end. A
            quick worker that took them would be counted for batches that a slow one still has.
    """

    rank: int = 0
    world_size: int = 1
    seed: int = 0
    start: int = 0
    claim: Callable[[int], int] | None = None
    per_step: int = 1
    end: int | None = None

    def next_step(self, last: int) -> int:
        """Give the step whose batches this worker takes next; see `claim`."""
        if self.claim is not None:
            return self.claim(last)
        return self.rank + self.start * self.world_size if last < 0 else last + self.world_size


def check_batches(batches: Any) -> None:
    """Refuse what gives no batches.

    Raises:
        InvalidArgumentError: If it is no iterable, or one whose items are no batches.
    """
    if hasattr(batches, "shape") or isinstance(batches, (str, bytes, Mapping)):
        raise InvalidArgumentError(
            f"batches is {described(batches)}; it must be an iterable of batches: a list, a torch DataLoader, or a "
            "function that gives an iterator. For one batch over and over: [batch]."
        )
    if not callable(batches) and not isinstance(batches, Iterable):
        raise InvalidArgumentError(
            f"batches is a {type(batches).__name__}; it must be an iterable of batches, or a function that gives one. "
            "Of a torch dataset: torch.utils.data.DataLoader(dataset, batch_size=64)."
        )


def share_of(batches: Any, share: Share, epochs: int | None = None) -> Generator[Any, None, int]:
    """Give a worker's batches: of an iterable those that it claims, over and over.

    Args:
        batches: An iterable, gone through anew for each epoch, after `set_epoch` if it, or its sampler, has that; an
            iterator, gone through once; or a function that gives either. A function with an argument `rank` or `seed`
            gives this worker's own batches, all of which are taken; it may also ask for `world_size`, `epoch` and
            `start`, the batches to leave out.
        share: Which are this worker's.
        epochs: How often to go through them; None for no end.

    Returns:
        How many batches all of the epochs have, those that were left out and other workers' among them.

    Raises:
        InvalidArgumentError: If there are no batches, or a sampler divides them among others.
    """
    check_batches(batches)
    _check_sampler(batches, share)
    names = _asked_by(batches) if callable(batches) else ()
    own = are_own(batches)
    wanted = -1 if own else share.next_step(-1)
    if share.end is not None and wanted >= share.end:
        return 0
    # Places in the sequence that all workers share, or in this one's own.
    skip = wanted * share.per_step if not own else 0 if "start" in names else share.start
    size = _size(batches)
    first_epoch, skip = divmod(skip, size) if size else (0, skip)
    past = first_epoch * size
    total = first_epoch * size if epochs is None else min(first_epoch, epochs) * size
    # What a function that asks for `start` is still to leave out.
    left = share.start if "start" in names else 0
    for epoch in itertools.count(first_epoch) if epochs is None else range(first_epoch, epochs):
        _seed(share.seed, share.rank if own else _ALL, epoch)
        count, place = 0, past
        for place, batch in enumerate(_opened(batches, names, share, epoch, left), past):
            count += 1
            if skip:
                skip -= 1
            elif own:
                yield batch
            # Where the run has gone back, the batches of before cannot be had again: the next ones are taken.
            elif place // share.per_step >= wanted:
                yield batch
                if place % share.per_step == share.per_step - 1:
                    wanted = share.next_step(place // share.per_step)
                    if share.end is not None and wanted >= share.end:
                        return 0
        past = place + 1 if count else past
        total += count
        if left and not count:
            # The whole epoch was had before: only it can tell how many batches that were.
            _seed(share.seed, share.rank, epoch)
            size = sum(1 for _ in _opened(batches, names, share, epoch, 0))
            total += min(left, size)
            left = max(left - size, 0)
            if size:
                continue
        total, left = total + left, 0
        if not count and epoch == first_epoch:
            raise InvalidArgumentError("batches gave no batch: is the dataset empty, or the iterator used up?")
        if _is_iterator(batches):
            break
    return total


def are_own(batches: Any) -> bool:
    """Say whether each worker's batches are its own: all workers together have more than one of them has."""
    if callable(batches):
        return bool({"rank", "seed", "start"} & set(_asked_by(batches)))
    return parts_of(batches) > 1


def _asked_by(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        names = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()
    unknown = [name for name in names if name not in _ASKED]
    if unknown:
        raise InvalidArgumentError(
            f"The function that gives batches has an argument {unknown[0]!r}; it may ask for {', '.join(_ASKED)}. To "
            "give others, bind them first: functools.partial, or a lambda."
        )
    return names


def _opened(batches: Any, names: tuple[str, ...], share: Share, epoch: int, start: int) -> Iterable[Any]:
    if callable(batches):
        values = {"rank": share.rank, "world_size": share.world_size, "seed": share.seed, "epoch": epoch,
                  "start": start}  # fmt: skip
        opened = batches(**{name: values[name] for name in names})
        check_batches(opened)
        return opened  # type: ignore[no-any-return]
    holder: Any
    for holder in (batches, getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)):
        if hasattr(holder, "set_epoch"):
            holder.set_epoch(epoch)
    return batches  # type: ignore[no-any-return]


def _check_sampler(batches: Any, share: Share) -> None:
    """Refuse a DataLoader whose sampler does not give this worker its own part of the data."""
    sampler = _divides(batches)
    if sampler is None or parts_of(batches) == 1:
        return
    part = parts_of(batches), getattr(sampler, "rank", share.rank)
    if part != (share.world_size, share.rank):
        raise InvalidArgumentError(
            f"The DataLoader's {type(sampler).__name__} gives part {part[1]} of {part[0]}, and this is worker "
            f"{share.rank} of {share.world_size}, so that rows would be left out or had twice. Give it num_replicas="
            f"{share.world_size} and rank={share.rank}, or leave the sampler out: the workers share a DataLoader."
        )


def _divides(batches: Any) -> Any:
    """Give the sampler that divides a DataLoader's data among workers; None without one."""
    samplers = getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)
    return next((sampler for sampler in samplers if hasattr(sampler, "num_replicas")), None)


def parts_of(batches: Any) -> int:
    """Give among how many workers a DataLoader's sampler divides the data."""
    return int(getattr(_divides(batches), "num_replicas", 1))


def _is_iterator(batches: Any) -> bool:
    return not callable(batches) and isinstance(batches, Iterator)


def _size(batches: Any) -> int:
    """Give how many batches an epoch has; 0 where that is not known."""
    if callable(batches):
        return 0
    try:
        return len(batches)
    except TypeError:
        return 0


def _seed(seed: int, rank: int, epoch: int) -> None:
    """Have shuffling be decided by the seed and the epoch."""
    number = part_seed(seed, rank, epoch)
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    if "torch" in sys.modules:
        seed_torch(sys.modules["torch"], number)
