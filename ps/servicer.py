"""The gRPC face of a PS task: serializers, streams and status codes; no decisions.

Floor: ps. Threads: grpc's worker threads, one for the life of every Exchange stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from globalstep.errors import InvalidArgumentError, OpError, code_of
from globalstep.faults import ConnectionCutError
from globalstep.frames import NO_CALL, Assembler, frames_of
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.authorization import CALLER, Caller
from globalstep.ps.control import Control
from globalstep.ps.handler import encode_error

__all__ = ["SERVICE_NAME", "generic_handler"]

_log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]
SERVICE_NAME = SERVICE.full_name
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def generic_handler(control: Control, limit_bytes: int) -> grpc.GenericRpcHandler:
    """Make the handler to add to a grpc server: all unary RPCs of the contract, and Exchange.

    Args:
        control: Carries out the requests.
        limit_bytes: Largest tensor bytes of one message.

    Returns:
        The handler. Exchange gets and gives raw bytes: frames are not parsed by protobuf as a whole.
    """
    handlers: dict[str, Any] = {}
    for method in SERVICE.methods:
        if method.name == "Exchange":
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(_exchange(control, limit_bytes))
            continue
        request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(
            _unary(control, method.name, request),
            response_serializer=reply.SerializeToString,
        )
    return grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)


def _caller(control: Control, name: str, context: grpc.ServicerContext) -> Caller:
    """Find out who calls an RPC; refuse who may not."""
    authorization = control.handler.authorization
    proven = context.auth_context()
    names = [*proven.get("x509_common_name", ()), *proven.get("x509_subject_alternative_name", ())]
    caller = authorization.identify(name, context.invocation_metadata() or (), names, context.peer())
    authorization.check_method(caller, name)
    return caller


def _unary(control: Control, name: str, kind: Any) -> Callable[[bytes, grpc.ServicerContext], Any]:
    def serve(raw: bytes, context: grpc.ServicerContext) -> Any:
        try:
            # A stranger's message is not even parsed.
            caller = _caller(control, name, context)
            try:
                request = kind.FromString(raw)
            except DecodeError as error:
                raise InvalidArgumentError(f"Not a {kind.DESCRIPTOR.full_name}: {error}") from None
            control.handler.authorization.check_method(caller, name, request)
            CALLER.set(caller)
            return control.call(name, request)
        except Exception as error:
            if code_of(error) == 13:
                _log.exception("%s failed", name)
            encoded = encode_error(error)
            # The type travels in the metadata: a status has room for a code and a text only.
            context.set_trailing_metadata((("globalstep-error", encoded.type),))
            context.abort(_CODES[encoded.code], encoded.message)
            raise AssertionError("abort raises") from error

    return serve


def _exchange(control: Control, limit_bytes: int) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]:
    def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            caller = _caller(control, "Exchange", context)
        except OpError as error:
            context.abort(_CODES[error.code], error.message)
            return
        assembler = Assembler(limit_bytes, control.handler.in_flight)
        memory = control.handler.stream_memory(caller)
        for raw in requests:
            try:
                message = assembler.add(raw)
            except Exception as error:
                # The stream's frames can no longer be told apart: say why, and end it.
                context.abort(_CODES[code_of(error)], str(error))
                return
            if message is None:
                continue
            if message.refused is not None:
                yield from frames_of(message.call, reply=pb.Reply(error=encode_error(message.refused)))
                continue
            try:
                reply, pieces = control.handler.handle(message.request or pb.Request(), message.data, memory)
            except ConnectionCutError as error:
                context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
                return
            if message.call != NO_CALL:
                yield from frames_of(message.call, reply=reply, pieces=pieces)
            # A stream that waits for its next request holds no memory of the last one.
            del raw, message, reply, pieces

    return serve
