"""Known progress of incarnations (globalstep.wire.known_progress), to and from messages.

Layer: shared. Threads: functions; see globalstep.wire.known_progress.
"""

from __future__ import annotations

from collections.abc import Iterable

from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.known_progress import MOST_INCARNATIONS, Known, KnownProgress

#: Steps of one, and characters of the name of each, that are taken from others.
_MOST_STEPS = 64
_MOST_CHARACTERS = 1024
_MOST = 2**63 - 1


def read_progress(progress: KnownProgress, messages: Iterable[pb.Told], trusted: bool = False) -> bool:
    """Take note of what messages say; gives whether there was news.

    Args:
        progress: Takes note.
        messages: Of a client that may be chief, or of a PS task.
        trusted: Of a PS task, whose word on the last entry of an incarnation counts.
    """
    news = False
    for message in list(messages)[:MOST_INCARNATIONS]:
        steps = {name: value for name, value in message.steps.items() if len(name) <= _MOST_CHARACTERS}
        largest = max(message.incarnation, message.index, message.steps_index)
        if message.incarnation and largest <= _MOST and len(steps) <= _MOST_STEPS:
            known = Known(message.index, steps, message.steps_index, message.last and trusted)
            news = progress.hear(message.incarnation, known) or news
    return news


def progress_messages(progress: KnownProgress) -> list[pb.Told]:
    """Give what is known as messages."""
    return [
        pb.Told(
            incarnation=number,
            index=known.index,
            steps=known.steps,
            steps_index=known.steps_index,
            last=known.last,
        )
        for number, known in progress.all().items()
    ]
