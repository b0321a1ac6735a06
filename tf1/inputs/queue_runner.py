"""QueueRunner: the threads that keep a queue filled, and close it when its input ends.

Follows TensorFlow 1.15, python/training/queue_runner_impl.py.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.errors import OutOfRangeError
from globalstep.tf1.graph.graph import Graph, GraphKeys, Node, add_to_collection, session_or_default
from globalstep.tf1.inputs.queue_base import QueueBase

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session


_log = logging.getLogger("globalstep")


class QueueRunner:
    """Runs enqueue operations, each in a thread of its own, until the input ends or all stop.

    When an enqueue operation raises one of `queue_closed_exception_types`, its thread ends; the last one
    closes the queue, so its consumers get what is left and then OutOfRangeError. Any other error
    stops the Coordinator, or, without one, is kept in `exceptions_raised`.

    Args:
        queue: The queue.
        enqueue_ops: Operations to run, one thread each; the same one may come several times.
        close_op: Operation that closes the queue once pending enqueues are in; default made here.
        cancel_op: Operation that closes it at once; default made here.
        queue_closed_exception_types: Errors by which an enqueue operation says that its input ended.

    Raises:
        ValueError: Without a queue or operations.
        TypeError: If `queue_closed_exception_types` is no tuple of error types.
    """

    def __init__(
        self,
        queue: QueueBase | None = None,
        enqueue_ops: Sequence[Node] | None = None,
        close_op: Node | None = None,
        cancel_op: Node | None = None,
        queue_closed_exception_types: tuple[type[BaseException], ...] | None = None,
    ) -> None:
        if queue is None or not enqueue_ops:
            raise ValueError("Must provide queue and enqueue_ops.")
        types = (OutOfRangeError,) if queue_closed_exception_types is None else queue_closed_exception_types
        if not isinstance(types, tuple) or not types or not all(_is_error_type(kind) for kind in types):
            raise TypeError("queue_closed_exception_types, when provided, must be a tuple of error types")
        self._queue = queue
        self._enqueue_ops = list(enqueue_ops)
        self._close_op = queue.close() if close_op is None else close_op
        self._cancel_op = queue.close(cancel_pending_enqueues=True) if cancel_op is None else cancel_op
        self._closed_types = types
        # Guards what follows; a leaf: no operation runs under it.
        self._lock = threading.Lock()
        #: How many threads still enqueue, for each session.
        self._runs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._exceptions: list[BaseException] = []

    @property
    def name(self) -> str:
        """The name of the queue's node."""
        return self._queue.name

    @property
    def queue(self) -> QueueBase:
        """The queue."""
        return self._queue

    @property
    def enqueue_ops(self) -> list[Node]:
        """The operations, one for each thread."""
        return list(self._enqueue_ops)

    @property
    def close_op(self) -> Node:
        """The operation that closes the queue when the input has ended."""
        return self._close_op

    @property
    def cancel_op(self) -> Node:
        """The operation that closes it at once, on a stop."""
        return self._cancel_op

    @property
    def queue_closed_exception_types(self) -> tuple[type[BaseException], ...]:
        """The errors that say that the input has ended."""
        return self._closed_types

    @property
    def exceptions_raised(self) -> list[BaseException]:
        """The errors that no Coordinator took."""
        with self._lock:
            return list(self._exceptions)

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        """Make the threads for a session.

        A queue that a stop closed goes on where it was; one whose input had come to its end stays so.
        `start_queue_runners` starts a pipeline anew where all of it had ended.

        Args:
            sess: The session.
            coord: Takes the errors; when it stops, the queue is closed.
            daemon: Whether the threads keep the process from ending (False) or not.
            start: Whether to start them.

        Returns:
            The threads, registered with `coord`; none when the session has threads that still run.
        """
        with self._lock:
            if self._runs.get(sess, 0) > 0:
                return []
            self._runs[sess] = len(self._enqueue_ops)
            self._exceptions = []
        self._queue.state.resume()
        threads = [
            threading.Thread(
                target=self._enqueue_until_closed,
                args=(sess, op, coord),
                name=f"QueueRunnerThread-{self.name}-{op.name}",
                daemon=daemon,
            )
            for op in self._enqueue_ops
        ]
        if coord is not None:
            threads.append(
                threading.Thread(
                    target=self._close_on_stop,
                    args=(sess, coord),
                    name=f"QueueRunnerThread-{self.name}-close_on_stop",
                    daemon=daemon,
                )
            )
        for thread in threads:
            if coord is not None:
                coord.register_thread(thread)
            if start:
                thread.start()
        return threads

    def _enqueue_until_closed(self, sess: Session, op: Node, coord: Coordinator | None) -> None:
        last = False
        try:
            while coord is None or not coord.should_stop():
                try:
                    sess.run(op)
                except self._closed_types:
                    last = self._leave(sess)
                    if last:
                        self._run_quietly(sess, self._close_op)
                    return
            last = self._leave(sess)
        except BaseException as error:
            self._leave(sess)
            if coord is not None and (coord.should_stop() or getattr(sess, "closed", False)):
                # The stop closed the queue, or the program its session, under this thread's enqueue.
                _log.debug("Ignored exception after a stop, or a close of the session: %s", error)
                return
            if coord is not None:
                coord.request_stop(error)
                return
            _log.error("Exception in QueueRunner: %s", error)
            with self._lock:
                self._exceptions.append(error)
            raise

    def _leave(self, sess: Session) -> bool:
        """Count a thread out; says whether it was the last."""
        with self._lock:
            self._runs[sess] -= 1
            return self._runs[sess] == 0

    def _close_on_stop(self, sess: Session, coord: Coordinator) -> None:
        coord.wait_for_stop()
        if not self._run_quietly(sess, self._cancel_op):
            # The program has closed the session itself, under threads that wait: TensorFlow's close ends those.
            self._queue.state.close(cancel_pending_enqueues=True)

    def _run_quietly(self, sess: Session, op: Node) -> bool:
        """Run an operation that closes the queue; says whether it was run."""
        try:
            sess.run(op)
        except Exception as error:
            # The queue, or the session, is closed already.
            _log.debug("Ignored exception while closing queue %s: %s", self.name, error)
            return False
        return True


def _is_error_type(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Add a QueueRunner to a collection, for `start_queue_runners` to find.

    Args:
        qr: The QueueRunner.
        collection: The collection's name.
    """
    add_to_collection(collection, qr)


def start_queue_runners(
    sess: Any = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """Make, and start, the threads of all QueueRunners of the session's graph.

    Args:
        sess: The session; default the default session.
        coord: Takes the threads' errors and stops them.
        daemon: Whether the process may end while they run.
        start: Whether to start them.
        collection: The collection of the QueueRunners.

    Returns:
        The threads.

    Raises:
        ValueError: Without a session.
        TypeError: If `sess` is none.
    """
    sess = session_or_default(
        sess,
        "Cannot start queue runners: No default session is registered. Use `with sess.as_default()` or pass an "
        "explicit session to gs.start_queue_runners(sess=sess)",
    )
    if not isinstance(getattr(sess, "graph", None), Graph):
        raise TypeError(f"sess must be a `tf.Session` object. Given class: {sess.__class__}")
    if type(sess).__name__ in ("MonitoredSession", "SingularMonitoredSession"):
        return []  # it has started them itself
    runners = sess.graph.get_collection(collection)
    if runners and all(runner.queue.state.is_drained() for runner in runners):
        for runner in runners:
            runner.queue.restart()
    threads = []
    for runner in runners:
        threads += runner.create_threads(sess, coord, daemon, start)
    return threads
