"""Tries all that may happen in a small world, breadth first: every order, loss, double and delay of its messages.

A message that was sent may arrive at any time after that, any number of times, or never: that is every order, loss,
double and delay at once. A reply is taken by its client as long as that waits for it. States that differ by the
clients' names alone are one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import push_protocol as spec
from small_world import LIAR, OTHER, Setting, Tasks, swapped

__all__ = ["Found", "search"]

#: Requests of which no copy can come again.
_ONCE = {"begin", "settled"}
#: Of a client: its name, the number of its push, how far it is with that, who has answered, what it knows to be applied
#: and the step that it computes from.
Client = tuple[str, int, str, tuple[int, ...], int, int]
#: Tasks, clients, what is under way, tasks that may yet be lost, questions that may yet be asked.
World = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True)
class Found:
    """What a search has come to.

    Attributes:
        states: How many different ones.
        steps: How often one led to another.
        task_states: Of the PS tasks, each by itself.
        depth: Steps to the farthest state.
        whole: Whether there is nothing left to try.
        wrong: What should not be; "" where all is right.
        trace: The shortest way to that.
    """

    states: int
    steps: int
    task_states: int
    depth: int
    whole: bool
    wrong: str = ""
    trace: tuple[str, ...] = ()


class _Numbered:
    """Gives plain tuples numbers, and tells which number has the one with the clients' names exchanged."""

    def __init__(self, swap: Callable[[Any], Any] = swapped) -> None:
        self.ids: dict[Any, int] = {}
        self.items: list[Any] = []
        self._swap = swap
        self._swapped: dict[int, int] = {}

    def of(self, item: Any) -> int:
        found = self.ids.get(item)
        if found is None:
            found = self.ids[item] = len(self.items)
            self.items.append(item)
        return found

    def swapped(self, number: int) -> int:
        found = self._swapped.get(number)
        if found is None:
            found = self._swapped[number] = self.of(self._swap(self.items[number]))
            self._swapped[found] = number
        return found


class _Search:
    """What may follow each state of a small world."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.tasks = setting, Tasks(setting)
        self._messages, self._clients = _Numbered(), _Numbered()
        # Of what is under way: the numbers of the messages, in order.
        self._nets = _Numbered(lambda net: tuple(sorted(map(self._messages.swapped, net))))
        # What has been found once, by all that it depends on.
        self._received: dict[tuple[int, int], tuple[int, tuple[int, ...]] | None] = {}
        self._steps: dict[tuple[int, int], tuple[int, int, bool, Any, str]] = {}
        self._promises: dict[tuple[int, int], str] = {}

    def first(self) -> World:
        """The world in which both clients have just sent their first STAGE."""
        begun = [self.tasks.step(self.tasks.start(shard), ("begin", "chief", 1)) for shard in (0, 1)]
        self.wrong = "".join(wrong for *_, wrong in begun)
        clients, net = [], []
        for name in OTHER:
            client, sent = _next((name, 0, "", (), 0, 0), 0, self.setting)
            clients.append(self._clients.of(client))
            net += sent
        if self.setting.liar:
            forged = (2, spec.PUSH, (LIAR, 1), 1, (1.0,), None, False)
            net += [(1, "commit", LIAR, 1, (forged,)), (0, "floor", LIAR, 2)]
        under_way = self._nets.of(tuple(sorted(map(self._messages.of, net))))
        return begun[0][0], begun[1][0], clients[0], clients[1], under_way, self.setting.crashes, self.setting.settles

    def least(self, world: World) -> World:
        """Give the one world that stands for this one, and for that with the clients' names exchanged."""
        s0, s1, a, b, net, crashes, settles = world
        other = self._clients.swapped(b)
        if a < other:
            return world
        tasks = self.tasks.swapped(s0), self.tasks.swapped(s1)
        return min(world, (*tasks, other, self._clients.swapped(a), self._nets.swapped(net), crashes, settles))

    def next(self, world: World) -> Iterator[tuple[Any, World, str]]:
        """Give every other world that may follow: what happens, the world after it, and what is wrong there."""
        s0, s1, a, b, net, crashes, settles = world
        under_way = self._nets.items[net]
        for number in under_way:
            message = self._messages.items[number]
            if message[0] == "to":
                _, name, *_, reply = message
                client, sent = self._receive(a if name == "a" else b, number) or (0, ())
                clients = (client, b) if name == "a" else (a, client)
                yield (
                    ("{} hears {}", name, reply),
                    (s0, s1, *clients, self._heard(net, *clients, sent), crashes, settles),
                    "",
                )
                continue
            before = s1 if message[0] else s0
            found = self._steps.get((before, number))
            if found is None:
                found = self._steps[before, number] = self._step(before, number)
            state, answer, once, what, wrong = found
            after = under_way
            if answer >= 0 and answer not in after:
                to = self._messages.items[answer]
                if to[0] != "to" or self._receive(a if to[1] == "a" else b, answer):
                    after = (*after, answer)
            if once:
                after = tuple(other for other in after if other != number)
            if state != before or after is not under_way or wrong:
                tasks = (s0, state) if message[0] else (state, s1)
                mailed = net if after is under_way else self._nets.of(tuple(sorted(after)))
                yield what, (*tasks, a, b, mailed, crashes, settles), wrong or self._check(*tasks)
        for at, task in ((0, s0), (1, s1)):
            held = self.tasks.specified[task]
            if crashes:
                state, _, wrong = self.tasks.step(task, ("crash", "chief"))
                tasks = (s0, state) if at else (state, s1)
                after = self._sent(net, [(shard, "begin", "chief", 2) for shard in (0, 1)])
                yield ("PS {} loses its state", at), (*tasks, a, b, after, crashes - 1, settles), wrong
            if settles and held.staged and held.incarnation == 1:
                parts = tuple(sorted(map(tuple, held.staged)))
                after = self._sent(net, [(0, "settle", f"ps {at}", parts, at, held.applied)])
                yield ("PS {} asks about {}", at, parts), (s0, s1, a, b, after, crashes, settles - 1), ""

    def _step(self, before: int, number: int) -> tuple[int, int, bool, Any, str]:
        """Have a task get a message: its state, what it sends, whether no copy comes, what is said, what is wrong."""
        message = self._messages.items[number]
        at, kind, who, *said = message
        state, reply, wrong = self.tasks.step(before, message[1:])
        answer = -1
        if kind == "settle" and reply[0] == "told":
            answer = self._messages.of((said[1], "settled", who, said[0], reply[1]))
        elif who in OTHER and reply is not None:
            answer = self._messages.of(("to", who, said[0] if kind != "floor" else 0, kind, at, reply))
        return state, answer, kind in _ONCE, ("PS {} gets {} and answers {}", at, message[1:], reply), wrong

    def _check(self, s0: int, s1: int) -> str:
        """What of the promises does not hold between the two tasks."""
        found = self._promises.get((s0, s1))
        if found is None:
            sequencer, other = self.tasks.specified[s0], self.tasks.specified[s1]
            found = ""
            if sequencer.book is not None:
                same = sequencer.incarnation == other.incarnation
                found += "" if spec.exactly_once(sequencer) else "I1 "
                found += "" if not same or spec.in_order(sequencer, other) else "I2 "
                found += "" if spec.stops(sequencer) else "I5 "
            self._promises[s0, s1] = found
        return found

    # ---- What is under way --------------------------------------------------------------------

    def _sent(self, net: int, messages: Iterable[Any]) -> int:
        return self._nets.of(tuple(sorted({*self._nets.items[net], *map(self._messages.of, messages)})))

    def _heard(self, net: int, a: int, b: int, sent: tuple[int, ...]) -> int:
        """Give what is under way once a client has heard something: replies that nobody waits for are left out."""
        items, left = self._messages.items, [*self._nets.items[net], *sent]
        kept = [n for n in left if items[n][0] != "to" or self._receive(a if items[n][1] == "a" else b, n)]
        return self._nets.of(tuple(sorted({*kept})))

    def _receive(self, client: int, message: int) -> tuple[int, tuple[int, ...]] | None:
        """Give what a client becomes by a reply, and what it sends; None where it does not wait for that."""
        key = client, message
        if key not in self._received:
            found = _received(self._clients.items[client], self._messages.items[message], self.setting)
            self._received[key] = found and (self._clients.of(found[0]), tuple(map(self._messages.of, found[1])))
        return self._received[key]


# ---- A client -------------------------------------------------------------------------------------


def _next(client: Client, base: int, setting: Setting) -> tuple[Client, list[Any]]:
    """Go on with the next push, if there is one."""
    name, number, _, _, floor, _ = client
    if number == setting.pushes:
        return (name, number, "end", (), 0, 0), []
    return (name, number + 1, "stage", (), floor, base), [(1, "stage", name, number + 1)]


def _received(client: Client, message: Any, setting: Setting) -> tuple[Client, list[Any]] | None:
    """Give what a client does with a reply, and what it sends then; None where it does not wait for it."""
    name, number, phase, got, floor, base = client
    _, to, of, kind, at, reply = message
    if to != name or kind != phase or (of != number and kind != "floor") or at in got:
        return None
    if reply[0] in ("refused", "failed"):
        return (name, number, "over", (), 0, 0), []
    if phase == "stage":
        return (name, number, "push", (), floor, base), [(0, "push", name, number, floor, base)]
    if phase == "push":
        _, outcome, _, step, told, *_ = reply
        if outcome == spec.ACCEPTED:
            sent = [(1, "commit", name, number, told)]
            if setting.liar and len(told) > 1:
                sent.append((1, "commit", LIAR, 1, told[-1:]))
            return (name, number, "commit", (), floor, base), sent
        back = (1, "commit", name, number, ())
        if outcome == spec.REFUSED_DONE:
            return (name, number, "end", (), 0, 0), [back]
        after, sent = _next(client, step, setting)
        return after, [back, *sent]
    if phase == "commit":
        tells = (0, "floor", name, reply[1])
        if setting.contributions and not setting.units:
            return (name, number, "floor", (), reply[1], base), [tells]
        after, sent = _next((name, number, "", (), reply[1], base), base if setting.units else 0, setting)
        return after, [tells, *sent]
    assert phase == "floor"  # it waits for the step to be made
    return _next(client, reply[1], setting) if reply[1] > base else None


# ---- All of them ----------------------------------------------------------------------------------


def search(setting: Setting, most_secs: float = 600.0, traced: bool = True) -> Found:
    """Go through all states of a small world, or until something is wrong.

    Args:
        setting: What may happen.
        most_secs: After which it ends all the same.
        traced: Remember how each state came about, which takes memory.
    """
    job, ends = _Search(setting), time.monotonic() + most_secs
    first = job.least(job.first())
    frontier, depth, steps = [first], 0, 0
    if job.wrong:
        return Found(1, 0, len(job.tasks.histories), 0, False, job.wrong, ("The run begins.",))
    # A state's hash, of 64 bits -> that of the state before it.
    seen: dict[int, int] = {hash(first): 0}
    while True:
        following: list[World] = []
        for world in frontier:
            here = hash(world) if traced else 0
            for what, after, wrong in job.next(world):
                steps += 1
                if wrong:
                    trace = _way(job, seen, first, world) if traced else (_said(*what),)
                    return Found(len(seen), steps, len(job.tasks.histories), depth + 1, False, wrong, trace)
                after = job.least(after)
                key = hash(after)
                if key not in seen:
                    seen[key] = here
                    following.append(after)
            if time.monotonic() > ends:
                return Found(len(seen), steps, len(job.tasks.histories), depth, False)
        if not following:
            return Found(len(seen), steps, len(job.tasks.histories), depth, True)
        frontier, depth = following, depth + 1


def _said(pattern: str, *what: Any) -> str:
    return pattern.format(*what)


def _way(job: _Search, seen: dict[int, int], first: World, last: World) -> tuple[str, ...]:
    """Say what happened on the way to a state after which something is wrong, and what that is."""
    way = [hash(last)]
    while way[-1] != hash(first):
        way.append(seen[way[-1]])
    lines, world = [], first
    for key in reversed(way[:-1]):
        # Each client keeps its name.
        what, world = next((what, after) for what, after, _ in job.next(world) if hash(job.least(after)) == key)
        lines.append(_said(*what))
    return *lines, next(_said(*what) for what, _, wrong in job.next(world) if wrong)
