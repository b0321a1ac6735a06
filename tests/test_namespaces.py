import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import globalstep as gs
from globalstep import lazy
from globalstep.lazy import all_names

ROOT = Path(__file__).resolve().parents[1]
NAMESPACES = [
    "globalstep",
    *(
        f"globalstep.{name}"
        for name in (
            "initializers",
            "layers",
            "debugging",
            "distribute",
            "io",
            "linalg",
            "math",
            "nest",
            "queue",
            "metrics",
            "nn",
            "optim",
            "python_io",
            "random",
            "summary",
            "test",
            "train",
        )
    ),
    *(
        f"globalstep.contrib.{name}"
        for name in (
            *(
                "framework",
                "layers",
                "legacy_seq2seq",
                "losses",
                "metrics",
                "opt",
                "rnn",
                "seq2seq",
                "slim",
                "slim.learning",
            ),
            "training",
        )
    ),
    "globalstep.nn.rnn_cell",
    "globalstep.train.queue_runner",
]


@pytest.mark.parametrize("name", NAMESPACES)
def test_every_name_is_there(name):
    importlib.import_module("globalstep.contrib")
    importlib.import_module("globalstep.train")
    module = importlib.import_module(name)
    assert module.__all__
    missing = []
    for public in module.__all__:
        try:
            getattr(module, public)
        except (AttributeError, ImportError) as error:
            missing.append(f"{public}: {error}")
    assert not missing
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("name", NAMESPACES)
def test_every_function_and_class_is_documented(name):
    module = importlib.import_module(name)
    undocumented = []
    for public in module.__all__:
        value = getattr(module, public)
        # The classes of tensorboard's protobuf messages have no docstrings.
        if callable(value) and not value.__doc__ and not hasattr(value, "DESCRIPTOR"):
            undocumented.append(public)
    assert not undocumented


def test_names_of_the_seeds():
    names = """
        Variable placeholder constant matmul reduce_mean square gradients global_variables_initializer
        initialize_all_variables scalar_summary image_summary histogram_summary merge_summary
        merge_all_summaries Session Graph GraphKeys device name_scope control_dependencies group
        clip_by_value clip_by_norm clip_by_average_norm clip_by_global_norm global_norm stop_gradient
        AggregationMethod IndexedSlices get_variable variable_scope ConfigProto float32 errors app flags
        nn.relu nn.zero_fraction nn.softmax_cross_entropy_with_logits nn.embedding_lookup
        train.GradientDescentOptimizer train.AdagradOptimizer train.MomentumOptimizer train.AdamOptimizer
        train.FtrlOptimizer train.RMSPropOptimizer train.AdadeltaOptimizer train.Optimizer
        train.exponential_decay train.ExponentialMovingAverage train.Coordinator train.LooperThread
        train.QueueRunner train.add_queue_runner train.start_queue_runners train.Saver
        train.latest_checkpoint train.get_checkpoint_state train.update_checkpoint_state
        train.summary_iterator train.SummaryWriter train.global_step train.write_graph
        train.MonitoredTrainingSession train.StopAtStepHook train.CheckpointSaverHook train.StepCounterHook
        train.LoggingTensorHook train.get_or_create_global_step train.Server train.ClusterSpec
        train.replica_device_setter train.Supervisor train.SessionRunHook train.Scaffold
        contrib.framework.get_or_create_global_step contrib.training.GreedyLoadBalancingStrategy
        summary.scalar summary.FileWriter logging.set_verbosity gfile.Exists compat.v1
    """
    missing = []
    for name in names.split():
        value = gs
        try:
            for part in name.split("."):
                value = getattr(value, part)
        except AttributeError as error:
            missing.append(str(error))
    assert not missing


def test_old_and_new_names_are_one_thing():
    assert gs.double is gs.float64
    assert gs.train.queue_runner.QueueRunner is gs.train.QueueRunner


def test_no_module_hides_what_is_public():
    """Importing globalstep.x.y binds x in globalstep: no public function or class is called as a folder or module."""
    modules = {module.name for module in pkgutil.iter_modules(gs.__path__)}
    public = {name for name, (_, attribute) in all_names(gs).items() if attribute}
    assert len(modules) > 20
    # Both at once: modules that can be called.
    assert modules & public == {"jax", "torch"}


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_framework_is_a_name_and_a_module(name):
    """In either order of the two, and without loading the framework."""
    for lines in ("m = importlib.import_module(NAME); v = getattr(globalstep, 'X')",
                  "v = getattr(globalstep, 'X'); m = importlib.import_module(NAME)"):  # fmt: skip
        program = "import sys, importlib, globalstep; " + lines.replace("NAME", f"'globalstep.{name}'")
        program = program.replace("'X'", f"'{name}'") + f"; print(m is v, callable(v), '{name}' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["True", "True", "False"]


@pytest.mark.parametrize(
    ("namespace", "name", "hint"),
    [
        (gs, "autograph", "use gs.cond and gs.while_loop"),
        (gs.nn, "ctc_loss", "wrap them with gs.torch"),
        (gs.train, "CheckpointManager", "use gs.train.Saver"),
        (gs, "no_such_thing", "^module 'globalstep' has no attribute 'no_such_thing'$"),
    ],
)
def test_an_absent_name_says_what_to_use_instead(namespace, name, hint):
    with pytest.raises(AttributeError, match=hint):
        getattr(namespace, name)
    assert not hasattr(namespace, name)


def absent_names():
    """Every name of the tables of what is not here, as a module and a name."""
    from globalstep.tf1 import absent

    tables = {
        "globalstep": absent.ABSENT,
        "globalstep.contrib": absent.ABSENT_IN_CONTRIB,
        "globalstep.contrib.layers": absent.ABSENT_IN_CONTRIB_LAYERS,
        "globalstep.contrib.learn": absent.ABSENT_IN_LEARN,
        "globalstep.contrib.slim": absent.ABSENT_IN_SLIM,
        "globalstep.image": absent.ABSENT_IN_IMAGE,
        "globalstep.nn": absent.ABSENT_IN_NN,
        "globalstep.test": absent.ABSENT_IN_TEST,
        "globalstep.train": absent.ABSENT_IN_TRAIN,
    }
    return [(module, name, hint) for module, hints in tables.items() for name, hint in hints.items()]


def test_each_absent_name_says_what_to_use_instead_however_it_is_reached():
    importlib.import_module("globalstep.contrib")
    silent = []
    for module, name, hint in absent_names():
        ways = (f"import {module}.{name}", f"from {module} import {name}", f"from {module}.{name} import anything")
        for way in ways:
            try:
                exec(way, {})
            except ImportError as error:
                if not str(error).endswith(f": {hint}"):
                    silent.append(f"{way}: {error}")
            else:
                silent.append(f"{way}: no error")
        try:
            getattr(importlib.import_module(module), name)
        except AttributeError as error:
            if not str(error).endswith(f": {hint}"):
                silent.append(f"{module}.{name}: {error}")
    assert len(absent_names()) > 90
    assert not silent


def test_what_is_nobodys_name_is_left_to_python():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'globalstep.no_such_thing'$"):
        importlib.import_module("globalstep.no_such_thing")
    with pytest.raises(ImportError, match="cannot import name 'no_such_thing' from 'globalstep'"):
        exec("from globalstep import no_such_thing", {})


def test_contrib_says_what_there_is():
    with pytest.raises(
        AttributeError, match="of tf.contrib there are crf, data, distributions, estimator, feature_column, framework, "
    ):
        _ = gs.contrib.periodic_resample
    with pytest.raises(AttributeError, match="use gs.estimator, which has the Estimators"):
        _ = gs.contrib.learn.Estimator


def test_hints_are_for_what_is_absent():
    from globalstep.tf1 import absent

    namespaces = {
        gs: absent.ABSENT,
        gs.contrib: absent.ABSENT_IN_CONTRIB,
        gs.nn: absent.ABSENT_IN_NN,
        gs.train: absent.ABSENT_IN_TRAIN,
    }
    for namespace, hints in namespaces.items():
        assert not set(hints) & set(namespace.__all__)


def test_importing_the_face_loads_next_to_nothing():
    program = "import sys, globalstep; print(*(m for m in sys.modules if m in ('numpy', 'grpc')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_namespaces_can_be_imported_from():
    from globalstep.contrib.framework import get_or_create_global_step

    assert get_or_create_global_step is gs.train.get_or_create_global_step


def test_a_namespace_of_its_own():
    made = lazy.nested_namespace("globalstep_test_namespace", {"math": "pi tau=e"}, {"gone": "nothing"})
    try:
        assert (made.pi, made.tau) == (pytest.approx(3.14159, abs=1e-5), pytest.approx(2.71828, abs=1e-5))
        with pytest.raises(AttributeError, match="'gone': nothing"):
            _ = made.gone
    finally:
        del sys.modules["globalstep_test_namespace"]


def test_the_server_has_its_newer_name_and_strategies_say_what_to_use():
    assert gs.distribute.Server is gs.train.Server
    with pytest.raises(AttributeError, match="replica_device_setter"):
        _ = gs.distribute.MirroredStrategy


def test_importing_globalstep_changes_nothing():
    """No finder of modules, no handler of log lines, no variable of the environment, and no library of TensorFlow's."""
    program = """
import logging, os, sys
before = list(sys.meta_path), dict(os.environ), list(logging.getLogger("globalstep").handlers)
import globalstep as gs
gs.optim.SGD, gs.errors.OpError, gs.RunPolicy
assert before == (list(sys.meta_path), dict(os.environ), list(logging.getLogger("globalstep").handlers))
print(*(name for name in sys.modules if name.startswith("globalstep.tf1.names")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
