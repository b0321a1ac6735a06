"""`gs.ConfigProto`, `gs.RunOptions` and what belongs to them: settings that TensorFlow programs pass to sessions.

They are accepted so that programs run unchanged. globalstep computes on the CPU and leaves memory and
placement to the system, so most have no effect; each that is set and has none is logged once.

Layer: shared. Thread-safe once built.
"""

from __future__ import annotations

import copy
import logging
import os
from typing import Any

_log = logging.getLogger("globalstep")
_said: set[str] = set()

#: For programs that must not be changed: what ConfigProto.pushes_in_flight says where that is not set.
_IN_FLIGHT_VARIABLE = "GLOBALSTEP_PUSHES_IN_FLIGHT"


class _Options:
    """Named settings as attributes, unset ones with protocol buffers' defaults."""

    #: Field -> default; a type for a nested message.
    _fields: dict[str, Any] = {}
    #: Fields that do have an effect.
    _effective: frozenset[str] = frozenset()

    def __init__(self, **settings: Any) -> None:
        for field, default in self._fields.items():
            object.__setattr__(self, field, default() if isinstance(default, type) else default)
        for field, value in settings.items():
            setattr(self, field, value)

    def __setattr__(self, field: str, value: Any) -> None:
        if field not in self._fields:
            raise AttributeError(f"{type(self).__name__} has no field {field!r}; it has {', '.join(self._fields)}.")
        object.__setattr__(self, field, value)
        name = f"{type(self).__name__}.{field}"
        silent = name in _said or field in self._effective or isinstance(value, _Options)
        if not silent and self._is_set(field):
            _said.add(name)
            _log.info("%s = %r is accepted and has no effect in globalstep.", name, value)

    def __repr__(self) -> str:
        parts = [f"{field}={getattr(self, field)!r}" for field in self._fields if self._is_set(field)]
        return f"{type(self).__name__}({', '.join(parts)})"

    def MergeFrom(self, other: _Options) -> None:  # noqa: N802
        """Take over what is set in another message."""
        for field in filter(other._is_set, other._fields):
            ours, value = getattr(self, field), getattr(other, field)
            if isinstance(ours, _Options):
                ours.MergeFrom(value)
            elif isinstance(ours, dict):
                ours.update(value)
            else:
                setattr(self, field, copy.copy(value))

    def CopyFrom(self, other: _Options) -> None:  # noqa: N802
        """Become like another message."""
        if other is not self:
            type(self).__init__(self)
            self.MergeFrom(other)

    def _is_set(self, field: str) -> bool:
        value, default = getattr(self, field), self._fields[field]
        if isinstance(value, _Options):
            return any(value._is_set(inner) for inner in value._fields)
        return bool(value != (default() if isinstance(default, type) else default))


class GPUOptions(_Options):
    """Settings of GPUs, which globalstep does not use."""

    _fields = {
        "allow_growth": False,
        "per_process_gpu_memory_fraction": 0.0,
        "visible_device_list": "",
        "allocator_type": "",
        "deferred_deletion_bytes": 0,
        "polling_active_delay_usecs": 0,
        "polling_inactive_delay_msecs": 0,
        "force_gpu_compatible": False,
        "experimental": None,
    }


class OptimizerOptions(_Options):
    """Settings of TensorFlow's graph optimizer, which globalstep does not have."""

    L0, L1 = -1, 0
    OFF, ON_1, ON_2 = -1, 1, 2
    _fields = {
        "opt_level": 0,
        "global_jit_level": 0,
        "do_common_subexpression_elimination": False,
        "do_constant_folding": False,
        "do_function_inlining": False,
        "max_folded_constant_in_bytes": 0,
    }


class GraphOptions(_Options):
    """Settings of how TensorFlow runs a graph."""

    _fields = {
        "optimizer_options": OptimizerOptions,
        "enable_recv_scheduling": False,
        "build_cost_model": 0,
        "build_cost_model_after": 0,
        "infer_shapes": False,
        "place_pruned_graph": False,
        "enable_bfloat16_sendrecv": False,
        "timeline_step": 0,
        "rewrite_options": None,
    }


class ConfigProto(_Options):
    """Settings of a session or a Server.

    Three are globalstep's own: `run_policy`, a `gs.RunPolicy` for the run that a chief's session begins; `wire`,
    `gs.WireOptions` for what a session sends and reads; and `pushes_in_flight`, by which
    computing and communicating overlap (see `gs.Session`).

    >>> config = ConfigProto(allow_soft_placement=True)
    >>> config.gpu_options.allow_growth = True
    >>> config
    ConfigProto(allow_soft_placement=True, gpu_options=GPUOptions(allow_growth=True))
    """

    _fields = {
        "allow_soft_placement": False,
        "log_device_placement": False,
        "device_count": dict,
        "device_filters": list,
        "gpu_options": GPUOptions,
        "graph_options": GraphOptions,
        "inter_op_parallelism_threads": 0,
        "intra_op_parallelism_threads": 0,
        "use_per_session_threads": False,
        "session_inter_op_thread_pool": list,
        "placement_period": 0,
        "operation_timeout_in_ms": 0,
        "rpc_options": None,
        "cluster_def": None,
        "isolate_session_state": False,
        "experimental": None,
        "run_policy": None,
        "wire": None,
        "pushes_in_flight": 0,
    }
    _effective = frozenset({"run_policy", "wire", "pushes_in_flight"})


class RunOptions(_Options):
    """Settings of one run.

    With `trace_level=RunOptions.FULL_TRACE` a run leaves what it did in its `RunMetadata`; one that waits for queues
    longer than `timeout_in_ms` fails with a DeadlineExceededError.
    """

    NO_TRACE, SOFTWARE_TRACE, HARDWARE_TRACE, FULL_TRACE = 0, 1, 2, 3
    _fields = {
        "trace_level": 0,
        "timeout_in_ms": 0,
        "inter_op_thread_pool": 0,
        "output_partition_graphs": False,
        "debug_options": None,
        "report_tensor_allocations_upon_oom": False,
        "experimental": None,
    }
    _effective = frozenset({"trace_level", "timeout_in_ms"})


def in_flight_of(config: Any) -> int:
    """Give how many pushes a session with a ConfigProto, or without one, need not wait for."""
    return int(getattr(config, "pushes_in_flight", 0) or os.environ.get(_IN_FLIGHT_VARIABLE) or 0)
