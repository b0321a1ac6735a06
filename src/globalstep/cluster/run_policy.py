"""`gs.RunPolicy`: how a run treats late pushes, bad gradients and lost PS tasks, and how it uses several of them.

The chief states it when the run begins, and every PS task keeps to it until the next begin. A program gives it in
its session's `ConfigProto(run_policy=...)`; a program that must not be changed gets it from the environment
variable GLOBALSTEP_RUN_POLICY, e.g. "durability=log,staleness=drop,max_staleness=8".

Layer: shared. Immutable.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from globalstep.errors import InvalidArgumentError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RUN_POLICY_VARIABLE = "GLOBALSTEP_RUN_POLICY"

_WORDS = {
    "durability": ("checkpoint", "log"),
    "staleness": ("accept", "drop", "scale", "wait"),
    "on_nan": ("", "apply", "drop", "stop"),
}
#: Words of `on_nan` by which a gradient that is not finite keeps its push from being accepted.
LOOKS_AT_GRADIENTS = ("drop", "stop")


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """Options of a run: how it treats late pushes, bad gradients and lost PS tasks, and how it uses several of these.

    Args:
        durability: "checkpoint": a PS task that loses its state takes the run back to the newest checkpoint. "log":
            each PS task logs every push before it acknowledges it, and comes back to its last acknowledged push.
        staleness: What becomes of a push whose step moved on since the worker read it. "accept": it is applied.
            "drop": not if it lags more than `max_staleness` steps. "scale": its learning rates are multiplied by
            1/(1 + staleness). "wait": it is applied, and a worker that is more than `max_staleness` pushes ahead of
            the slowest live one waits (Stale Synchronous Parallel).
        max_staleness: For "drop", in steps; for "wait", in pushes of a worker.
        on_nan: What becomes of a push with a gradient that is not finite. "apply": it is applied, as in TensorFlow.
            "drop": it is not. "stop": it is not, and its worker gets an error that ends the job. "", the default:
            "drop" for `gs.fit` and a `gs.Trainer`, "apply" for other programs.
        keep_log: With durability="log": keep the log of the whole run, so that `globalstep replay` can begin at its
            first step; else the log goes back to the newest checkpoint.
        spread_above: In bytes. Dense Variables that have fewer together, without their slots, are all on one PS task,
            so that a push goes to one; more are spread over all of them.
        split_above: In bytes. A table of at least so many, and a dense Variable where these are spread, is split by
            rows over all PS tasks if it is larger than a PS task's fair share.

    Raises:
        InvalidArgumentError: If a word is none of these, or two of them exclude each other.

    >>> RunPolicy(staleness="drop", max_staleness=8)
    RunPolicy(staleness='drop', max_staleness=8)
    """

    durability: str = "checkpoint"
    staleness: str = "accept"
    max_staleness: int = 0
    on_nan: str = ""
    keep_log: bool = False
    spread_above: int = 16 << 20
    split_above: int = 4 << 20

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise InvalidArgumentError(f"RunPolicy: {name} is {getattr(self, name)!r}; it must be one of {words}.")
        for name in ("max_staleness", "spread_above", "split_above"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(f"RunPolicy: {name} is {getattr(self, name)}; it cannot be negative.")
        if self.keep_log and self.durability != "log":
            raise InvalidArgumentError('RunPolicy: keep_log=True has a meaning with durability="log" only.')

    def __repr__(self) -> str:
        changed = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"RunPolicy({', '.join(changed)})"

    @classmethod
    def from_text(cls, text: str) -> RunPolicy:
        """Read "name=value,name=value"; a switch that is on may be its name alone.

        Raises:
            InvalidArgumentError: If there is no such name, or its value cannot be.

        >>> RunPolicy.from_text("durability=log,keep_log")
        RunPolicy(durability='log', keep_log=True)
        """
        return options_in(cls, text)


OptionsT = TypeVar("OptionsT", bound="DataclassInstance")


def options_in(kind: type[OptionsT], text: str) -> OptionsT:
    """Read options from "name=value,name=value"; a switch that is on may be its name alone.

    Args:
        kind: A dataclass whose fields are the options.
        text: What an environment variable says.

    Raises:
        InvalidArgumentError: If there is no such name, or its value cannot be.
    """
    what, kinds = kind.__name__, {field.name: type(field.default) for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, _, value = item.partition("=")
        if name not in kinds:
            raise InvalidArgumentError(f"{what} has no {name!r}; it has {', '.join(kinds)}.")
        values[name] = _read(f"{what}: {name}", value, kinds[name])
    return kind(**values)


def _read(name: str, value: str, kind: type) -> Any:
    if kind is bool:
        if value.lower() not in ("", "1", "true", "0", "false"):
            raise InvalidArgumentError(f"{name} is {value!r}; it must be true or false.")
        return value.lower() not in ("0", "false")
    try:
        return kind(value)
    except ValueError:
        raise InvalidArgumentError(f"{name} is {value!r}; it must be a number.") from None


def policy_of(config: Any, environ: Mapping[str, str] = os.environ, on_nan: str = "apply") -> RunPolicy:
    """Decide on the policy of a run that a session begins: its configuration beats the environment.

    Args:
        config: The session's ConfigProto, or None.
        environ: For GLOBALSTEP_RUN_POLICY.
        on_nan: What becomes of gradients that are not finite where neither says so.

    Raises:
        InvalidArgumentError: If what is given there is no policy.
    """
    policy = getattr(config, "run_policy", None)
    if policy is None:
        policy = RunPolicy.from_text(environ.get(RUN_POLICY_VARIABLE, ""))
    if not isinstance(policy, RunPolicy):
        raise InvalidArgumentError(f"ConfigProto.run_policy is {policy!r}; it must be a gs.RunPolicy.")
    return policy if policy.on_nan else dataclasses.replace(policy, on_nan=on_nan)
