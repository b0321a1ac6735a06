"""Options of all gRPC channels and servers of globalstep.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

import resource
from typing import Any

#: Messages may be of any size: frames bound what crosses at a time, and the receiver's own limit is
#: checked before memory is taken. Keepalive notices a cut link within seconds. gRPC also sends pings to measure the
#: link: for those it would wait a minute, and send none for keepalive meanwhile. A PS task that comes back is found
#: within a second: gRPC's own pauses between two tries to connect grow to two minutes.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A connection of its own for each channel: those of one process would share one else, and its limit of streams.
    ("grpc.use_local_subchannel_pool", 1),
]

#: A frame has 4 MiB of tensors and its head, and a message of the control plane less than that: gRPC refuses what is
#: larger by its length, before it is read. It hands a message to Python in one piece, and all threads wait meanwhile.
_SERVER_RECEIVES_BYTES = 8 << 20

#: What gRPC reads ahead of a server's stream. By itself it measures the link and reads megabytes more, which a PS task
#: that cannot keep up would have to keep for each of its clients; this much is as fast.
_READ_AHEAD_BYTES = 2 << 20

#: Calls at a time on one connection. A client has one stream and a few calls beside it.
_MOST_STREAMS = 64
#: How long a connection may take to begin to speak HTTP/2, or TLS; and how long it may stay without any call: a client
#: gives a sign of life every few seconds, and connects again when it has something to say.
_HANDSHAKE_MS = 10_000
_IDLE_MS = 120_000

#: Of servers.
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *((name, value) for name, value in CHANNEL_OPTIONS if name != "grpc.max_receive_message_length"),
    ("grpc.max_receive_message_length", _SERVER_RECEIVES_BYTES),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _READ_AHEAD_BYTES),
    ("grpc.max_concurrent_streams", _MOST_STREAMS),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", _IDLE_MS),
]


def connection_limit(clients: int) -> int:
    """Give how many gRPC connections a server for so many clients takes: others must not use up all descriptors."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        files = 1 << 20
    return min(max(clients + 64, files // 2), max(files * 3 // 4, 16))
