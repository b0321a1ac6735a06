"""Cost profile: what a step's parts cost on a machine, as `globalstep bench` measured it; a file of JSON.

Seconds are processor time unless they are called a delay. Sizes that were not measured lie on the lines between
those that were.

Layer: deploy.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from globalstep.errors import InvalidArgumentError, NotFoundError

__all__ = ["FORMAT", "KernelCosts", "Profile", "StepCost", "TransportCosts", "default_path", "load"]

#: Changes when the meaning of a name in the file does.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step of one message each way to one PS task, without computing and without the update rule.

    Attributes:
        nbytes: Of the gradients that go, and of the values that come.
        worker_secs: On the worker.
        ps_secs: On the PS task.
        delay_secs: By how much the step takes longer than both; less than 0 where they overlap.
        delay_measured: Whether it was: if not, the machine was too busy, and it is the bound that was passed.
    """

    nbytes: float
    worker_secs: float
    ps_secs: float
    delay_secs: float
    delay_measured: bool = True


@dataclass(frozen=True, slots=True)
class TransportCosts:
    """What messages cost on a transport.

    Attributes:
        alone: Steps of one worker, by size; the first is of (nearly) no bytes.
        crowded: The same while `crowd` workers step at the same time.
        crowd: How many that were.
        admit_worker_secs: What the ADMIT and the COMPLETE of a push over several PS cost on the worker.
        admit_ps_secs: The same on the sequencer.
        part_worker_secs: What a STAGE and a COMMIT cost on the worker, for each further PS task, without bytes.
        part_ps_secs: The same on that PS task.
    """

    alone: tuple[StepCost, ...]
    crowded: tuple[StepCost, ...]
    crowd: int
    admit_worker_secs: float
    admit_ps_secs: float
    part_worker_secs: float
    part_ps_secs: float

    def step(self, nbytes: float, crowding: float = 0.0) -> StepCost:
        """Give the cost of a step.

        Args:
            nbytes: Each way.
            crowding: 0 for one worker alone, 1 for as many as were measured at the same time.
        """
        alone, crowded = _between(self.alone, nbytes), _between(self.crowded, nbytes)
        mixed = [a + (c - a) * crowding for a, c in zip(alone, crowded, strict=True)]
        worker_secs, ps_secs, delay_secs = mixed
        return StepCost(nbytes, worker_secs, ps_secs, delay_secs)

    def crowding(self, workers: int) -> float:
        """Say how crowded it is with so many workers: between 0 and 1."""
        return min(1.0, (workers - 1) / max(1, self.crowd - 1))


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """What an update rule costs.

    Attributes:
        slots: How many slots it has.
        dense: (elements, seconds) of applying a dense gradient and taking the new values.
        row_element_secs: Of an element of a row, where rows are applied.
        table_element_secs: Of an element of the table, where rows are applied by a rule that then changes all of it.
    """

    slots: int
    dense: tuple[tuple[float, float], ...]
    row_element_secs: float
    table_element_secs: float

    def dense_secs(self, elements: float) -> float:
        """Give the seconds of a dense gradient of so many float32 elements."""
        return _line([(count, (secs,)) for count, secs in self.dense], elements)[0]


@dataclass(frozen=True, slots=True)
class Profile:
    """All that was measured on a machine.

    Attributes:
        machine: What it is: cores, cpu, date, versions.
        cores: How many cores it has.
        copy_bytes_sec: Bytes that one core copies in a second, reads and writes counted.
        all_cores_copy_bytes_sec: The same of all cores together.
        transports: "grpc", "tcp", "unix" and "shm".
        kernels: By kind of the update rule.
        gather_element_secs: Of an element of a row that is read.
        pack_element_secs: Of a number that is sent as bfloat16, on one of the two sides.
    """

    machine: Mapping[str, Any]
    cores: int
    copy_bytes_sec: float
    all_cores_copy_bytes_sec: float
    transports: Mapping[str, TransportCosts]
    kernels: Mapping[str, KernelCosts]
    gather_element_secs: float
    pack_element_secs: float

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Profile:
        """Read what `as_json` gave.

        Raises:
            InvalidArgumentError: If it is of another format, or something is missing.
        """
        if found.get("format") != FORMAT:
            raise InvalidArgumentError(
                f"This profile is of format {found.get('format')!r}; {FORMAT} is wanted. Run `globalstep bench` again."
            )
        try:
            return cls(
                **{
                    **{name: value for name, value in found.items() if name != "format"},
                    "transports": {name: _transport(costs) for name, costs in found["transports"].items()},
                    "kernels": {
                        name: KernelCosts(
                            costs["slots"],
                            tuple((float(count), float(secs)) for count, secs in costs["dense"]),
                            costs["row_element_secs"],
                            costs["table_element_secs"],
                        )
                        for name, costs in found["kernels"].items()
                    },
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"This is no profile of `globalstep bench`: {error!r}.") from error

    def save(self, path: Path) -> None:
        """Write it to a file, and make its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")


def default_path() -> Path:
    """Give the place of this machine's profile: in the user's cache folder, as XDG_CACHE_HOME says."""
    return Path(platformdirs.user_cache_dir("globalstep")) / "profile.json"


def load(path: Path) -> Profile:
    """Read a profile.

    Raises:
        NotFoundError: If there is none.
        InvalidArgumentError: If it is none that can be used.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise NotFoundError(
            f"There is no profile at {path}. Run `globalstep bench`, on a machine like those of the cluster (half a "
            "minute), or name one with --profile."
        ) from None
    except ValueError as error:
        raise InvalidArgumentError(f"{path} is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"{path} is no profile of `globalstep bench`.")
    return Profile.from_json(found)


def _transport(costs: Mapping[str, Any]) -> TransportCosts:
    curves = {name: tuple(StepCost(**cost) for cost in costs[name]) for name in ("alone", "crowded")}
    return TransportCosts(**{**costs, **curves})


def _between(costs: Sequence[StepCost], nbytes: float) -> tuple[float, ...]:
    return _line([(cost.nbytes, (cost.worker_secs, cost.ps_secs, cost.delay_secs)) for cost in costs], nbytes)


def _line(points: Sequence[tuple[float, tuple[float, ...]]], at: float) -> tuple[float, ...]:
    """Read a piecewise linear function; beyond its last point it goes on in proportion to the size."""
    if at <= points[0][0]:
        return points[0][1]
    for (low, before), (high, after) in itertools.pairwise(points):
        if at <= high:
            part = (at - low) / (high - low)
            return tuple(b + (a - b) * part for b, a in zip(before, after, strict=True))
    last, values = points[-1]
    return tuple(value * at / last for value in values)
