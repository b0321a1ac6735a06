"""gRPC's standard service for health on a PS task, for every caller.

It answers every caller the same, one word, so nothing that is sent with the question is taken.

Layer: ps. Threads: grpc's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

HEALTH_NAME = "grpc.health.v1.Health"


class Health:
    """Whether a task serves. Thread-safe.

    Attributes:
        serves: What it says.
    """

    def __init__(self) -> None:
        self.serves = False

    def handler(self) -> grpc.GenericRpcHandler:
        """Make the handler to add to a grpc server. Watching is refused: each watcher would hold a thread."""
        answer = health_pb2.HealthCheckResponse

        def check(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            return answer(status=answer.SERVING if self.serves else answer.NOT_SERVING)

        served: Any = grpc.stream_unary_rpc_method_handler(check, response_serializer=answer.SerializeToString)
        return grpc.method_handlers_generic_handler(HEALTH_NAME, {"Check": served})
