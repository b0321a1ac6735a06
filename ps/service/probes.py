"""gRPC's standard services on a PS task: health, for every caller, and reflection, where it was asked for.

Health answers every caller the same, one word, so nothing that is sent with the question is taken. Reflection keeps a
thread for as long as its caller likes: it is for callers who may have the task's status, and has a seat of a stream.

Layer: ps. Threads: grpc's.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from globalstep.errors import OpError
from globalstep.ps.access.door import Door
from globalstep.ps.service.servicer import SERVICE_NAME, refuse

__all__ = ["HEALTH_NAME", "Health", "reflection_handler"]

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


def reflection_handler(door: Door, streams: ThreadPoolExecutor) -> grpc.GenericRpcHandler:
    """Make the handler of reflection, to add to a grpc server.

    Args:
        door: Lets callers in.
        streams: Its threads.
    """
    # Without the option for it, it is not even imported.
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    servicer: Any = reflection.ReflectionServicer((SERVICE_NAME, HEALTH_NAME, reflection.SERVICE_NAME))

    def serve(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            with door.stream("Status", context):
                yield from servicer.ServerReflectionInfo(requests, context)
        except OpError as error:
            refuse(context, error)

    asked: Any = serve
    asked.experimental_thread_pool = streams
    served: Any = grpc.stream_stream_rpc_method_handler(
        asked,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {"ServerReflectionInfo": served})
