"""What the simulation reports when a promise does not hold."""

from __future__ import annotations

__all__ = ["Violation"]


class Violation(AssertionError):
    """An invariant does not hold.

    Attributes:
        invariant: "I1" to "I5", "log" for a life that should have gone on, or "end" for a job that comes to none.
    """

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
