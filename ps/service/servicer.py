"""The gRPC service of a PS task: serializers, streams and status codes; no decisions.

Layer: ps. Threads: grpc's worker threads; those of Exchange are a pool of their own, one for the life of every stream.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from globalstep.errors import InvalidArgumentError, OpError, code_of
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.authorization import CALLER, TokenRevokedError, UnprovenError
from globalstep.ps.access.door import Door
from globalstep.ps.access.log_limit import LogLimit
from globalstep.ps.budget import SMALL_BYTES, Account, Kind
from globalstep.ps.service.control import Control
from globalstep.ps.service.handler import encode_error
from globalstep.ps.service.slow_senders import Stalled
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.runtime.faults import ConnectionCutError
from globalstep.runtime.memory import COUNTED_HEAD_BYTES, PARSED_BYTES
from globalstep.security.token_proofs import CHALLENGE_KEY
from globalstep.wire.frames import CHUNK_BYTES, Assembler, frames_of
from globalstep.wire.message import NO_CALL

_log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]
SERVICE_NAME = SERVICE.full_name
#: Of a unary reply: the message, its bytes, and what gRPC keeps of them until the client has taken it.
_REPLY_COPIES = 3
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def generic_handler(
    control: Control, limit_bytes: int, door: Door, streams: ThreadPoolExecutor
) -> grpc.GenericRpcHandler:
    """Make the handler to add to a grpc server: all unary RPCs of the contract, and Exchange.

    Args:
        control: Carries out the requests.
        limit_bytes: Largest tensor bytes of one message.
        door: Lets callers in.
        streams: The threads of Exchange.

    Returns:
        The handler. Exchange gets and gives raw bytes: frames are not parsed by protobuf as a whole. Unary methods are
        served as if requests were streams, which is the same on the wire: so they begin before their message.
    """
    handlers: dict[str, Any] = {}
    for method in SERVICE.methods:
        if method.name == "Exchange":
            exchange: Any = _exchange(control, limit_bytes, door)
            # Where grpc looks for a pool of the method's own.
            exchange.experimental_thread_pool = streams
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(exchange)
            continue
        request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        handlers[method.name] = grpc.stream_unary_rpc_method_handler(
            _unary(control, method.name, request, door), response_serializer=reply.SerializeToString
        )
    return grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)


def _unary(
    control: Control, name: str, kind: Any, door: Door
) -> Callable[[Iterator[bytes], grpc.ServicerContext], Any]:
    said = LogLimit(SYSTEM_CLOCK)
    # One status of all Variables at a time: while it is made it takes many times its bytes. Taken before all others.
    telling = threading.Lock()

    def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        try:
            with door.call(name, requests, context) as (caller, raw):
                account = control.handler.account(caller)
                # What the message takes counts while it is answered.
                claim = account.claim(len(raw) * PARSED_BYTES) if len(raw) >= COUNTED_HEAD_BYTES else None
                try:
                    request = kind.FromString(raw)
                    control.handler.authorization.check_method(caller, name, request)
                    CALLER.set(caller)
                    is_long = name == "Status" and not request.brief
                    with telling if is_long else contextlib.nullcontext():
                        reply = control.call(name, request)
                except DecodeError as error:
                    raise InvalidArgumentError(f"Not a {kind.DESCRIPTOR.full_name}: {error}") from None
                finally:
                    # Before the client gets an error.
                    del claim
                # A brief status is answered also where memory is short: one that is not taken is ended in any case.
                _hold(account, is_long or name == "Queue", reply.ByteSize(), door, context)
                return reply
        except grpc.RpcError:
            raise  # the call is over: its client left, or sent no message
        except Exception as error:
            if code_of(error) == 13 and (more := said.due((name, type(error).__name__))) is not None:
                _log.exception("%s failed%s", name, more)
            refuse(context, error)
            raise AssertionError("abort raises") from error

    return serve


def _hold(account: Account, counts: bool, nbytes: int, door: Door, context: grpc.ServicerContext) -> None:
    """Have a reply looked at, and counted if it `counts`, until its client has taken it.

    Raises:
        ResourceExhaustedError: If it counts, and there is no memory for it.
    """
    if nbytes < SMALL_BYTES:
        return
    claim = account.budget.claim(Kind.REPLY, account, _REPLY_COPIES * nbytes) if counts else None
    unread = Stalled(context, nbytes, claim)
    door.slow.watch(unread)

    def taken() -> None:
        unread.claim = None
        door.slow.forget(unread)

    if not context.add_callback(taken):  # the call is over already
        taken()


def refuse(context: grpc.ServicerContext, error: Exception) -> None:
    """End a call with an error; raises what grpc wants raised then."""
    encoded = encode_error(error)
    # These travel in the metadata: a status holds a code and a text only.
    trailer: list[Any] = [*(context.trailing_metadata() or ()), ("globalstep-error", encoded.type)]
    if encoded.retry_millis:
        trailer.append(("globalstep-retry-millis", str(encoded.retry_millis)))
    if isinstance(error, UnprovenError):
        trailer.append((CHALLENGE_KEY, error.challenge))
    context.set_trailing_metadata(tuple(trailer))
    context.abort(_CODES[encoded.code], encoded.message)


class _HalfWay:
    """The message that is coming on a stream; see slow_senders.Sender."""

    #: A frame is seen when all of it has come.
    slack_bytes = 2 * CHUNK_BYTES
    needs_memory = True

    def __init__(self, assembler: Assembler, context: grpc.ServicerContext) -> None:
        self._assembler = assembler
        self._context = context

    def under_way(self) -> tuple[object, int] | None:
        """See Sender."""
        return self._assembler.under_way

    def cut_off(self, secs: float) -> None:
        """See Sender."""
        _log.info("A stream of %s was ended: its message did not come on for %.0f s.", self._context.peer(), secs)
        self._context.cancel()


def _exchange(
    control: Control, limit_bytes: int, door: Door
) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]:
    def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with contextlib.ExitStack() as left:
            try:
                caller = left.enter_context(door.stream("Exchange", context))
            except OpError as error:
                refuse(context, error)
            memory = control.handler.stream_memory(caller)
            assembler = Assembler(limit_bytes, memory.account)
            # grpc keeps the error that ends the stream for a while, and so these; not what they hold.
            left.callback(assembler.close)
            left.enter_context(door.slow.watching(_HalfWay(assembler, context)))
            yield from answers(requests, context, assembler, memory)

    def answers(
        requests: Iterator[bytes], context: grpc.ServicerContext, assembler: Assembler, memory: LayoutMemory
    ) -> Iterator[bytes]:
        for raw in requests:
            try:
                message = assembler.add(raw)
            except Exception as error:
                # The stream's frames have lost their boundaries: say why, and end it.
                context.abort(_CODES[code_of(error)], str(error))
                return
            if message is None:
                continue
            if message.refused is not None:
                yield from frames_of(message.call, reply=pb.Reply(error=encode_error(message.refused)))
                continue
            try:
                answered = control.handler.begin(message.request or pb.Request(), message.data, memory)
            except ConnectionCutError as error:
                context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
                return
            except TokenRevokedError as error:
                refuse(context, error)
                return
            assert answered is not None  # without a line it waits here
            reply, pieces = answered
            if message.call != NO_CALL:
                yield from frames_of(message.call, reply=reply, pieces=pieces)
            # A stream that waits for its next request holds no memory of the last one.
            del raw, message, answered, reply, pieces

    return serve
