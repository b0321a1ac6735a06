"""A plugin of pytest that gives TensorFlow's unit tests the modules that they import: names of globalstep.

`tensorflow.python.ops.array_ops` has no file here. It is made when it is imported, and a name of it is looked up among
globalstep's public names, first in the namespace that goes with the module. What only TensorFlow's tests need (test
cases, decorators, private classes) stands in OWN. TF_TREE names the folder with TensorFlow's `tensorflow`, which says
what is a module. See tf_tests.py.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import types
import unittest
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest import mock

import globalstep as gs

TREE = Path(os.environ["TF_TREE"])
#: Modules that tests import from TensorFlow's own files.
FROM_TREE = {"tensorflow.contrib.testing.python.framework.fake_summary_writer"}


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
        first, second = (gs.DeviceSpec.from_string(str(each)).to_string() for each in (one, other))
        assert first == second, msg

    def assertProtoEquals(self, expected: Any, message: Any, msg: str | None = None) -> None:  # noqa: N802
        """Compare a message with another, or with its text."""
        if isinstance(expected, str):
            from google.protobuf import text_format

            expected = text_format.Parse(expected, type(message)())
        assert expected == message, msg


def _increment_global_step(increment: Any, graph: Any = None) -> Any:
    step = gs.train.get_or_create_global_step(graph)
    return gs.assign_add(step, increment)


class _Private:
    """A private class whose tests are of TensorFlow's insides."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise unittest.SkipTest("a private class of TensorFlow's")


def _resource_variable(*args: Any, **options: Any) -> Any:
    return gs.Variable(*args, **{**options, "use_resource": True})


_DECORATORS = (
    *("run_all_in_graph_and_eager_modes", "run_v1_only", "run_deprecated_v1", "with_c_api", "with_c_shapes"),
    *("enable_c_shapes", "disable_c_shapes", "enable_control_flow_v2", "disable_control_flow_v2", "run_cuda_only"),
    *("use_deterministic_cudnn", "assert_no_new_pyobjects_executing_eagerly", "assert_no_new_tensors"),
    "assert_no_garbage_created",
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


#: Names that globalstep has not, or has elsewhere.
OWN: dict[str, dict[str, Any]] = {
    "framework.test_util": {
        **dict.fromkeys(_DECORATORS, _same),
        "run_in_graph_and_eager_modes": _in_graph_mode,
        "TensorFlowTestCase": TensorFlowTestCase,
        "is_gpu_available": lambda *args, **options: False,
        "IsMklEnabled": lambda: False,
        "gpu_device_name": str,
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
    "framework.dtypes": {"half": gs.float16, "double": gs.float64},
    "training.training_util": {"_increment_global_step": _increment_global_step},
    "training.monitored_session": dict.fromkeys(
        ("_HookedSession", "_WrappedSession", "_CoordinatedSession", "_RecoverableSession"), _Private
    ),
    "training.warm_starting_util": {
        "_infer_var_name": _name_of,
        "_warm_start_var": _warm_start_var,
        "_warm_start_var_with_vocab": _warm_start_var_with_vocab,
    },
    "training.saver": {"BaseSaverBuilder": object},
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


#: What tests ask of a partitioned Variable.
gs.PartitionedVariable._get_variable_list = lambda self: [*self]


class _Module(types.ModuleType):
    """One of TensorFlow's modules."""

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
        for place in [*_first(module, last), *ALL]:
            with contextlib.suppress(Exception):
                return getattr(_namespace(place), name)
        raise NoSuchNameError(f"{module}.{name}")


def _first(module: str, last: str) -> list[str]:
    """Give the namespaces that go with a module, most of all."""
    parts = module.split(".")
    contrib = [f"contrib.{parts[2]}"] if parts[1:2] == ["contrib"] and len(parts) > 2 else []
    return contrib + ([FIRST[last]] if last in FIRST else [])


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
    return path.is_dir() or path.with_suffix(".py").is_file()


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
