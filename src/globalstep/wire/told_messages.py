"""What is known of incarnations (globalstep.wire.told), to and from messages.

Layer: shared. Threads: functions; see globalstep.wire.told.
"""

from __future__ import annotations

from collections.abc import Iterable

from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.told import MOST_INCARNATIONS, Known, Told

__all__ = ["read_told", "told_messages"]

#: Steps of one, and characters of the name of each, that are taken from others.
_MOST_STEPS = 64
_MOST_CHARACTERS = 1024
_MOST = 2**63 - 1


def read_told(told: Told, messages: Iterable[pb.Told], trusted: bool = False) -> bool:
    """Take note of what messages say; gives whether there was news.

    Args:
        told: Takes note.
        messages: Of a client, or of a PS task.
        trusted: Of a PS task, whose word on the last entry of an incarnation counts.
    """
    news = False
    for message in list(messages)[:MOST_INCARNATIONS]:
        steps = {name: value for name, value in message.steps.items() if len(name) <= _MOST_CHARACTERS}
        fits = message.incarnation and max(message.index, message.steps_index) <= _MOST
        if fits and len(steps) <= _MOST_STEPS:
            known = Known(message.index, steps, message.steps_index, message.last and trusted)
            news = told.hear(message.incarnation, known) or news
    return news


def told_messages(told: Told) -> list[pb.Told]:
    """Give what is known as messages."""
    return [
        pb.Told(
            incarnation=number,
            index=known.index,
            steps=known.steps,
            steps_index=known.steps_index,
            last=known.last,
        )
        for number, known in told.all().items()
    ]
