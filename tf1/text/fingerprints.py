"""Fingerprints of strings as TensorFlow computes them: FarmHash's Fingerprint64, Hash64 and SipHash.

Layer: tf1. Source: FarmHash `farmhashna::Hash64`; TensorFlow 1.15 `core/lib/hash/hash.cc`; SipHash-2-4.
"""

from __future__ import annotations

from collections.abc import Sequence

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _half(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _rotated(value: int, by: int) -> int:
    return ((value >> by) | (value << (64 - by))) & _MASK


def _shifted(value: int) -> int:
    return value ^ (value >> 47)


def _mixed(u: int, v: int, factor: int) -> int:
    a = ((u ^ v) * factor) & _MASK
    a ^= a >> 47
    b = ((v ^ a) * factor) & _MASK
    return (_shifted(b) * factor) & _MASK


def _up_to_16(data: bytes) -> int:
    size = len(data)
    if size >= 8:
        factor = (_K2 + size * 2) & _MASK
        a, b = (_word(data, 0) + _K2) & _MASK, _word(data, size - 8)
        c = (_rotated(b, 37) * factor + a) & _MASK
        d = ((_rotated(a, 25) + b) * factor) & _MASK
        return _mixed(c, d, factor)
    if size >= 4:
        factor = (_K2 + size * 2) & _MASK
        return _mixed((size + (_half(data, 0) << 3)) & _MASK, _half(data, size - 4), factor)
    if size:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[size - 1] << 2)
        return (_shifted((y * _K2 ^ z * _K0) & _MASK) * _K2) & _MASK
    return _K2


def _up_to_32(data: bytes) -> int:
    size = len(data)
    factor = (_K2 + size * 2) & _MASK
    a, b = (_word(data, 0) * _K1) & _MASK, _word(data, 8)
    c, d = (_word(data, size - 8) * factor) & _MASK, (_word(data, size - 16) * _K2) & _MASK
    return _mixed(
        (_rotated((a + b) & _MASK, 43) + _rotated(c, 30) + d) & _MASK,
        (a + _rotated((b + _K2) & _MASK, 18) + c) & _MASK,
        factor,
    )


def _up_to_64(data: bytes) -> int:
    size = len(data)
    factor = (_K2 + size * 2) & _MASK
    a, b = (_word(data, 0) * _K2) & _MASK, _word(data, 8)
    c, d = (_word(data, size - 8) * factor) & _MASK, (_word(data, size - 16) * _K2) & _MASK
    y = (_rotated((a + b) & _MASK, 43) + _rotated(c, 30) + d) & _MASK
    z = _mixed(y, (a + _rotated((b + _K2) & _MASK, 18) + c) & _MASK, factor)
    e, f = (_word(data, 16) * factor) & _MASK, _word(data, 24)
    g, h = ((y + _word(data, size - 32)) * factor) & _MASK, ((z + _word(data, size - 24)) * factor) & _MASK
    return _mixed(
        (_rotated((e + f) & _MASK, 43) + _rotated(g, 30) + h) & _MASK,
        (e + _rotated((f + a) & _MASK, 18) + g) & _MASK,
        factor,
    )


def _weak(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    """Give FarmHash's weak hash of the 32 bytes at `at`, with two seeds."""
    w, x, y, z = (_word(data, at + step) for step in (0, 8, 16, 24))
    a = (a + w) & _MASK
    b = _rotated((b + a + z) & _MASK, 21)
    c = a
    a = (a + x + y) & _MASK
    b = (b + _rotated(a, 44)) & _MASK
    return (a + z) & _MASK, (b + c) & _MASK


def _longer(data: bytes) -> int:
    size = len(data)
    x = 81
    y = (81 * _K1 + 113) & _MASK
    z = (_shifted((y * _K2 + 113) & _MASK) * _K2) & _MASK
    v, w = (0, 0), (0, 0)
    x = (x * _K2 + _word(data, 0)) & _MASK
    end = ((size - 1) // 64) * 64
    for at in range(0, end, 64):
        x = (_rotated((x + y + v[0] + _word(data, at + 8)) & _MASK, 37) * _K1) & _MASK
        y = (_rotated((y + v[1] + _word(data, at + 48)) & _MASK, 42) * _K1) & _MASK
        x ^= w[1]
        y = (y + v[0] + _word(data, at + 40)) & _MASK
        z = (_rotated((z + w[0]) & _MASK, 33) * _K1) & _MASK
        v = _weak(data, at, (v[1] * _K1) & _MASK, (x + w[0]) & _MASK)
        w = _weak(data, at + 32, (z + w[1]) & _MASK, (y + _word(data, at + 16)) & _MASK)
        z, x = x, z
    factor = (_K1 + ((z & 0xFF) << 1)) & _MASK
    at = size - 64
    w = ((w[0] + ((size - 1) & 63)) & _MASK, w[1])
    v = ((v[0] + w[0]) & _MASK, v[1])
    w = ((w[0] + v[0]) & _MASK, w[1])
    x = (_rotated((x + y + v[0] + _word(data, at + 8)) & _MASK, 37) * factor) & _MASK
    y = (_rotated((y + v[1] + _word(data, at + 48)) & _MASK, 42) * factor) & _MASK
    x ^= (w[1] * 9) & _MASK
    y = (y + v[0] * 9 + _word(data, at + 40)) & _MASK
    z = (_rotated((z + w[0]) & _MASK, 33) * factor) & _MASK
    v = _weak(data, at, (v[1] * factor) & _MASK, (x + w[0]) & _MASK)
    w = _weak(data, at + 32, (z + w[1]) & _MASK, (y + _word(data, at + 16)) & _MASK)
    z, x = x, z
    return _mixed(
        (_mixed(v[0], w[0], factor) + _shifted(y) * _K0 + z) & _MASK, (_mixed(v[1], w[1], factor) + x) & _MASK, factor
    )


def fingerprint64(data: bytes) -> int:
    """Give FarmHash's Fingerprint64, which stays the same for ever.

    >>> hex(fingerprint64(b"hello"))
    '0xb48be5a931380ce8'
    """
    size = len(data)
    if size <= 16:
        return _up_to_16(data)
    if size <= 32:
        return _up_to_32(data)
    return _up_to_64(data) if size <= 64 else _longer(data)


def hash64(data: bytes) -> int:
    """Give TensorFlow's own Hash64, of its older `string_to_hash_bucket`."""
    factor = 0xC6A4A7935BD1E995
    state = 0xDECAFCAFFE ^ ((len(data) * factor) & _MASK)
    whole = len(data) & ~7
    for at in range(0, whole, 8):
        word = (_word(data, at) * factor) & _MASK
        word ^= word >> 47
        state = ((state ^ ((word * factor) & _MASK)) * factor) & _MASK
    if whole < len(data):
        state = ((state ^ int.from_bytes(data[whole:], "little")) * factor) & _MASK
    state ^= state >> 47
    state = (state * factor) & _MASK
    return state ^ (state >> 47)


def strong_hash(key: Sequence[int], data: bytes) -> int:
    """Give SipHash-2-4 with a key of two words."""
    k0, k1 = (int(word) & _MASK for word in key)
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573

    def rounds(count: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(count):
            v0 = (v0 + v1) & _MASK
            v1 = _rotated(v1, 51) ^ v0
            v0 = _rotated(v0, 32)
            v2 = (v2 + v3) & _MASK
            v3 = _rotated(v3, 48) ^ v2
            v0 = (v0 + v3) & _MASK
            v3 = _rotated(v3, 43) ^ v0
            v2 = (v2 + v1) & _MASK
            v1 = _rotated(v1, 47) ^ v2
            v2 = _rotated(v2, 32)

    whole = len(data) & ~7
    last = ((len(data) & 0xFF) << 56) | int.from_bytes(data[whole:], "little")
    for word in [*(_word(data, at) for at in range(0, whole, 8)), last]:
        v3 ^= word
        rounds(2)
        v0 ^= word
    v2 ^= 0xFF
    rounds(4)
    return v0 ^ v1 ^ v2 ^ v3
