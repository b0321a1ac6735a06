"""Known progress of incarnations (globalstep.wire.known_progress), to and from messages.

Layer: shared. Threads: functions; see globalstep.wire.known_progress.
"""

from __future__ import annotations

from collections.abc import Iterable

from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.known_progress import MOST_INCARNATIONS, Known, KnownProgress

__all__ = ["progress_messages", "read_progress"]

#: Steps of one, and characters of the name of each, that are taken from others.
_MOST_STEPS = 64
_MOST_CHARACTERS = 1024
_MOST = 2**63 - 1


def read_progress(
    progress: KnownProgress,
    messages: Iterable[pb.Told],
    trusted: bool = False,
    most_incarnation: int = _MOST,
    vouched: bool = True,
) -> bool:
    """Take note of what messages say; gives whether there was news.

    Args:
        progress: Takes note.
        messages: Of a client, or of a PS task.
        trusted: Of a PS task, whose word on the last entry of an incarnation counts.
        most_incarnation: Later ones are passed over: there was none, and what is said of them would take the place of
            what is known of those that were.
        vouched: Of who may be chief, or of a PS task; see KnownProgress.hear.
    """
    news = False
    for message in list(messages)[:MOST_INCARNATIONS]:
        steps = {name: value for name, value in message.steps.items() if len(name) <= _MOST_CHARACTERS}
        fits = 0 < message.incarnation <= most_incarnation and max(message.index, message.steps_index) <= _MOST
        if fits and len(steps) <= _MOST_STEPS:
            known = Known(message.index, steps, message.steps_index, message.last and trusted)
            news = progress.hear(message.incarnation, known, vouched) or news
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
