"""What programs of TensorFlow 0.x and of other parts of it are told: the right hint, and never a wrong result."""

import subprocess
import sys

import numpy as np
import pytest

import globalstep as gs


def test_the_order_of_arguments_of_split_is_named():
    x = gs.constant(np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match=r"TensorFlow 0.x's order of arguments.*: split\(value, 3, 1\)\."):
        gs.split(1, 3, x)
    assert len(gs.split(x, 3, 1)) == 3


def test_the_axes_of_reverse_as_booleans_are_named_not_taken_for_numbers():
    x = gs.constant(np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match=r"reverse\(tensor, \[0\]\)"):
        gs.reverse(x, [True, False])
    with gs.Session() as session:
        assert session.run(gs.reverse(x, [0])).shape == (2, 3)


@pytest.mark.parametrize("name", ["tpu", "batch_matmul", "inv", "contrib.nccl", "test.Benchmark"])
def test_a_name_that_is_not_here_has_its_hint(name):
    *path, last = name.split(".")
    module = getattr(gs, path[0]) if path else gs
    with pytest.raises(AttributeError, match=f"has no attribute {last!r}: "):
        getattr(module, last)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["tpu", "contrib.nccl", "test.Benchmark", "placeholdr"])
def test_python_suggests_a_name_that_is_spelled_alike_only_where_there_is_no_hint(name):
    # Python looks for one when it prints an error that nobody has caught.
    command = [sys.executable, "-c", f"import globalstep as tf; tf.{name}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 1
    assert ("Did you mean: 'placeholder'?" if name == "placeholdr" else ": ") in ended.stderr
    assert ("Did you mean" in ended.stderr) == (name == "placeholdr")


def test_there_are_no_gpus_to_ask_for():
    assert gs.test.is_built_with_cuda() is False
    assert gs.test.is_built_with_rocm() is False
    assert gs.test.is_gpu_available(cuda_only=True) is False
    assert gs.test.gpu_device_name() == ""


def test_names_that_programs_of_0_and_1_use():
    assert gs.train.SyncReplicasOptimizerV2 is gs.train.SyncReplicasOptimizer
    with gs.Graph().as_default():
        gs.Variable(1.0)
        gs.train.Saver(write_version=gs.train.SaverDef.V1)
        image = gs.image.per_image_whitening(np.arange(12.0, dtype=np.float32).reshape(2, 2, 3))
        with gs.Session() as session:
            assert abs(float(np.mean(session.run(image)))) < 1e-6
            assert [value.tolist() for value in session.run(gs.listdiff([1, 2, 3], [2]))] == [[1, 3], [0, 2]]
            assert session.run([gs.arg_max([1, 3, 2], 0), gs.arg_min([1, 3, 2], 0)]) == [1, 0]


@pytest.mark.parametrize("name", ["models", "ModeKeys"])
def test_what_contrib_learn_had_says_what_to_use(name):
    with pytest.raises(AttributeError, match="use gs.estimator, which has the Estimators"):
        getattr(gs.contrib.learn, name)
