"""Prometheus metrics of the sessions of a process: of a worker, and of the chief. docs/status.md lists them.

Imported only where GLOBALSTEP_METRICS_PORT is set; needs the extra `metrics`. The port is opened with the first
session, and stays until the process ends.

Layer: worker. Threads: a SessionsCollector is thread-safe.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from globalstep.runtime.metrics_port import MetricsPort, can_be_open, open_port
from globalstep.worker.client.client import ClusterClient

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

__all__ = ["SessionsCollector", "watch"]


class SessionsCollector:
    """Reads what clients count whenever Prometheus asks."""

    def __init__(self) -> None:
        # Guards the set; a leaf.
        self._lock = threading.Lock()
        self._clients: weakref.WeakSet[ClusterClient] = weakref.WeakSet()

    def add(self, client: ClusterClient) -> None:
        """Tell of a client too, as long as it exists."""
        with self._lock:
            self._clients.add(client)

    def describe(self) -> list[Metric]:
        """Give no names beforehand: there are no clients yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Give all metric families as of now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            clients = list(self._clients)
        labels = ["task", "client"]

        def counter(name: str, what: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"globalstep_session_{name}", what, labels=labels)

        def gauge(name: str, what: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"globalstep_session_{name}", what, labels=labels)

        sent = counter("sent_bytes", "Tensor bytes of all requests")
        received = counter("received_bytes", "Tensor bytes of all replies")
        chief = gauge("acts_as_chief", "Whether it acts as chief")
        incarnation = gauge("incarnation", "Incarnation of the run that it is a member of")
        done = gauge("job_done", "Whether it has heard that the job is done")
        retries = CounterMetricFamily(
            "globalstep_session_retries", "Calls that were tried again", labels=[*labels, "rpc"]
        )
        for client in clients:
            who = [client.task, client.client_id]
            bytes_sent, bytes_received = client.traffic
            sent.add_metric(who, bytes_sent)
            received.add_metric(who, bytes_received)
            chief.add_metric(who, float(client.chief_lease.term > 0))
            incarnation.add_metric(who, client.incarnation)
            done.add_metric(who, float(client.job_done()))
            for rpc, count in client.retries.view().items():
                retries.add_metric([*who, rpc], count)
        yield from (sent, received, chief, incarnation, done, retries)


# Guards the two below; a leaf.
_lock = threading.Lock()
_collector = SessionsCollector()
_port: MetricsPort | None = None


def watch(client: ClusterClient, text: str) -> MetricsPort | None:
    """Tell of a client on this process's port.

    Args:
        client: The client.
        text: See metrics_port.metrics_address; used with the first client.

    Returns:
        The port; None where it could not be opened, or the extra is not installed.
    """
    global _port
    if not can_be_open(text):
        return None
    _collector.add(client)
    with _lock:
        if _port is None:
            _port = open_port(text, [_collector])
        return _port
