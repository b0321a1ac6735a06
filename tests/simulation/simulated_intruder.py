"""A worker that is let in and lies: of what the sequencer decided, of what shards have applied, of parts it has staged.

What it says is refused, or harms nobody but itself; the invariants are checked as ever, and the job comes to its end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from simulated_network import Network, SimulatedTransport
from simulated_time import Process

from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb

__all__ = ["Intruder"]

#: Its client id; the invariants know it by that.
_CLIENT = "intruder"
_STATUS_SECS = 5.0
_LIES = 150


@dataclass(eq=False)
class Intruder:
    """Its program; the job does not wait for it.

    Args:
        network: Carries its calls.
        process: In which it runs.
        rng: Its choices.
        shards: How many PS tasks there are.
    """

    network: Network
    process: Process
    rng: random.Random
    shards: int
    #: As of Program.
    done: bool = True
    over: bool = False
    _sequence: int = 0
    _statuses: list[pb.StatusReply] = field(default_factory=list)
    #: Genuine entries for shards that it was given once, and its genuine COMMITs.
    _entries: list[tuple[int, pb.Entry]] = field(default_factory=list)
    _sent: list[tuple[int, pb.Request]] = field(default_factory=list)

    def run(self) -> None:
        """Lie until the job is over, or it has lied enough."""
        self._transports = [SimulatedTransport(self.network, self.process, shard) for shard in range(self.shards)]
        for _ in range(_LIES):
            if self.over:
                return
            self.process.sleep(0.5 * self.rng.random())
            try:
                self._statuses = [
                    transport.unary("Status", pb.StatusRequest(brief=True), _STATUS_SECS).result()
                    for transport in self._transports
                ]
                self.rng.choice(
                    [
                        self._push_without_stage,
                        self._take_back,
                        self._forge_entry,
                        self._change_entry,
                        self._forge_floor,
                        self._say_again,
                        self._leave_out,
                    ]
                )()
            except OpError:
                continue

    @property
    def _sequencer(self) -> int:
        return self._statuses[0].sequencer

    def _another(self) -> int:
        return self.rng.choice([shard for shard in range(self.shards) if shard != self._sequencer])

    def _request(self, method: str) -> pb.Request:
        request = pb.Request()
        message = getattr(request, method)
        message.incarnation = self._statuses[self._sequencer].incarnation
        if method == "pull":
            message.client = _CLIENT
        else:
            message.id.client, message.id.sequence = _CLIENT, self._sequence
        return request

    def _send(self, shard: int, request: pb.Request) -> pb.Reply:
        return self._transports[shard].send(request, ()).result().reply

    def _push(self, shard: int) -> pb.PushReply:
        """Have a push accepted in which another shard takes part, and remember that shard's entries."""
        request = self._request("push")
        request.push.others.append(shard)
        answer: pb.PushReply = self._send(self._sequencer, request).push
        self._entries += [(told.shard, entry) for told in answer.pending for entry in told.entries]
        return answer

    def _push_without_stage(self) -> None:
        self._sequence += 1
        self._push(self._another())

    def _take_back(self) -> None:
        """STAGE, PUSH, and then a COMMIT as of a push that was refused."""
        self._sequence += 1
        shard = self._another()
        self._send(shard, self._request("stage"))
        self._push(shard)
        request = self._request("commit")
        self._sent.append((shard, request))
        self._send(shard, request)

    def _forge_entry(self) -> None:
        """An entry that is wholly made up: a push of nothing, or a snapshot."""
        self._sequence += 1
        shard = self._another()
        applied = self._statuses[shard].applied
        request = self._request("commit")
        kind = self.rng.choice([pb.ENTRY_PUSH, pb.ENTRY_SNAPSHOT])
        index = applied + self.rng.choice([1, 2, 2**40])
        entry = request.commit.entries.add(index=index, kind=kind, previous=applied, signature=bytes(16))
        entry.push.CopyFrom(request.commit.id)
        self._send(shard, request)

    def _change_entry(self) -> None:
        """A genuine entry at another place, for another shard, or with other numbers."""
        if not self._entries:
            return
        shard, genuine = self.rng.choice(self._entries[-5:])
        request = self._request("commit")
        entry = request.commit.entries.add()
        entry.CopyFrom(genuine)
        entry.index = self._statuses[shard].applied + self.rng.choice([0, 1])
        entry.previous = self.rng.choice([0, genuine.previous])
        entry.uses.add(optimizer="o", hypers={"learning_rate": 5.0})
        self._send(self._another(), request)

    def _forge_floor(self) -> None:
        """A shard is said to have come as far as the sequencer."""
        request = self._request("pull")
        index = self._statuses[self._sequencer].applied
        request.pull.floors.add(shard=self._another(), index=index, signature=bytes(16))
        self._send(self._sequencer, request)

    def _leave_out(self) -> None:
        """A COMMIT with its own entry, without those of others that come before it."""
        self._sequence += 1
        shard = self._another()
        self._send(shard, self._request("stage"))
        answer = self._push(shard)
        request = self._request("commit")
        request.commit.entries.extend(entry for told in answer.pending for entry in told.entries[-1:])
        self._sent.append((shard, request))
        self._send(shard, request)

    def _say_again(self) -> None:
        """A message that was genuine when it was said first."""
        if self._sent:
            self._send(*self.rng.choice(self._sent))
