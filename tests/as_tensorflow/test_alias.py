"""`import tensorflow` means globalstep where that was asked for, and only there."""

import os
import subprocess
import sys

import pytest

import globalstep as gs
from globalstep.runtime.process_env import ALIAS_FOLDER

pytestmark = pytest.mark.processes

PROGRAM = """
import sys
import tensorflow as tf
import tensorflow.contrib.slim as slim
from tensorflow.contrib import layers
from tensorflow.contrib.learn.python.learn.datasets.mnist import read_data_sets
from tensorflow.contrib.learn.python.learn.utils import saved_model_export_utils
from tensorflow.contrib.training.python.training import hparam
from tensorflow.core.protobuf import config_pb2
from tensorflow.examples.tutorials.mnist import input_data
from tensorflow.python.client import device_lib, timeline
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_ops, variable_scope as vs
from tensorflow.python.platform import gfile
from tensorflow.python.training import moving_averages
from tensorflow_estimator.python.estimator.canned import head
import tensorflow.compat.v1 as tf1
import tensorflow_estimator
import tensorflow.python.lib.io.file_io as file_io
import globalstep
import globalstep.contrib.slim

assert tf.Session is globalstep.Session is tf1.Session
assert tf.__version__ == tf.VERSION == tf1.__version__
assert slim is tf.contrib.slim is globalstep.contrib.slim and layers is globalstep.contrib.layers
assert hparam.HParams is tf.contrib.training.HParams and not hasattr(saved_model_export_utils, "make_export_strategy")
assert tensorflow_estimator.estimator is tf.estimator and head._regression_head
assert read_data_sets is input_data.read_data_sets is tf.contrib.learn.datasets.mnist.read_data_sets
assert config_pb2.ConfigProto is tf.ConfigProto and ops.convert_to_tensor is tf.convert_to_tensor
assert vs.variable_scope is tf.variable_scope and gfile.Exists is tf.gfile.Exists
assert timeline.Timeline and control_flow_ops.with_dependencies and moving_averages.assign_moving_average
assert [one.device_type for one in device_lib.list_local_devices()] == ["CPU"]
assert file_io.file_exists(sys.argv[0])
assert "Session" in dir(tf)
print("ran with", *sys.argv[1:])
"""


def python(*arguments, folder=None, **environ):
    command = [sys.executable, *map(str, arguments)]
    given = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=given, cwd=folder)


def test_a_script_runs_unchanged_with_its_arguments_and_its_exit_code(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"{PROGRAM}\nsys.exit(3)\n")
    done = python("-m", "globalstep.as_tensorflow", script, "--job_name=ps", "-m", "x", folder=tmp_path)
    assert (done.returncode, done.stdout) == (3, "ran with --job_name=ps -m x\n"), done.stderr


def test_a_module_runs_so_and_options_of_python_hold(tmp_path):
    (tmp_path / "inner.py").write_text("import sys, tensorflow; print(tensorflow.VERSION, sys.flags.dev_mode)")
    done = python("-X", "dev", "-m", "globalstep.as_tensorflow", "-m", "inner", folder=tmp_path)
    assert done.stdout == f"{gs.VERSION} True\n", done.stderr


def test_processes_that_the_program_starts_find_it_too(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, subprocess, sys\n"
        "import tensorflow as tf\n"
        "def work(connection):\n"
        "    connection.send(tf.__version__)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    mine, other = context.Pipe()\n"
        "    process = context.Process(target=work, args=(other,))\n"
        "    process.start(); print(mine.recv()); process.join()\n"
        "    command = [sys.executable, '-c', 'import tensorflow as tf; print(tf.VERSION)']\n"
        "    sys.exit(subprocess.run(command).returncode)\n"
    )
    done = python("-m", "globalstep.as_tensorflow", script)
    assert (done.returncode, done.stdout) == (0, f"{gs.VERSION}\n" * 2), done.stderr


def test_the_path_serves_whatever_else_starts_the_program():
    path = python("-m", "globalstep.as_tensorflow", "--path").stdout.strip()
    assert path == ALIAS_FOLDER
    done = python("-c", "import tensorflow.contrib.slim as slim; print(slim.__name__)", PYTHONPATH=path)
    assert done.stdout == "globalstep.contrib.slim\n", done.stderr


def test_a_program_may_ask_for_it_itself_and_its_own_path_stays():
    program = (
        "import os; from globalstep import as_tensorflow; import sys;"
        "tf = as_tensorflow.install(); assert as_tensorflow.install() is tf;"
        "import tensorflow; assert tensorflow is tf; print(os.environ['PYTHONPATH'])"
    )
    done = python("-c", program, PYTHONPATH="mine")
    assert done.stdout == f"{ALIAS_FOLDER}{os.pathsep}mine\n", done.stderr


def test_it_is_refused_where_another_tensorflow_is_imported(tmp_path):
    (tmp_path / "tensorflow.py").write_text("real = True")
    program = "import tensorflow; from globalstep.as_tensorflow import install; install()"
    done = python("-c", program, PYTHONPATH=str(tmp_path))
    assert "FailedPreconditionError: A tensorflow is imported already, from " in done.stderr
    assert "before the first import of tensorflow" in done.stderr


def test_nothing_changes_unless_asked_for():
    done = python("-c", "import globalstep; import importlib.util as u; print(u.find_spec('tensorflow'))")
    assert done.stdout == "None\n" or "as_tensorflow" not in done.stdout


def test_python_without_its_environment_is_refused_in_words():
    done = python("-I", "-m", "globalstep.as_tensorflow", "script.py")
    assert done.returncode == 1
    assert "-E and -I ignore PYTHONPATH" in done.stderr


HINTS = {
    "import tensorflow.tpu": "No module named 'tensorflow.tpu': computation is",
    "from tensorflow import lite": "No module named 'tensorflow.lite': use gs.saved_model",
    "import tensorflow as tf; tf.tpu": "module 'tensorflow' has no attribute 'tpu': computation is",
    "from tensorflow.python import debug; debug.LocalCLIDebugHook": "print values by gs.Print",
    "from tensorflow.python.framework import nosuch": "docs/compatibility.md lists the modules",
    "from tensorflow.python.framework.ops import nosuch": "docs/compatibility.md lists the modules",
    "from tensorflow.python.training import training as t; t.CheckpointManager": "use gs.train.Saver",
    "from tensorflow.contrib import learn; learn.Estimator": "use gs.estimator",
    "import tensorflow.nosuch": "No module named 'tensorflow.nosuch'",
    "from tensorflow import nosuch": "cannot import name 'nosuch' from 'tensorflow'",
}


def test_a_name_that_is_missing_says_what_to_use_instead():
    program = (
        "import sys\n"
        "for line in sys.argv[1:]:\n"
        "    try:\n"
        "        exec(line, {})\n"
        "    except (AttributeError, ImportError) as error:\n"
        "        print(line, '->', error)\n"
    )
    done = python("-m", "globalstep.as_tensorflow", "-c", program, *HINTS)
    said = dict(line.split(" -> ", 1) for line in done.stdout.splitlines())
    assert list(said) == list(HINTS), done.stderr
    assert not {line: said[line] for line, hint in HINTS.items() if hint not in said[line]}
