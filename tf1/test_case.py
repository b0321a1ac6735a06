"""`gs.test.TestCase`: unittest's, with what tests for TensorFlow 1.x call.

Follows TensorFlow 1.15, python/framework/test_util.py.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

from globalstep.deploy.launch.launch import reserve_ports
from globalstep.deploy.server import Server
from globalstep.errors import OpError
from globalstep.tf1.graph.graph import Graph, Node, get_default_graph, reset_default_graph
from globalstep.tf1.sessions.session import Session, get_default_session

__all__ = ["TestCase", "create_local_cluster", "get_temp_dir", "main", "mock"]

_SEED = 87654321
_folders: list[str] = []


def get_temp_dir() -> str:
    """Give a folder for the files of tests: one for all tests of the process, deleted when it ends."""
    if not _folders:
        _folders.append(tempfile.mkdtemp(prefix="globalstep-test-"))
        atexit.register(shutil.rmtree, _folders[0], ignore_errors=True)
    return _folders[0]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the tests of the program's own file, and exit."""
    unittest.main(argv=None if argv is None else list(argv))


def create_local_cluster(
    num_workers: int, num_ps: int, protocol: str = "grpc", worker_config: Any = None, ps_config: Any = None
) -> tuple[list[Server], list[Server]]:
    """Start a cluster within this process.

    Args:
        num_workers: How many workers.
        num_ps: How many PS.
        protocol: Only "grpc".
        worker_config: Accepted as in TensorFlow.
        ps_config: Accepted as in TensorFlow.

    Returns:
        The servers of the workers, and those of the PS; they serve.
    """
    with reserve_ports(num_workers + num_ps) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
    # The ports are free again: a server takes none that somebody holds.
    cluster = {"ps": addresses[:num_ps], "worker": addresses[num_ps:]}
    ps = [Server(cluster, "ps", index, protocol, ps_config) for index in range(num_ps)]
    workers = [Server(cluster, "worker", index, protocol, worker_config) for index in range(num_workers)]
    return workers, ps


class TestCase(unittest.TestCase):
    """A test case with a fresh graph and fixed seeds for each test."""

    # pytest looks for classes of this name: only those that programs derive from it are tests.
    __test__ = False
    _cached: Session | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__test__ = True

    def setUp(self) -> None:
        """Reset the default graph, and seed Python, numpy and the graph."""
        super().setUp()
        random.seed(_SEED)
        np.random.seed(_SEED)
        reset_default_graph()
        get_default_graph().seed = _SEED

    def get_temp_dir(self) -> str:
        """Give a folder for the files of this test."""
        folder = os.path.join(get_temp_dir(), self.id())
        os.makedirs(folder, exist_ok=True)
        return folder

    @contextlib.contextmanager
    def session(
        self, graph: Graph | None = None, config: Any = None, use_gpu: bool = False, force_gpu: bool = False
    ) -> Iterator[Session]:
        """Give a session within a `with` block, which is the default one there.

        Args:
            graph: Its graph; default the current one.
            config: As for `gs.Session`.
            use_gpu: Accepted as in TensorFlow.
            force_gpu: Accepted as in TensorFlow.
        """
        with Session(graph=graph, config=config) as session:
            yield session

    @contextlib.contextmanager
    def cached_session(
        self, graph: Graph | None = None, config: Any = None, use_gpu: bool = False, force_gpu: bool = False
    ) -> Iterator[Session]:
        """Give the same session at each call in a test, which is closed when the test has ended; see `session`."""
        if self._cached is None:
            self._cached = Session(graph=graph, config=config)
            self.addCleanup(self._cached.close)
        with self._cached.graph.as_default(), self._cached.as_default():
            yield self._cached

    def test_session(self, *args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[Session]:
        """Give what `cached_session` gives, or with a graph what `session` gives; older programs call it."""
        if self.id().endswith(".test_session"):
            # A collector of tests by their names finds this one.
            self.skipTest("Not a test.")
        graph = args[0] if args else kwargs.get("graph")
        return (self.cached_session if graph is None else self.session)(*args, **kwargs)

    def evaluate(self, tensors: Any) -> Any:
        """Give the values of nodes, by the default session or the one of `cached_session`."""
        session = get_default_session()
        if session is not None:
            return session.run(tensors)
        with self.cached_session() as own:
            return own.run(tensors)

    def checkedThread(  # noqa: N802
        self, target: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> CheckedThread:
        """Give a thread whose errors fail the test when it is joined; it is not started yet."""
        return CheckedThread(self, target, args, kwargs or {})

    def assertNear(self, f1: float, f2: float, err: float, msg: str | None = None) -> None:  # noqa: N802
        """Check that two numbers differ by at most `err`."""
        self.assertTrue(f1 == f2 or abs(f1 - f2) <= err, f"{f1} != {f2} +/- {err}{f' ({msg})' if msg else ''}")

    def assertArrayNear(self, farray1: Any, farray2: Any, err: float, msg: str | None = None) -> None:  # noqa: N802
        """Check that the numbers of two sequences differ by at most `err` each."""
        self.assertEqual(len(farray1), len(farray2), msg)
        for one, other in zip(farray1, farray2, strict=True):
            self.assertNear(float(one), float(other), err, msg)

    def assertNDArrayNear(self, ndarray1: Any, ndarray2: Any, err: float, msg: str | None = None) -> None:  # noqa: N802
        """Check that the distance of two arrays is less than `err`."""
        distance = float(np.linalg.norm(np.asarray(ndarray1) - np.asarray(ndarray2)))
        self.assertLess(distance, err, msg)

    def assertShapeEqual(self, np_array: Any, tf_tensor: Any, msg: str | None = None) -> None:  # noqa: N802
        """Check that an array and a node have the same shape."""
        self.assertAllEqual(np_array.shape, tf_tensor.get_shape().as_list(), msg)

    def assertAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:  # noqa: N802
        """Check that two arrays, or what the nodes give, have equal shapes and elements; NaN equals NaN."""
        one, other = self._value(a), self._value(b)
        self.assertEqual(
            one.shape, other.shape, f"Shape mismatch: expected {one.shape}, got {other.shape}. {msg or ''}"
        )
        np.testing.assert_array_equal(one, other, err_msg=msg or "")

    def assertAllClose(  # noqa: N802
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Check that two arrays, nodes, or structures of these, are near each other.

        Args:
            a: Array, node, or a list, tuple or dict of such.
            b: Like `a`.
            rtol: Allowed difference, relative to `b`.
            atol: Allowed difference.
            msg: Said if they are not.
        """
        if isinstance(a, Mapping):
            self.assertEqual(set(a), set(b), msg)
            for key in a:
                self.assertAllClose(a[key], b[key], rtol, atol, msg)
            return
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            try:
                np.asarray([self._value(item) for item in a], np.float64)
            except ValueError:
                self.assertEqual(len(a), len(b), msg)
                for one, other in zip(a, b, strict=True):
                    self.assertAllClose(one, other, rtol, atol, msg)
                return
            a, b = [self._value(item) for item in a], [self._value(item) for item in b]
        one, other = self._value(a), self._value(b)
        self.assertEqual(
            one.shape, other.shape, f"Shape mismatch: expected {one.shape}, got {other.shape}. {msg or ''}"
        )
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=msg or "")

    def assertAllCloseAccordingToType(self, a: Any, b: Any, **kwargs: Any) -> None:  # noqa: N802
        """Check that two arrays or nodes are near each other, as near as the coarser of their dtypes allows.

        Args:
            a: Array or node.
            b: Like `a`.
            **kwargs: `rtol` and `atol`; `float_rtol` and `float_atol`, `half_rtol` and `half_atol` if one is of float32
                or float16; `msg`.
        """
        one, other = self._value(a), self._value(b)
        allowed = {key: kwargs.pop(key, 1e-6) for key in ("rtol", "atol")}
        for dtype, prefix, least in ((np.float32, "float", 1e-6), (np.float16, "half", 1e-3)):
            for key in allowed:
                tolerance = kwargs.pop(f"{prefix}_{key}", least)
                if dtype in (one.dtype, other.dtype):
                    allowed[key] = max(allowed[key], tolerance)
        self.assertAllClose(one, other, **allowed, **kwargs)

    def assertNotAllClose(self, a: Any, b: Any, **kwargs: Any) -> None:  # noqa: N802
        """Check that two arrays or nodes are not near each other."""
        try:
            self.assertAllClose(a, b, **kwargs)
        except AssertionError:
            return
        self.fail("The two values are close at all elements")

    @contextlib.contextmanager
    def assertRaisesWithPredicateMatch(  # noqa: N802
        self, exception_type: type[BaseException], expected_err_re_or_predicate: Any
    ) -> Iterator[None]:
        """Check that a `with` block raises an error.

        Args:
            exception_type: Of what class.
            expected_err_re_or_predicate: A regular expression for its text, or a function of the error.
        """
        try:
            yield
        except exception_type as error:
            expected = expected_err_re_or_predicate
            if callable(expected):
                self.assertTrue(expected(error), f"Exception of type {type(error)}: {error}")
            else:
                self.assertRegex(str(error), expected)
        else:
            self.fail(f"{exception_type.__name__} not raised")

    def assertRaisesOpError(self, expected_err_re_or_predicate: Any) -> Any:  # noqa: N802
        """Check that a `with` block raises an OpError; see assertRaisesWithPredicateMatch."""
        return self.assertRaisesWithPredicateMatch(OpError, expected_err_re_or_predicate)

    # unittest dropped these names in Python 3.12.
    assertItemsEqual = unittest.TestCase.assertCountEqual  # noqa: N815
    assertRaisesRegexp = unittest.TestCase.assertRaisesRegex  # noqa: N815
    assertRegexpMatches = unittest.TestCase.assertRegex  # noqa: N815

    def assertStartsWith(self, actual: str, expected_start: str, msg: str | None = None) -> None:  # noqa: N802
        """Check how a text begins."""
        self.assertTrue(actual.startswith(expected_start), msg or f"{actual!r} does not start with {expected_start!r}")

    def _value(self, item: Any) -> Any:
        return np.asarray(self.evaluate(item) if isinstance(item, Node) else item)


class CheckedThread:
    """A thread whose error fails the test that joins it.

    Args:
        testcase: The test.
        target: What it does.
        args: Arguments of `target`.
        kwargs: Arguments of `target` by name.

    Threads: started and joined by the test.
    """

    def __init__(
        self, testcase: TestCase, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._testcase = testcase
        self._error: Exception | None = None

        def run() -> None:
            try:
                target(*args, **kwargs)
            except Exception as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="test")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait for its end; fails the test if it has failed."""
        self._thread.join()
        if self._error is not None:
            self._testcase.fail(f"Error in checkedThread: {self._error}")

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._thread.is_alive()
