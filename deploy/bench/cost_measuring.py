"""Measurement of what a step's parts cost on this machine: memory, update rules, messages on every transport.

Layer: deploy. Linux. Starts PS tasks and workers as processes on this machine; see measured_cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from globalstep.deploy.bench.cost_profile import KernelCosts, Profile, StepCost, TransportCosts
from globalstep.deploy.bench.measured_cluster import MeasuredCluster, MeasuredTurn, cores, measured_cluster
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.rules import get_rule
from globalstep.ps.store.arena import ApplySpan
from globalstep.runtime.memory import MemoryPool
from globalstep.wire.packing import pack, unpack

__all__ = ["KINDS", "TRANSPORTS", "TransportMeasuring", "measure"]

KINDS = ("gradient_descent", "momentum", "adagrad", "adam", "lazy_adam")
TRANSPORTS = ("grpc", "tcp", "unix", "shm")
#: Rules that change the whole table when rows of it are pushed, as TensorFlow's do.
_WHOLE_TABLE = {"adam"}
#: Elements of the messages that are measured; the first stands for none.
_SIZES = (240, 24_000, 240_000, 2_400_000)
_QUICK_SIZES = (240, 240_000)
_KERNEL_SIZES = (4_096, 262_144, 4_194_304)
_CROWD = 4
_LEAST_SECS = 1e-7
_PS = 3
_HYPERS = {"learning_rate": 1e-6, "momentum": 0.9, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
_ROWS, _ROW_WIDTH, _TABLE_ROWS = 2048, 64, 65_536


def _timed(what: Callable[[], Any], secs: float) -> float:
    """Give the processor time of a call: the median of several, the first of which is not counted."""
    what()
    laps: list[float] = []
    began = time.perf_counter()
    while len(laps) < 5 or time.perf_counter() - began < secs:
        lap = time.thread_time()
        what()
        laps.append(time.thread_time() - lap)
    return median(laps)


def copy_bytes_sec(threads: int, secs: float) -> float:
    """Give the bytes that so many threads copy together in a second of theirs, reads and writes counted."""
    arrays = [(np.ones(1 << 23, np.float32), np.empty(1 << 23, np.float32)) for _ in range(threads)]
    rates = [0.0] * threads
    end = time.perf_counter() + secs

    def copy(number: int) -> None:
        source, target = arrays[number]
        np.copyto(target, source)
        copied, began = 0, time.thread_time()
        while not copied or time.perf_counter() < end:
            np.copyto(target, source)
            copied += 2 * source.nbytes
        rates[number] = copied / (time.thread_time() - began)

    working = [
        threading.Thread(target=copy, args=(number,), name=f"globalstep-copy-{number}") for number in range(threads)
    ]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    return sum(rates)


def kernel_costs(kind: str, secs: float) -> KernelCosts:
    """Measure an update rule as a PS task runs it: over a push's bytes, the new values taking the gradients' place.

    Args:
        kind: Of the rule.
        secs: How long each size is measured.
    """
    rule = get_rule(kind)
    hyper = dict.fromkeys((*rule.hypers, *rule.scalars), 0.5) | {
        name: number for name, number in _HYPERS.items() if name in rule.hypers
    }
    dense = []
    with np.errstate(all="ignore"):
        for size in _KERNEL_SIZES:
            values = np.zeros(size, np.float32)
            slots = tuple(np.full(size, 0.1, np.float32) for _ in rule.slots)
            gradient = np.full(size, 1e-3, np.float32)
            run = ApplySpan(rule, ("optimizer", False), values, slots, 0, size, leaves_values=True)
            data = gradient.data.cast("B")
            dense.append((float(size), _timed(lambda run=run, data=data: run.apply(hyper, data), secs)))  # type: ignore[misc]
        table = np.zeros((_TABLE_ROWS, _ROW_WIDTH), np.float32)
        tables = tuple(np.full_like(table, 0.1) for _ in rule.slots)
        ids = _some_rows()
        rows = np.full((_ROWS, _ROW_WIDTH), 1e-3, np.float32)
        row_secs = _timed(lambda: rule.sparse(table, tables, ids, rows, hyper), secs)
    if kind in _WHOLE_TABLE:
        return KernelCosts(len(rule.slots), tuple(dense), 0.0, row_secs / table.size)
    return KernelCosts(len(rule.slots), tuple(dense), row_secs / rows.size, 0.0)


def _some_rows() -> Any:
    return np.sort(np.random.default_rng(5).choice(_TABLE_ROWS, _ROWS, replace=False))


def gather_element_secs(secs: float) -> float:
    """Measure the reading of rows."""
    table = np.zeros((_TABLE_ROWS, _ROW_WIDTH), np.float32)
    out = np.empty((_ROWS, _ROW_WIDTH), np.float32)
    ids = _some_rows()
    return _timed(lambda: np.take(table, ids, axis=0, out=out, mode="clip"), secs) / out.size


def pack_element_secs(secs: float) -> float:
    """Measure rounding to bfloat16 and back; gives the mean of both."""
    numbers = np.ones(1 << 20, np.float32)
    memory = MemoryPool()

    def there() -> tuple[pb.Request, list[memoryview]]:
        message = pb.Request()
        return message, pack([(numbers.data.cast("B"), "float32")], pb.FORM_BFLOAT16, message.spans, memory.take)

    message, (packed,) = there()
    out = _timed(there, secs)
    back = _timed(lambda: unpack(message.spans, packed, memory.take, numbers.nbytes), secs)
    return (out + back) / 2 / numbers.size


class TransportMeasuring:
    """Measures transports, round after round, and puts the rounds together.

    Args:
        cluster: With at least 3 PS tasks and 4 workers.
        descent: What gradient descent costs, which the steps here are made of.
        transports: Which.
        sizes: Elements of messages.
        secs: How long each turn is.
    """

    def __init__(
        self,
        cluster: MeasuredCluster,
        descent: KernelCosts,
        transports: Sequence[str] = TRANSPORTS,
        sizes: Sequence[int] = _SIZES,
        secs: float = 0.12,
    ) -> None:
        self._cluster = cluster
        self._descent = descent
        self._transports = transports
        self._sizes = sizes
        self._secs = secs
        #: (transport, workers, PS, size) -> turns.
        self._turns: dict[tuple[str, int, int, int], list[MeasuredTurn]] = {}

    def round(self) -> None:
        """Measure each once."""
        for ps in (1, 2, _PS):
            self._cluster.create(ps, self._sizes, "gradient_descent")
            for transport in self._transports:
                for size in self._sizes if ps == 1 else self._sizes[:1]:
                    for workers in (1, _CROWD) if ps == 1 else (1,):
                        turn = self._cluster.run(workers, ps, transport, size, self._secs)
                        self._turns.setdefault((transport, workers, ps, size), []).append(turn)

    def costs(self) -> dict[str, TransportCosts]:
        """Give what was found so far."""
        return {transport: self._costs(transport) for transport in self._transports}

    def _costs(self, transport: str) -> TransportCosts:
        curves = {
            workers: tuple(self._step_cost(size, self._turns[transport, workers, 1, size]) for size in self._sizes)
            for workers in (1, _CROWD)
        }
        # The first size's bytes cost nothing that could be seen.
        curves = {workers: (replace(curve[0], nbytes=0.0), *curve[1:]) for workers, curve in curves.items()}
        two, three = (self._turns[transport, 1, ps, self._sizes[0]] for ps in (2, _PS))
        worker = [median(turn.worker_cpu_secs for turn in turns) for turns in (two, three)]
        sequencer = [turn.ps_cpu_secs[0] for turn in (*two, *three)]
        parts = [secs for turn in (*two, *three) for secs in turn.ps_cpu_secs[1:]]
        applying = self._descent.dense_secs(self._sizes[0])
        # A part takes two messages, and the rest of such a push two or three: no share can be far from these.
        part = min(max(worker[1] - worker[0], 0.25 * worker[0]), 0.6 * worker[0])
        return TransportCosts(
            alone=curves[1],
            crowded=curves[_CROWD],
            crowd=_CROWD,
            admit_worker_secs=worker[0] - part,
            admit_ps_secs=max(_LEAST_SECS, median(sequencer) - applying),
            part_worker_secs=part,
            part_ps_secs=max(_LEAST_SECS, median(parts) - applying),
        )

    def _step_cost(self, size: int, turns: Sequence[MeasuredTurn]) -> StepCost:
        worker = median(turn.worker_cpu_secs for turn in turns)
        # Processor time without changing values, which has a price of its own.
        ps = max(_LEAST_SECS, median(turn.ps_cpu_secs[0] for turn in turns) - self._descent.dense_secs(size))
        # Whatever else the machine does makes a step longer, never shorter; what is beyond the bounds is none of the
        # messages: twice as long is never their own, and working at the same time saves no more than the shorter part.
        found = [turn.step_secs - turn.worker_cpu_secs - turn.ps_cpu_secs[0] for turn in turns]
        least, most = -min(worker, ps), worker + ps
        possible = [delay for delay in found if least <= delay <= most]
        delay = min(possible, default=min(max(min(found), least), most))
        return StepCost(4.0 * size, worker, ps, delay, bool(possible))


def measure(
    machine: Mapping[str, Any],
    quick: bool = False,
    progress: Callable[[str], None] = lambda doing: None,
) -> Profile:
    """Measure everything.

    Args:
        machine: What to write down of it.
        quick: In 10 seconds instead of 40, and less surely.
        progress: Called with what is measured now.

    Returns:
        The profile.

    Raises:
        RuntimeError: If a process of the measurement ends or hangs.
    """
    secs = 0.03 if quick else 0.1
    progress("memory")
    count = cores()
    copies = {threads: copy_bytes_sec(threads, 5 * secs) for threads in (1, count)}
    progress("update rules")
    kernels = {kind: kernel_costs(kind, secs) for kind in KINDS}
    gathered, packed = gather_element_secs(secs), pack_element_secs(secs)
    rounds = 1 if quick else 3
    with measured_cluster(_PS, _CROWD) as cluster:
        sizes = _QUICK_SIZES if quick else _SIZES
        measuring = TransportMeasuring(cluster, kernels["gradient_descent"], sizes=sizes, secs=0.06 if quick else 0.12)
        for number in range(rounds):
            progress(f"messages, round {number + 1} of {rounds}")
            measuring.round()
    return Profile(
        machine=machine,
        cores=count,
        copy_bytes_sec=copies[1],
        all_cores_copy_bytes_sec=copies[count],
        transports=measuring.costs(),
        kernels=kernels,
        gather_element_secs=gathered,
        pack_element_secs=packed,
    )
