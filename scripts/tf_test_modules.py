"""A plugin of pytest that gives TensorFlow's unit tests the modules that they import: names of globalstep.

`tensorflow.python.ops.array_ops` has no file here. It is made when it is imported, and a name of it is looked up among
globalstep's public names, first in the namespace that goes with the module. What only TensorFlow's tests need (test
cases, decorators, private classes) stands in OWN. TF_TREE names the folder with TensorFlow's `tensorflow`, which says
what is a module. See tf_tests.py.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
import time
import types
import unittest
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from google.protobuf import text_format

import globalstep as gs
from globalstep.chief.checkpoints import checkpoint_state
from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.chief.sessions.train_loop import HookedSession
from globalstep.runtime.clock import SystemClock
from globalstep.tf1.metrics.totals import broadcast_weights
from globalstep.tf1.ops import file_writer

TREE = Path(os.environ["TF_TREE"])
#: Modules that tests import from TensorFlow's own files.
FROM_TREE = {
    "tensorflow.contrib.testing.python.framework.fake_summary_writer",
    "tensorflow.contrib.testing.python.framework.util_test",
}


class NoSuchNameError(AttributeError):
    """globalstep has no such name."""


def _namespace(path: str) -> Any:
    return functools.reduce(getattr, path.split("."), gs) if path else gs


#: The last part of a module's name, or the beginning of it -> the namespace whose names come first.
FIRST = dict(  # noqa: C408
    metrics="metrics", losses="losses", image_ops="image", nn="nn", rnn="nn", core_rnn_cell="nn.rnn_cell",
    rnn_cell="nn.rnn_cell", math_ops="math", string_ops="strings", sparse_ops="sparse", linalg="linalg",
    init_ops="initializers", layers="layers", core="layers", summary="summary", writer="summary", gfile="gfile",
    file_io="gfile", lookup_ops="contrib.lookup", data_flow_ops="queue", feature_column="feature_column",
    tf_record="python_io", tf_logging="logging", compat="compat", errors="errors", nest="contrib.framework.nest",
    saved_model="saved_model", training="train", saver="train", opt="contrib.opt",
)  # fmt: skip
ALL = [
    "", "train", "nn", "summary", "errors", "layers", "losses", "metrics", "math", "image", "initializers",
    "linalg", "strings", "sparse", "test", "compat", "python_io", "gfile", "graph_util", "saved_model",
    "nn.rnn_cell", "io", "queue", "feature_column", "data", "estimator", "debugging", "lookup", "logging",
    "keras", "contrib.lookup", "contrib.rnn", "contrib.opt", "contrib.training", "contrib.framework",
    "contrib.layers", "contrib.metrics", "contrib.slim", "contrib.summary", "contrib.framework.nest",
    "contrib.estimator", "contrib.learn"
]  # fmt: skip


def _same(function: Any = None, *args: Any, **options: Any) -> Any:
    """A decorator that changes nothing, with arguments or without."""
    return function if callable(function) and not args and not options else lambda wrapped: wrapped


def _in_graph_mode(function: Any = None, **options: Any) -> Any:
    """`run_in_graph_and_eager_modes`, of which there is one here."""
    if function is None:
        return _in_graph_mode
    if inspect.isclass(function):
        return function

    @functools.wraps(function)
    def run(self: Any, *args: Any, **named: Any) -> Any:
        with gs.Graph().as_default(), self.test_session(use_gpu=False):
            return function(self, *args, **named)

    return run


@contextlib.contextmanager
def _eager_mode() -> Iterator[None]:
    raise unittest.SkipTest("eager mode")
    yield


class TensorFlowTestCase(gs.test.TestCase):
    """`tf.test.TestCase`, with the methods that TensorFlow's own tests have besides."""

    def setUp(self) -> None:
        """Begin with an empty graph."""
        super().setUp()
        gs.reset_default_graph()

    assertItemsEqual = unittest.TestCase.assertCountEqual  # noqa: N815
    assertRaisesRegexp = unittest.TestCase.assertRaisesRegex  # noqa: N815
    assertEquals = unittest.TestCase.assertEqual  # noqa: N815

    def assertDeviceEqual(self, one: Any, other: Any, msg: str | None = None) -> None:  # noqa: N802
        """Compare two devices, whatever their spelling."""
        first, second = (gs.DeviceSpec.from_string(str(each or "")).to_string() for each in (one, other))
        assert first == second, msg

    def assertProtoEquals(self, expected: Any, message: Any, msg: str | None = None) -> None:  # noqa: N802
        """Compare a message with another, or with its text; an attribute of a node is a plain value."""
        if isinstance(expected, str) and isinstance(message, (str, bytes, int, bool)):
            written = message if isinstance(message, str) else str(message)
            assert re.sub(r"^\w+: |['\"]", "", expected) == written, msg
            return
        if isinstance(expected, str):
            expected = text_format.Parse(expected, type(message)())
        assert expected == message, msg


def _increment_global_step(increment: Any, graph: Any = None) -> Any:
    step = gs.train.get_or_create_global_step(graph)
    return gs.assign_add(step, increment)


class _Private:
    """A private class whose tests are of TensorFlow's insides."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise unittest.SkipTest("a private class of TensorFlow's")


def _cross_entropy(features: Any, labels: Any) -> tuple[Any, Any]:
    logits = gs.convert_to_tensor(features)
    loss = gs.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits)
    return loss, gs.gradients(loss, logits)[0]


class _HookedSession(HookedSession):
    """A session with hooks, without what makes it anew."""

    def __init__(self, sess: Any, hooks: Any) -> None:
        super().__init__(sess, hooks)
        self._hooks = hooks

    def should_stop(self) -> bool:  # type: ignore[override]
        """Say whether a hook has asked for a stop."""
        return self._stop_requested

    @property
    def _should_stop(self) -> bool:
        return self._stop_requested

    @_should_stop.setter
    def _should_stop(self, value: bool) -> None:
        self._stop_requested = value

    def run(self, *args: Any, **options: Any) -> Any:
        """Run with hooks, and wait for a checkpoint that is being written."""
        values = super().run(*args, **options)
        for hook in self._hooks:
            if isinstance(hook, gs.train.CheckpointSaverHook):
                hook._finish_save(self._session)
        return values


class _ToReplaced(logging.Handler):
    """Gives what globalstep logs to the functions that a test has put in place of tf_logging's."""

    within = False

    def emit(self, record: logging.LogRecord) -> None:
        """Call the test's function of the record's level."""
        module = sys.modules.get("tensorflow.python.platform.tf_logging")
        name = record.levelname.lower()
        replaced = vars(module).get(name) if module is not None else None
        if replaced is not None and replaced is not getattr(gs.logging, name) and not self.within:
            self.within = True
            try:
                replaced(record.getMessage())
            finally:
                self.within = False


def _monotonic() -> float:
    """Give the time of a clock that a test may have set."""
    return time.time() if isinstance(time.time, mock.Mock) else time.monotonic()


def _update_checkpoint_state(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Any = None,
    latest_filename: str | None = None,
    save_relative_paths: bool = False,
    **options: Any,
) -> None:
    checkpoint_state.update_checkpoint_state(
        save_dir, model_checkpoint_path, all_model_checkpoint_paths, latest_filename,
        save_relative_paths=save_relative_paths, **options,
    )  # fmt: skip


def _unknown_shape(ndims: int | None = None) -> gs.TensorShape:
    return gs.TensorShape(None if ndims is None else [None] * ndims)


def _write_string_to_file(filename: str, content: str) -> None:
    with gs.gfile.GFile(filename, "w") as file:
        file.write(content)


class _Distribution(enum.Enum):
    """An enumeration that nothing here looks at."""

    AUTO = NONE = ON_WRITE = ON_READ = MEAN = SUM = ONLY_FIRST_TOWER = 0


def _resource_variable(*args: Any, **options: Any) -> Any:
    return gs.Variable(*args, **{**options, "use_resource": True})


_DECORATORS = (
    *("run_all_in_graph_and_eager_modes", "run_v1_only", "run_deprecated_v1", "with_c_api", "with_c_shapes"),
    *("enable_c_shapes", "disable_c_shapes", "enable_control_flow_v2", "disable_control_flow_v2", "run_cuda_only"),
    *("use_deterministic_cudnn", "assert_no_new_pyobjects_executing_eagerly", "assert_no_new_tensors"),
    *("assert_no_garbage_created", "with_control_flow_v2"),
)


def _name_of(variable: Any) -> str:
    first = next(iter(variable)) if isinstance(variable, (list, gs.PartitionedVariable)) else variable
    return str(gs.contrib.framework.get_variable_full_name(first))


def _warm_start_var(var: Any, prev_ckpt: str, prev_tensor_name: str | None = None) -> None:
    gs.train.init_from_checkpoint(prev_ckpt, {prev_tensor_name or _name_of(var): var})


def _warm_start_var_with_vocab(
    var: Any,
    current_vocab_path: str,
    current_vocab_size: int,
    prev_ckpt: str,
    prev_vocab_path: str,
    previous_vocab_size: int = -1,
    current_oov_buckets: int = 0,
    prev_tensor_name: str | None = None,
    initializer: Any = None,
    axis: int = 0,
) -> None:
    info = gs.train.VocabInfo(
        current_vocab_path, current_vocab_size, current_oov_buckets, prev_vocab_path, previous_vocab_size, initializer,
        axis,
    )  # fmt: skip
    name, parts = _name_of(var), list(var) if isinstance(var, (list, gs.PartitionedVariable)) else [var]
    gs.train.warm_start(prev_ckpt, parts, {name: info}, {name: prev_tensor_name} if prev_tensor_name else None)


class _SaverBuilder:
    """What classes of tests derive from; none of those is ever made here."""

    SaveableObject = ResourceVariableSaveable = VariableSaveable = SaveSpec = object


def _saver_or_default() -> gs.train.Saver:
    savers = gs.get_collection(gs.GraphKeys.SAVERS)
    if not savers:
        savers = [gs.train.Saver(sharded=True, allow_empty=True)]
        gs.add_to_collection(gs.GraphKeys.SAVERS, savers[0])
    return savers[0]


#: Names that globalstep has not, or has elsewhere.
OWN: dict[str, dict[str, Any]] = {
    "framework.test_util": {
        **dict.fromkeys(_DECORATORS, _same),
        "run_in_graph_and_eager_modes": _in_graph_mode,
        "TensorFlowTestCase": TensorFlowTestCase,
        "is_gpu_available": lambda *args, **options: False,
        "IsMklEnabled": lambda: False,
        "gpu_device_name": str,
        "device": lambda use_gpu=False: contextlib.nullcontext(),
        "NCHWToNHWC": lambda nodes: gs.transpose(nodes, [0, 2, 3, 1]),
        "create_local_cluster": gs.test.create_local_cluster,
    },
    "platform.test": {"TestCase": TensorFlowTestCase, "Benchmark": object, "main": unittest.main, "mock": mock},
    "platform.googletest": {"TestCase": TensorFlowTestCase, "main": unittest.main},
    "eager.context": {
        "executing_eagerly": lambda: False,
        "in_eager_mode": lambda: False,
        "in_graph_mode": lambda: True,
        "graph_mode": contextlib.nullcontext,
        "eager_mode": _eager_mode,
        "num_gpus": lambda: 0,
    },
    "ops.resource_variable_ops": {"ResourceVariable": _resource_variable},
    "ops.variables": {"VariableV1": gs.Variable, "RefVariable": gs.Variable},
    "ops.variable_scope": {
        "variable": gs.Variable,
        "VariableSynchronization": _Distribution,
        "VariableAggregation": _Distribution,
    },
    # A test of bfloat16 alone is skipped; among other types, another stands for it.
    "framework.dtypes": {"half": gs.float16, "double": gs.float64, "bfloat16": gs.float32},
    "training.training_util": {"_increment_global_step": _increment_global_step},
    "training.monitored_session": {
        "_HookedSession": _HookedSession,
        **dict.fromkeys(("_WrappedSession", "_CoordinatedSession", "_RecoverableSession"), _Private),
    },
    "training.checkpoint_management": {
        "update_checkpoint_state_internal": _update_checkpoint_state,
        "meta_graph_filename": lambda prefix, suffix="meta": f"{prefix}.{suffix}",
    },
    "tensorflow.core.protobuf.config_pb2": {"RPCOptions": types.SimpleNamespace},
    "util.compat": {"integral_types": (int, np.integer), "real_types": (int, float, np.integer, np.floating)},
    "lib.io.file_io": {"write_string_to_file": _write_string_to_file},
    "ops.resources": {
        "initialize_resources": lambda resources, name="init": gs.variables_initializer([*resources], name),
        "shared_resources": list,
        "local_resources": list,
    },
    "framework.tensor_shape": {
        "unknown_shape": _unknown_shape,
        "as_shape": gs.TensorShape,
        "scalar": lambda: gs.TensorShape([]),
        "vector": lambda length: gs.TensorShape([length]),
        "matrix": lambda rows, cols: gs.TensorShape([rows, cols]),
    },
    "framework.ops": {"convert_n_to_tensor": lambda values, dtype=None: [*map(gs.convert_to_tensor, values)]},
    "ops.gen_array_ops": {"concat_v2": gs.concat, "snapshot": gs.identity, "_broadcast_to": gs.broadcast_to},
    "ops.gen_nn_ops": {"softmax_cross_entropy_with_logits": _cross_entropy},
    "ops.losses.losses_impl": {"_safe_div": _Private},
    "ops.weights_broadcast_ops": {
        "broadcast_weights": lambda weights, values: broadcast_weights(weights, gs.convert_to_tensor(values)),
    },
    "ops.control_flow_ops": {"merge": _Private},
    "ops.data_flow_ops": {"parallel_dynamic_stitch": gs.dynamic_stitch},
    "training.warm_starting_util": {
        "_infer_var_name": _name_of,
        "_warm_start_var": _warm_start_var,
        "_warm_start_var_with_vocab": _warm_start_var_with_vocab,
    },
    "training.saver": {"BaseSaverBuilder": _SaverBuilder, "_get_saver_or_default": _saver_or_default},
    "keras.engine.training": {"Model": object},
    "training.checkpointable.base": {"CheckpointableBase": object, "Checkpointable": object},
    "training.checkpointable.tracking": {"Checkpointable": object},
    "training.checkpointable.util": {"Checkpoint": None},
    "training.distribute": {"TowerContext": object},
    "training.learning_rate_decay_v2": {
        name: lambda *args, _name=name, **options: lambda: getattr(gs.train, _name)(*args, **options)
        for name in gs.train.__all__
        if name.endswith(("_decay", "_restarts", "piecewise_constant"))
    },
}


def _slice_info(variable: Any) -> Any:
    part = variable.save_slice_info
    extents = ":".join(f"{offset},{size}" for offset, size in zip(part.var_offset, part.var_shape, strict=True))
    return types.SimpleNamespace(full_name=part.full_name, spec=f"{' '.join(map(str, part.full_shape))} {extents}")


#: Private attributes that tests ask for.
gs.PartitionedVariable._get_variable_list = lambda self: [*self]
gs.PartitionedVariable._get_partitions = lambda self: self._partitions
gs.Variable._save_slice_info = property(_slice_info)
gs.PartitionedVariable._concat = gs.PartitionedVariable.as_tensor
gs.Tensor._shape_as_list = lambda self: self.shape.as_list()
gs.Variable._shared_name = property(lambda self: self.op.name)
gs.Variable._initializer_op = property(lambda self: self.initializer)
Coordinator._registered_threads = property(lambda self: self._threads)
for _kind in (gs.train.MonitoredSession, gs.train.SingularMonitoredSession):
    _kind._is_closed = lambda self: self._closed
    _kind._coordinated_creator = property(
        lambda self: types.SimpleNamespace(coord=self._coord, tf_sess=None if self._closed else self._session)
    )
SystemClock.monotonic = staticmethod(_monotonic)
logging.getLogger("globalstep").addHandler(_ToReplaced())
logging.getLogger("globalstep").setLevel(logging.INFO)
#: Names of numpy's that the tests know and newer releases have not.
for _name, _type in dict(object=object, float=float, int=int, bool=bool, str=str, complex=complex).items():  # noqa: C408
    vars(np).setdefault(_name, _type)
np.string_ = np.bytes_


class _Module(types.ModuleType):
    """One of TensorFlow's modules."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "FileWriter":
            # A test puts its own writer in place of globalstep's.
            setattr(file_writer, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self.__name__
        own = OWN.get(module.removeprefix("tensorflow.python."), {})
        if name in own:
            return own[name]
        if _is_module(f"{module}.{name}"):
            return importlib.import_module(f"{module}.{name}")
        last = module.rpartition(".")[2].removesuffix("_impl")
        if name.endswith("_pb2") or module.startswith("tensorflow.core") or last.endswith("_pb2"):
            return _of_proto(module, name)
        advice = ""
        for place in [*_first(module, last), *ALL]:
            try:
                return getattr(_namespace(place), name)
            except Exception as error:
                found = str(error).partition(f"no attribute {name!r}: ")[2]
                advice = advice or (found if not found.startswith("of ") else "")
        raise NoSuchNameError(f"{module}.{name}{advice and ': '}{advice}")


def _first(module: str, last: str) -> list[str]:
    """Give the namespaces that go with a module, most of all."""
    parts = module.split(".")
    contrib = [f"contrib.{parts[2]}"] if parts[1:2] == ["contrib"] and len(parts) > 2 else []
    return [module.removeprefix("tensorflow."), *contrib, *([FIRST[last]] if last in FIRST else [])]


def _of_proto(module: str, name: str) -> Any:
    """Give a module of protocol buffers, or a message of one: globalstep's, else TensorBoard's."""
    if name.endswith("_pb2"):
        return importlib.import_module(f"{module}.{name}")
    for place in ALL:
        with contextlib.suppress(Exception):
            return getattr(_namespace(place), name)
    with contextlib.suppress(ImportError, AttributeError):
        return getattr(importlib.import_module(f"tensorboard.compat.proto.{module.rpartition('.')[2]}"), name)
    raise NoSuchNameError(f"{module}.{name}")


def _is_module(name: str) -> bool:
    path = TREE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file() or path.name.startswith("gen_")


class _Finder(MetaPathFinder, Loader):
    """Finds every module below `tensorflow`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in FROM_TREE:
            return importlib.util.spec_from_file_location(name, TREE.joinpath(*name.split(".")).with_suffix(".py"))
        if name.partition(".")[0] == "tensorflow":
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave it empty: names are looked up when they are asked for."""


sys.meta_path.insert(0, _Finder())


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave out tests of a type that is absent."""
    for item in items:
        if "bfloat16" in item.name.lower():
            item.add_marker(pytest.mark.skip("bfloat16 is absent"))


def pytest_unconfigure() -> None:
    """End the process, with its results written: threads of a failed test may wait for ever."""
    os._exit(0)
