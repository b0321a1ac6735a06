"""How fast workers are in each mode, and how much they send: formulas of what computing and exchanging take. Pure.

docs/plan.md, "Modes", has the formulas, and what they leave out.

Layer: deploy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError

__all__ = ["ModeChoices", "ModeForecast", "Pace", "expected_secs", "forecast_modes"]

Array = npt.NDArray[np.float64]

#: A group of workers is looked at within so many standard deviations, at so many times.
_WITHIN, _TIMES = 8.0, 801


@dataclass(frozen=True, slots=True)
class Pace:
    """What the workers of a job take.

    Attributes:
        workers: How many.
        compute_secs: Of a step of one that is not slow, on average.
        spread: Standard deviation of that, as a part of it.
        alone_secs: What a push and the values take where nobody else pushes.
        loaded_secs: The same where all push as they come.
        transfer_secs: What of that the bytes are on the worker's link, both ways.
        queue_secs: For how long the PS tasks' most wanted resource is taken by one of several pushes at a time.
        allows: Pushes a second that the PS tasks allow.
        step_bytes: Tensor bytes of a push and the values, both ways.
        slow: How many of the workers are slow.
        slow_factor: By how much.
    """

    workers: int
    compute_secs: float
    spread: float = 0.0
    alone_secs: float = 0.0
    loaded_secs: float = 0.0
    transfer_secs: float = 0.0
    queue_secs: float = 0.0
    allows: float = math.inf
    step_bytes: float = 0.0
    slow: int = 0
    slow_factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.slow <= self.workers:
            raise InvalidArgumentError(f"{self.slow} of {self.workers} workers cannot be slow.")
        if not 1 <= self.slow_factor < math.inf:
            raise InvalidArgumentError(f"A slow worker takes at least as long as the others, not {self.slow_factor}.")
        if not self.compute_secs + min(self.alone_secs, self.loaded_secs) > 0:
            raise InvalidArgumentError("Steps that take no time at all have no pace.")

    @property
    def groups(self) -> list[tuple[int, float]]:
        """The workers that are alike: how many, and how long a step of theirs takes."""
        found = [
            (self.workers - self.slow, self.compute_secs),
            (self.slow, self.compute_secs * self.slow_factor),
        ]
        return [(count, secs) for count, secs in found if count]

    def together_secs(self, pushes: int) -> float:
        """Give what so many pushes take that come at the same time: on links of their own all move at once."""
        return self.alone_secs + max(0.0, pushes * self.queue_secs - max(self.transfer_secs, self.queue_secs))


@dataclass(frozen=True, slots=True)
class ModeChoices:
    """What modes are to be looked at.

    Attributes:
        replicas: Contributions that make a synchronous step; 0: all, and all but the slow.
        max_staleness: Of bounded staleness.
        every: Local steps of a round.
    """

    replicas: int = 0
    max_staleness: int = 4
    every: int = 50

    def __post_init__(self) -> None:
        for name, least in (("replicas", 0), ("max_staleness", 0), ("every", 1)):
            if getattr(self, name) < least:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)}; it must be at least {least}.")


@dataclass(frozen=True, slots=True)
class ModeForecast:
    """What is to be expected of a mode.

    Attributes:
        mode: Which.
        steps_sec: By how much `global_step` moves on, a second.
        batches_sec: Batches a second, of all workers, whose gradients count.
        bytes_sec: Tensor bytes a second, both ways, of all workers.
        computing: Part of its time for which a worker that is not slow computes.
    """

    mode: str
    steps_sec: float
    batches_sec: float
    bytes_sec: float
    computing: float


def expected_secs(pace: Pace, first: int, steps: float = 1.0) -> float:
    """Give how long it takes until so many workers that begin together have computed so many steps, on average.

    Args:
        pace: Of the workers.
        first: How many are waited for.
        steps: Of each; the spread of their mean is smaller by the root of them.

    Returns:
        Seconds: the integral over time of the probability that fewer are ready. What a worker takes has a log-normal
        distribution with the pace's mean and spread.

    >>> round(expected_secs(Pace(4, 0.1, slow=1, slow_factor=5.0), 3), 6)
    0.1
    >>> round(expected_secs(Pace(4, 0.1, slow=1, slow_factor=5.0), 4), 6)
    0.5
    >>> round(expected_secs(Pace(4, 0.1, spread=0.1), 4), 3)
    0.111
    """
    groups, spread = pace.groups, pace.spread / math.sqrt(steps)
    means = [(count, secs * steps) for count, secs in groups]
    if not pace.compute_secs or not spread:
        ordered = sorted(secs for count, secs in means for _ in range(count))
        return ordered[first - 1]
    sigma = math.sqrt(math.log1p(spread * spread))
    middles = [math.log(secs) - sigma * sigma / 2 for _, secs in means]
    around = np.linspace(-_WITHIN, _WITHIN, _TIMES) * sigma
    times = np.unique(np.concatenate([np.exp(middle + around) for middle in middles]))
    # By row the probability that so many are ready, of those looked at so far.
    chances = np.ones((1, len(times)))
    for (count, _), middle in zip(means, middles, strict=True):
        ready = np.array([_normal((math.log(time) - middle) / sigma) for time in times])
        chances = _sum_of(chances, _binomial(count, ready))
    return float(times[0] + np.trapezoid(chances[:first].sum(axis=0), times))


def forecast_modes(pace: Pace, choices: ModeChoices) -> list[ModeForecast]:
    """Give what is to be expected of each mode.

    Args:
        pace: What computing and exchanging take.
        choices: What the modes are given.

    >>> quick_but_one = Pace(4, 0.1, alone_secs=0.02, loaded_secs=0.02, step_bytes=1e6, slow=1, slow_factor=4.0)
    >>> for found in forecast_modes(quick_but_one, ModeChoices(every=10)):
    ...     print(f"{found.mode}: {found.batches_sec:.1f} batches/s, {found.bytes_sec / 1e6:.1f} MB/s")
    asynchronous: 27.4 batches/s, 27.4 MB/s
    wait, max_staleness=4: 9.5 batches/s, 9.5 MB/s
    synchronous, 4 of 4: 9.5 batches/s, 9.5 MB/s
    synchronous, 3 of 4: 25.0 batches/s, 27.4 MB/s
    local steps, every=10: 31.9 batches/s, 3.2 MB/s
    local steps, every=10, together: 10.0 batches/s, 1.0 MB/s
    """
    found = [_as_they_come(pace, "asynchronous", pace.loaded_secs), _bounded(pace, choices.max_staleness)]
    wanted = [choices.replicas] if choices.replicas else [pace.workers, pace.workers - pace.slow]
    for replicas in dict.fromkeys(count for count in wanted if count):
        found.append(_together(pace, f"synchronous, {replicas} of {pace.workers}", replicas))
    local = f"local steps, every={choices.every}"
    found.append(_as_they_come(pace, local, pace.alone_secs, choices.every))
    found.append(_together(pace, f"{local}, together", pace.workers, choices.every))
    return found


def _as_they_come(pace: Pace, mode: str, exchange_secs: float, every: int = 1) -> ModeForecast:
    """Nobody waits for anybody; a push has the gradients of so many steps."""
    wanted = sum(count / (every * secs + exchange_secs) for count, secs in pace.groups)
    held = min(1.0, pace.allows / wanted)
    quick = every * pace.compute_secs / (every * pace.compute_secs + exchange_secs)
    rate = wanted * held
    return ModeForecast(mode, rate, rate * every, rate * pace.step_bytes, quick * held)


def _bounded(pace: Pace, max_staleness: int) -> ModeForecast:
    """All go at the pace of who is the slowest in a window of steps."""
    ahead = max_staleness + 1
    secs = expected_secs(pace, pace.workers, ahead) / ahead + pace.loaded_secs
    rate = min(pace.workers / secs, pace.allows)
    computing = pace.compute_secs * rate / pace.workers
    return ModeForecast(f"wait, max_staleness={max_staleness}", rate, rate, rate * pace.step_bytes, computing)


def _together(pace: Pace, mode: str, replicas: int, every: int = 1) -> ModeForecast:
    """A step is made of several pushes, which come at the same time; those that are late are sent all the same."""
    if replicas > pace.workers:
        raise InvalidArgumentError(
            f"{replicas} replicas of {pace.workers} workers: nothing is foretold of steps to which one worker "
            "contributes several times."
        )
    secs = expected_secs(pace, replicas, every) + pace.together_secs(replicas)
    rate = 1 / secs
    sent = sum(count / max(secs, every * each + pace.alone_secs) for count, each in pace.groups)
    return ModeForecast(mode, rate, rate * replicas * every, sent * pace.step_bytes, every * pace.compute_secs * rate)


def _normal(deviations: float) -> float:
    return 0.5 * math.erfc(-deviations / math.sqrt(2))


def _binomial(count: int, chance: Array) -> Array:
    """Give the probabilities of 0 to `count` of so many, [count + 1, times]."""
    within = np.clip(chance, 1e-300, 1 - 1e-16)
    ways = [math.lgamma(count + 1) - math.lgamma(n + 1) - math.lgamma(count - n + 1) for n in range(count + 1)]
    number = np.arange(count + 1)[:, None]
    logs = np.array(ways)[:, None] + number * np.log(within) + (count - number) * np.log1p(-within)
    return np.asarray(np.exp(logs))


def _sum_of(one: Array, other: Array) -> Array:
    """Give the probabilities of the sum of two numbers that do not depend on each other."""
    few, many = sorted((one, other), key=len)
    total = np.zeros((len(few) + len(many) - 1, few.shape[1]))
    for number, chance in enumerate(few):
        total[number : number + len(many)] += chance * many
    return total
