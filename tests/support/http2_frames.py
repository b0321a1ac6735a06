"""Frames of HTTP/2 (RFC 9113), written by hand: for what no client of gRPC would send."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Give one frame: 0 DATA, 1 HEADERS, 3 RST_STREAM, 4 SETTINGS, 6 PING, 8 WINDOW_UPDATE, 9 CONTINUATION."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name: str, value: str) -> bytes:
    """Give a header that goes into no table, as HPACK (RFC 7541) writes it."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    rest, size = len(raw) - 127, bytearray([127])
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes(size) + bytes([rest]) + raw
