"""What a client knows of what each shard has applied, in the shard's own signed word.

Layer: worker. Threads: a Floors belongs to one PushProtocol.
"""

from __future__ import annotations

from globalstep.proto import globalstep_pb2 as pb

__all__ = ["Floors"]


class Floors:
    """The newest floor of each shard, to be passed on to the sequencer."""

    def __init__(self) -> None:
        self._by_shard: dict[int, pb.Floor] = {}

    @property
    def messages(self) -> list[pb.Floor]:
        """All of them."""
        return list(self._by_shard.values())

    def learn(self, shard: int, answer: pb.CommitReply) -> None:
        """Take note of what a shard said in its answer to a COMMIT; an older one says nothing new."""
        known = self._by_shard.get(shard)
        if not answer.applied:
            return  # nothing was done
        if known is None or answer.applied > known.index:
            self._by_shard[shard] = pb.Floor(shard=shard, index=answer.applied, signature=answer.signature)

    def clear(self) -> None:
        """Forget those of another incarnation."""
        self._by_shard.clear()
