"""gs.test.TestCase, by test cases as programs write them."""

import os
import subprocess
import sys
import unittest

import numpy as np
import pytest

import globalstep as gs


def _raise():
    raise ValueError("wrong")


class _Cases(gs.test.TestCase):
    def test_values(self):
        with self.test_session() as session:
            node = gs.constant([1.0, 2.0]) * 2.0
            self.assertAllEqual(node.eval(), [2.0, 4.0])
            self.assertAllClose(session.run({"a": node}), {"a": np.array([2.0, 4.0])})
            self.assertAllClose([[1.0], [2.0, 3.0]], [[1.0], [2.0, 3.0 + 1e-7]])
            self.assertAllEqual(node, [2.0, 4.0])
            self.assertShapeEqual(np.zeros([2]), node)
        self.assertAllEqual(self.evaluate(gs.constant(3)), 3)

    def test_errors(self):
        with self.assertRaisesOpError("no such"):
            raise gs.errors.NotFoundError("no such file")
        self.assertRaisesRegexp(ValueError, "wrong", _raise)
        self.assertNotAllClose([1.0], [1.1])
        self.assertItemsEqual([1, 2], [2, 1])

    def test_closeness_by_dtype(self):
        self.assertAllCloseAccordingToType(np.float16([1.0]), np.float32([1.0009]))
        self.assertAllCloseAccordingToType(gs.constant([1.0]), [1.01], float_rtol=0.1)
        for one, other in ((np.float32([1.0]), [1.0009]), (np.float64([1.0]), np.float64([1.00001]))):
            with self.assertRaises(AssertionError):
                self.assertAllCloseAccordingToType(one, other, half_rtol=0.1)

    def test_threads_fail_the_test(self):
        thread = self.checkedThread(lambda: [].pop())
        thread.start()
        with pytest.raises(AssertionError, match="pop from empty list"):
            thread.join()

    def test_that_fails(self):
        self.assertAllClose([1.0], [1.1])

    def test_shapes_that_differ(self):
        self.assertAllEqual([[1.0]], [1.0])


def outcome(name):
    result = unittest.TestResult()
    _Cases(name).run(result)
    return [text.strip().splitlines()[-1] for _, text in [*result.errors, *result.failures]]


# pytest is not to collect it itself.
_Cases.__test__ = False


@pytest.mark.parametrize(
    "name", ["test_values", "test_errors", "test_closeness_by_dtype", "test_threads_fail_the_test"]
)
def test_what_holds_passes(name):
    assert outcome(name) == []


def test_what_does_not_hold_fails():
    assert outcome("test_that_fails")
    assert any("Shape mismatch" in line for line in outcome("test_shapes_that_differ"))


def test_each_test_begins_with_a_fresh_graph_and_the_same_seeds():
    class Fresh(gs.test.TestCase):
        drawn = []

        def test_it(self):
            assert not gs.get_default_graph().nodes
            with self.session():
                self.drawn.append((float(gs.random_normal([]).eval()), np.random.rand()))

    for _ in range(2):
        result = unittest.TestResult()
        Fresh("test_it").run(result)
        assert result.wasSuccessful(), result.errors
    assert Fresh.drawn[0] == Fresh.drawn[1]
    Fresh.__test__ = False


def test_a_test_has_one_cached_session_and_as_many_others_as_it_makes():
    class Cached(gs.test.TestCase):
        def test_it(self):
            step = gs.Variable(1.0)
            self.evaluate(gs.global_variables_initializer())
            with self.cached_session() as first, self.test_session() as second:
                assert first is second
                self.evaluate(step.assign_add(1.0))
            assert self.evaluate(step) == 2.0
            with self.session() as other, self.assertRaises(gs.errors.FailedPreconditionError):
                other.run(step)

    Cached.setUp = unittest.TestCase.setUp  # What a program's own need not call.
    result = unittest.TestResult()
    Cached("test_it").run(result)
    assert result.wasSuccessful(), result.errors
    Cached.__test__ = False


def test_a_folder_for_files():
    folder = gs.test.get_temp_dir()
    assert os.path.isdir(folder)
    assert gs.test.get_temp_dir() == folder
    assert os.path.dirname(_Cases("test_values").get_temp_dir()) == folder


@pytest.mark.processes
def test_a_file_of_tests_runs_by_main(tmp_path):
    program = tmp_path / "cases.py"
    program.write_text(
        "import globalstep as tf\n"
        "class CaseTest(tf.test.TestCase):\n"
        "    def test_one(self):\n"
        "        with self.test_session():\n"
        "            self.assertAllEqual(tf.constant([1]).eval(), [1])\n"
        "if __name__ == '__main__':\n"
        "    tf.test.main()\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "OK (skipped=1)" in done.stderr
    assert "Ran 2 tests" in done.stderr


def test_a_cluster_within_the_process_serves():
    workers, ps = gs.test.create_local_cluster(num_workers=1, num_ps=2)
    try:
        with gs.Graph().as_default():
            with gs.device(gs.train.replica_device_setter(ps_tasks=2)):
                a, b = gs.Variable(1.0), gs.Variable(2.0)
            with gs.Session(workers[0].target) as session:
                session.run(gs.global_variables_initializer())
                assert (session.run(a + b), b.initializer.device) == (3.0, "/job:ps/task:1")
    finally:
        for server in (*workers, *ps):
            server.stop()
