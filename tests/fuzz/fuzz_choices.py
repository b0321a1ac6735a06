"""Where a fuzzed input comes from: a `random.Random`, seeded, drawn by hypothesis, or made of a fuzzer's bytes."""

from __future__ import annotations

import random

#: Numbers that code gets wrong.
EDGES = (0, 1, 2, 3, 7, 8, 9, 63, 64, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)


class Finding(AssertionError):
    """Something that no input may bring about."""


class ByteChoices(random.Random):
    """Takes every decision from bytes, so that a fuzzer that mutates bytes mutates decisions; zeros at their end."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data = data
        self._at = 0

    def getrandbits(self, k: int) -> int:
        size = (k + 7) // 8
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little") & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(16) / 65536.0


def number(rng: random.Random) -> int:
    """An integer: mostly small, often at an edge."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randrange(4)
    if kind == 1:
        return rng.choice(EDGES)
    if kind == 2:
        return -rng.choice(EDGES)
    return rng.getrandbits(rng.choice((8, 16, 32, 63)))


def noise(rng: random.Random, most: int = 64) -> bytes:
    """Bytes that mean nothing."""
    return rng.getrandbits(8 * (size := rng.randrange(most + 1))).to_bytes(size, "little") if most else b""


def mutated(rng: random.Random, raw: bytes, most: int = 4) -> bytes:
    """Bytes with some flipped, cut out, doubled, or put in; now and then as they were."""
    out = bytearray(raw)
    for _ in range(rng.randrange(most + 1)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind <= 1 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[at:]
        elif kind == 3:
            del out[at : at + rng.randrange(1, 17)]
        elif kind == 4:
            out[at:at] = noise(rng, 16)
        elif kind == 5:
            out[at:at] = out[at : at + rng.randrange(1, 33)]
        else:
            size = rng.choice((1, 2, 4, 8))
            out[at : at + size] = (rng.choice(EDGES) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return bytes(out)
