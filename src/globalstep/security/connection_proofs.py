"""Proofs by which both ends of a connection beside gRPC show that they know its token, without showing it.

The token comes by gRPC, from a task that has proven who it is as far as the cluster asks for that. Who listens at the
address instead of the task, or takes it when the task is gone, does not know the token: it learns neither that nor any
gradient.

    caller -> task   NAME NUMBER          (which token is meant, and a random number of the caller's)
    task -> caller   ANSWER
    caller -> task   PROOF
    task -> caller   the welcome

    NAME   = SHA-256("globalstep connection", token), its first half
    ANSWER = HMAC(token, "task", NUMBER)
    PROOF  = HMAC(token, "caller", NUMBER)

HMAC is HMAC-SHA256 (RFC 2104). What follows is neither hidden nor protected. Layer: shared. Threads: functions.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

TOKEN_BYTES = 32
NAME_BYTES = 16
CLAIM_BYTES = PROOF_BYTES = 32


def name_of(token: bytes) -> bytes:
    """Give a name for a token that tells nothing of it."""
    return hashlib.sha256(b"globalstep connection\0" + token).digest()[:NAME_BYTES]


def claim(token: bytes) -> bytes:
    """Make what a caller begins with, another one each time."""
    return name_of(token) + secrets.token_bytes(CLAIM_BYTES - NAME_BYTES)


def answer(token: bytes, claimed: bytes) -> bytes:
    """Make the task's proof that it knows the token."""
    return _mac(token, b"task", claimed)


def proof(token: bytes, claimed: bytes) -> bytes:
    """Make the caller's proof that it knows the token.

    >>> begin = claim(bytes(32))
    >>> proof(bytes(32), begin) == answer(bytes(32), begin)
    False
    """
    return _mac(token, b"caller", claimed)


def _mac(token: bytes, whose: bytes, claimed: bytes) -> bytes:
    return hmac.new(token, whose + b"\0" + claimed[NAME_BYTES:], hashlib.sha256).digest()
