"""Metrics port: where Prometheus reads the numbers of a PS task; closed unless it is asked for.

Nothing is counted for it: collectors read what is counted anyway, at each request. It needs the extra `metrics`
(prometheus-client). There is no TLS and no token: it is meant for this machine, or a network that is trusted.

Layer: shared. Threads: prometheus-client's own, daemons, one for each port.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from globalstep.cluster.cluster import is_port
from globalstep.errors import FailedPreconditionError, InvalidArgumentError

_log = logging.getLogger("globalstep")

#: Where Prometheus reads a PS task's numbers.
METRICS_PORT_VARIABLE = "GLOBALSTEP_METRICS_PORT"


class Collector(Protocol):
    """Gives metric families at each request, from any thread."""

    def collect(self) -> Any:
        """Give prometheus-client's metric families."""
        ...


def port_of_environ(environ: Mapping[str, str] | None = None) -> str:
    """Give what GLOBALSTEP_METRICS_PORT says; "" for no port."""
    return (os.environ if environ is None else environ).get(METRICS_PORT_VARIABLE, "")


def metrics_address(text: str) -> tuple[str, int]:
    """Read "PORT" or "HOST:PORT"; the host is this machine's loopback unless it is given.

    Raises:
        InvalidArgumentError: If it is neither.

    >>> metrics_address("9100"), metrics_address("0.0.0.0:9100"), metrics_address("[::]:9100")
    (('127.0.0.1', 9100), ('0.0.0.0', 9100), ('::', 9100))
    """
    host, _, port = text.rpartition(":")
    if not is_port(port):
        raise InvalidArgumentError(
            f"The metrics port (or {METRICS_PORT_VARIABLE}) is {text!r}; it must be PORT or HOST:PORT."
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def require_prometheus() -> None:
    """Check that prometheus-client is installed.

    Raises:
        FailedPreconditionError: If it is not.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise FailedPreconditionError(
            "The metrics port needs prometheus-client: pip install 'globalstep[metrics]'."
        ) from None


class MetricsPort:
    """An open port. Close it.

    Args:
        text: See metrics_address; port 0 takes a free one.
        collector: What it tells, besides what is known of every process.

    Raises:
        InvalidArgumentError: If `text` makes no sense.
        OSError: If the port is taken.

    Attributes:
        port: The port that it really is.
    """

    def __init__(self, text: str, collector: Collector) -> None:
        host, port = metrics_address(text)
        import prometheus_client

        registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        prometheus_client.PlatformCollector(registry=registry)
        registry.register(collector)
        self._server, self._thread = prometheus_client.start_http_server(port, host, registry)
        self.port: int = self._server.server_address[1]
        _log.info("Metrics for Prometheus are on http://%s:%d/metrics", host, self.port)

    def close(self) -> None:
        """Close the port. Safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def open_port(text: str, make: Callable[[], Collector]) -> MetricsPort | None:
    """Open a port, or log why there is none: training goes on without metrics.

    Args:
        text: See metrics_address; "" for no port.
        make: Makes what it tells; it is called where prometheus-client is installed.
    """
    if not text:
        return None
    try:
        require_prometheus()
        return MetricsPort(text, make())
    except (FailedPreconditionError, InvalidArgumentError, OSError) as error:
        _log.warning("There is no port for metrics: %s", error)
        return None
