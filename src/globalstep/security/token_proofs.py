"""Proofs that a caller knows a token, without showing it, on connections without TLS.

A process that listens at an address, or takes it while its task is away, must not learn the token that callers have
for the task. So a caller shows a proof of each call, made of a number that the task's process chose, and the task
proves first that it has the token too:

    caller -> task   authorization: Proof ID ADDRESS NUMBER               (the first call; it is refused)
    task -> caller   globalstep-challenge: CHALLENGE ANSWER               (with the refusal)
    caller -> task   authorization: Proof ID ADDRESS NUMBER HASH PROOF    (the same call again, and all later ones)
    task -> caller   globalstep-reply: REPLY                              (with each reply; a stream begins with it)

    ANSWER = HMAC(token, "task", CHALLENGE, NUMBER, ADDRESS)
    PROOF  = HMAC(token, "caller", CHALLENGE, NUMBER, ADDRESS, method, HASH)
    REPLY  = HMAC(token, "reply", CHALLENGE, NUMBER, ADDRESS, method)
    HASH   = SHA-256 of the call's message; "-" for a stream

ID tells which token is meant. ADDRESS is what the caller dialled, and the task compares it with its own: else a process
that took one task's address could pass everything on to another task that has the same token. CHALLENGE is a random
number of the task's process: a proof is good for no other process. NUMBER is the caller's, so that an ANSWER cannot
have been made before; the task takes each once. A reply without REPLY is not believed, and a stream sends nothing
before it. What is said is not hidden, and neither replies nor what a stream bears are protected: that takes TLS.

HMAC is HMAC-SHA256 (RFC 2104). Layer: shared. Threads: functions and values.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

#: Metadata key of a refusal's challenge.
CHALLENGE_KEY = "globalstep-challenge"
#: Metadata key of what a reply proves itself with.
REPLY_KEY = "globalstep-reply"
SCHEME = "Proof "
#: The hash of a stream, whose messages come later.
STREAM = "-"


@dataclass(frozen=True, slots=True)
class TokenClaim:
    """A caller's claim to a token, and its proof.

    Attributes:
        token_id: Which token it says it has.
        address: "host:port", as it was dialled.
        number: The caller's random number.
        digest: Of the call's message; "" where the caller does not know the task's challenge yet.
        proof: The same.
    """

    token_id: str
    address: str
    number: str
    digest: str = ""
    proof: str = ""

    def __str__(self) -> str:
        """Give the value of the authorization header."""
        return f"{SCHEME}{self.token_id} {self.address} {self.number} {self.digest} {self.proof}".rstrip()

    @classmethod
    def parse(cls, header: str) -> TokenClaim | None:
        """Read an authorization header; None where it is not a claim.

        >>> TokenClaim.parse("Proof 90ab 127.0.0.1:2222 77")
        TokenClaim(token_id='90ab', address='127.0.0.1:2222', number='77', digest='', proof='')
        >>> TokenClaim.parse("Bearer 0123456789abcdef")
        """
        words = header.removeprefix(SCHEME).split(" ")
        if not header.startswith(SCHEME) or len(words) not in (3, 5):
            return None
        return cls(*words)


def token_id(token: str) -> str:
    """Give a name for a token that tells nothing of it."""
    return hashlib.sha256(b"globalstep token id\0" + token.encode()).hexdigest()[:16]


def new_number() -> str:
    """Make a random number that was not used before."""
    return secrets.token_hex(16)


def digest_of(message: bytes) -> str:
    """Give the hash of a call's message."""
    return hashlib.sha256(message).hexdigest()


def answer(token: str, challenge: str, number: str, address: str) -> str:
    """Make the task's proof that it has a token."""
    return _mac(token, "task", challenge, number, address)


def proof(token: str, challenge: str, number: str, address: str, method: str, digest: str) -> str:
    """Make a caller's proof that it has a token, for one message to one process of a task.

    >>> call = "a" * 16, "1", "2", "127.0.0.1:1"
    >>> proof(*call, "Status", STREAM) == proof(*call, "Begin", STREAM)
    False
    """
    return _mac(token, "caller", challenge, number, address, method, digest)


def reply_proof(token: str, challenge: str, number: str, address: str, method: str) -> str:
    """Make the task's proof that it has the token of the caller that it replies to."""
    return _mac(token, "reply", challenge, number, address, method)


def _mac(token: str, *words: str) -> str:
    # No word has a NUL in it, so that no two lists of words are the same text.
    return hmac.new(token.encode(), "\0".join(words).encode(), hashlib.sha256).hexdigest()
