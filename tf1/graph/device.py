"""Devices: the strings that say which task holds a Variable or computes a node.

`DeviceSpec` is such a string taken apart; `replica_device_setter` spreads Variables over the parameter
servers; `apply_device_scopes` is what `graph.Graph` asks for every node made under `device` scopes.

Layer: tf1. Must not import `graph`, which imports it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from globalstep.cluster.cluster import ClusterSpec

#: Op types that hold state; `replica_device_setter` puts them on the PS.
_PS_OPS = ("Variable", "VariableV2", "VarHandleOp")
_BARE_DEVICE_TYPES = ("CPU", "GPU")


@dataclass
class DeviceSpec:
    """The parts of a device string; None for what it leaves open.

    Args:
        job: Name of the job, e.g. "ps".
        replica: Index of the replica.
        task: Index of the task in its job.
        device_type: "CPU" or "GPU". globalstep keeps it in names only: all arrays live in main memory.
        device_index: Index of the device in its task.

    >>> DeviceSpec.from_string("/job:ps/task:1/cpu:0").to_string()
    '/job:ps/task:1/device:CPU:0'
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    @classmethod
    def from_string(cls, spec: str | None) -> DeviceSpec:
        """Take a device string apart.

        Args:
            spec: For example "/job:worker/replica:0/task:0/device:CPU:0" or "/cpu:0"; "*" leaves a part
                open; "" and None leave all of them open.

        Raises:
            ValueError: If a part is unknown, is not a number where it must be, or names a second device.
        """
        return cls().parse_from_string(spec or "")

    def parse_from_string(self, spec: str) -> DeviceSpec:
        """Replace all parts by those of `spec`; see from_string. Returns itself."""
        parsed: dict[str, Any] = {}
        for part in filter(None, spec.split("/")):
            key, *rest = part.split(":")
            if key == "job" and len(rest) == 1:
                parsed["job"] = None if rest[0] == "*" else rest[0]
            elif key in ("replica", "task") and len(rest) == 1:
                parsed[key] = _number(rest[0], spec)
            elif (key == "device" and len(rest) == 2) or (key.upper() in _BARE_DEVICE_TYPES and len(rest) <= 1):
                if "device_type" in parsed:
                    raise ValueError(f"Cannot specify multiple device types: {spec}")
                kind, *index = rest if key == "device" else [key.upper(), *rest]
                parsed["device_type"] = None if kind == "*" else kind.upper()
                parsed["device_index"] = _number(index[0], spec) if index else None
            else:
                raise ValueError(f"Unknown attribute: '{key}' in '{spec}'")
        self.__init__(**parsed)  # type: ignore[misc]
        return self

    def merge_from(self, other: DeviceSpec) -> None:
        """Take over every part that `other` names; keep the rest."""
        for part in ("job", "replica", "task", "device_type", "device_index"):
            if getattr(other, part) is not None:
                setattr(self, part, getattr(other, part))

    def to_string(self) -> str:
        """Give the device string; "" when all parts are open."""
        parts = [f"/{key}:{getattr(self, key)}" for key in ("job", "replica", "task") if getattr(self, key) is not None]
        if self.device_type is not None:
            parts.append(f"/device:{self.device_type}:{'*' if self.device_index is None else self.device_index}")
        return "".join(parts)

    def __str__(self) -> str:
        return self.to_string()


def _number(text: str, spec: str) -> int | None:
    if text == "*":
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} must be a whole number in device '{spec}'")
    return int(text)


def apply_device_scopes(node: Any, scopes: Sequence[Any]) -> str:
    """Give the device of `node` under `scopes`.

    As in TensorFlow: from the innermost scope outwards, a string fills in the parts that are still open;
    a function gets the node's operation, whose `device` is what the inner scopes gave, and its answer
    replaces that.

    Args:
        node: The node, not in its graph yet. Its `device` is used to tell functions the device so far.
        scopes: Device strings, DeviceSpecs or functions `f(op) -> str`, innermost last.

    Returns:
        The device string, "" for none.

    Raises:
        ValueError: If a device string is malformed.
    """
    node.device = ""
    for scope in reversed(scopes):
        if callable(scope):
            node.device = DeviceSpec.from_string(_string(scope(node.op))).to_string()
        else:
            merged = DeviceSpec.from_string(_string(scope))
            merged.merge_from(DeviceSpec.from_string(node.device))
            node.device = merged.to_string()
    return str(node.device)


def _string(device: Any) -> str:
    return device.to_string() if isinstance(device, DeviceSpec) else device or ""


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: ClusterSpec | dict[str, Any] | None = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: Callable[[Any], int] | None = None,
) -> Callable[[Any], str] | None:
    """Make a device function for between-graph replication: Variables on the PS, all else on the worker.

    Args:
        ps_tasks: Number of PS tasks; not used with `cluster`.
        ps_device: Device of the PS job.
        worker_device: Device of everything else; "" leaves it open.
        merge_devices: Whether inner `device` scopes fill in parts; otherwise one that is set stays as is.
        cluster: The cluster, whose job named by `ps_device` is counted.
        ps_ops: Types of the ops to put on the PS; default those of Variables.
        ps_strategy: Function of an op to the index of its PS task; default round robin in creation order.

    Returns:
        A function for `device`; None when there are no PS tasks.

    Raises:
        TypeError: If `cluster` is no cluster or `ps_strategy` is not callable.

    >>> replica_device_setter() is None
    True
    """
    if cluster is not None:
        spec = cluster if isinstance(cluster, ClusterSpec) else ClusterSpec(cluster)
        job = DeviceSpec.from_string(ps_device).job
        ps_tasks = spec.num_tasks(job) if job in spec.jobs else 0
    if not ps_tasks:
        return None
    strategy = ps_strategy if ps_strategy is not None else _RoundRobinStrategy(ps_tasks)
    if not callable(strategy):
        raise TypeError("ps_strategy must be callable")
    on_ps = frozenset(_PS_OPS if ps_ops is None else ps_ops)

    def device_function(op: Any) -> str:
        if op.device and not merge_devices:
            return str(op.device)
        current = DeviceSpec.from_string(op.device)
        if op.type in on_ps and ps_device:
            chosen = DeviceSpec.from_string(ps_device)
            if chosen.job and current.job in (None, chosen.job):
                chosen = replace(chosen, task=strategy(op))
        else:
            chosen = DeviceSpec.from_string(worker_device)
        chosen.merge_from(current)
        return chosen.to_string()

    return device_function


class _RoundRobinStrategy:
    """Puts Variables on the PS tasks in turn, in the order in which they are made."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self._next = 0

    def __call__(self, op: Any) -> int:
        task = self._next
        self._next = (task + 1) % self._num_tasks
        return task


def byte_size_load_fn(op: Any) -> float:
    """Give the size of a Variable's value in bytes: the usual load function of the greedy strategy.

    Args:
        op: The operation of a Variable of known shape.

    Raises:
        ValueError: If its shape is not fully known.
    """
    (output,) = op.outputs
    elements = output.shape.num_elements()
    if elements is None:
        raise ValueError(f"Variable {op.name!r} needs a known shape to be placed by size, not {output.shape}.")
    return float(elements * np.dtype(output.dtype.as_numpy_dtype).itemsize)


class GreedyLoadBalancingStrategy:
    """Puts each Variable on the PS task with the smallest load so far; the lowest index on a tie.

    Args:
        num_tasks: Number of PS tasks.
        load_fn: Function of an op to its load; default its size in bytes.
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Any], float] = byte_size_load_fn) -> None:
        self._loads = [0.0] * num_tasks
        self._load_fn = load_fn

    def __call__(self, op: Any) -> int:
        """Give the PS task for `op`, and count its load there."""
        load = self._load_fn(op)
        task = self._loads.index(min(self._loads))
        self._loads[task] += load
        return task


class RandomStrategy:
    """Puts each Variable on a PS task chosen by a hash of its name: the same in every process.

    Args:
        num_tasks: Number of PS tasks.
        seed: Changes the choice.
    """

    def __init__(self, num_tasks: int, seed: int = 0) -> None:
        self._num_tasks = num_tasks
        self._seed = seed

    def __call__(self, op: Any) -> int:
        """Give the PS task for `op`."""
        digest = hashlib.md5(f"{op.name}_{self._seed}".encode(), usedforsecurity=False).hexdigest()
        return int(digest, 16) % self._num_tasks
