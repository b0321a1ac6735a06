"""The runs that are written down: scripts, each of which the transcript of its name tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from transcript_recording import Recording

from globalstep.cluster.run_policy import RunPolicy

__all__ = ["RUNS"]

_WITH_LOG, _WITH_WAITS = RunPolicy("log"), RunPolicy(staleness="wait", max_staleness=1)
#: Longer than a part waits for a decision whose worker is silent.
_OVERDUE_SECS = 14.0

#: Name of the transcript -> what makes its lines.
RUNS: dict[str, Callable[[], list[str]]] = {}


def _recorded(title: str, **cluster: Any) -> Callable[[Callable[[Recording], None]], None]:
    def add(script: Callable[[Recording], None]) -> None:
        def lines() -> list[str]:
            with Recording(title, **cluster) as run:
                script(run)
            return run.lines

        RUNS[script.__name__.replace("_", "-")] = lines

    return add


@_recorded("A push to one PS task: one message each way.", ps=1)
def one_ps(run: Recording) -> None:
    (a,) = run.workers(1)
    run.do(a.pushes("u", reads="u"))
    run.say("the answer to the next push is lost: worker a asks again, under the same id")
    run.loses_answer(a, "push")
    run.do(a.pushes("u", reads="u"))


@_recorded("A push over two PS tasks.")
def two_ps(run: Recording) -> None:
    (a,) = run.workers(1)
    run.do(a.pushes("u", "v", reads="uv"))


@_recorded("Two workers push at the same time; worker a's COMMIT is slow.")
def two_workers(run: Recording) -> None:
    a, b = run.workers(2)
    run.keeps(a, "commit")
    first = run.start(a.pushes("u", "v", reads="v"))
    second = run.start(b.pushes("u", "v", reads="v"))
    run.finish(second)
    run.network.release()
    run.finish(first)


@_recorded("A part of a push is wrong: its gradient has another shape than v.")
def refused_stage(run: Recording) -> None:
    (a,) = run.workers(1)
    run.do(a.pushes("u", "v", values={"v": np.ones(2)}))


@_recorded("The answer to PUSH is lost.")
def push_answer_lost(run: Recording) -> None:
    (a,) = run.workers(1)
    run.loses_answer(a, "push")
    run.do(a.pushes("u", "v"))


@_recorded("The answer to COMMIT is lost, with the values; another push comes between.")
def commit_answer_lost(run: Recording) -> None:
    a, b = run.workers(2)
    run.loses_answer(a, "commit")
    run.keeps(a, "commit", 2)
    first = run.start(a.pushes("u", "v", reads="uv"))
    run.wait(0.1)
    run.do(b.pushes("u", "v"))
    run.network.release()
    run.finish(first)


@_recorded("A worker dies between PUSH and COMMIT; another one pushes.")
def dies_after_push(run: Recording) -> None:
    a, b = run.workers(2)
    run.dies(a, before="commit")
    run.do(a.pushes("u", "v"))
    run.do(b.pushes("u", "v"))


@_recorded("A worker dies between PUSH and COMMIT; nobody else pushes.")
def dies_after_push_alone(run: Recording) -> None:
    (a,) = run.workers(1)
    run.dies(a, before="commit")
    run.do(a.pushes("u", "v"))
    run.say("ps 1 has had the part for 10 s")
    run.wait(_OVERDUE_SECS)


@_recorded("A worker dies between STAGE and PUSH.")
def dies_before_push(run: Recording) -> None:
    (a,) = run.workers(1)
    run.dies(a, before="push")
    run.do(a.pushes("u", "v"))
    run.say("ps 1 has had the part for 10 s")
    run.wait(_OVERDUE_SECS)


@_recorded("A worker stands still between STAGE and PUSH, for longer than its parts are kept.")
def sleeps_before_push(run: Recording) -> None:
    (a,) = run.workers(1)
    run.sleeps(a, before="push", secs=_OVERDUE_SECS)
    run.do(a.pushes("u", "v"))


@_recorded("A PS task without a log dies: the chief begins a new life, from the checkpoint.")
def ps_lost(run: Recording) -> None:
    (a,) = run.workers(1)
    with run.unseen():
        checkpoint = run.do(run.chief.does(run.save))
        run.do(a.pushes("u", "v"))
    run.crashes(1)
    run.do(a.pushes("u", "v"))
    run.do(run.chief.does(lambda: run.begin(*checkpoint)))
    run.say("worker a has slept: it knows of nothing")
    run.do(a.pushes("u", "v"))
    run.say("worker a begins its session anew, as client x")
    a.renew()
    with run.unseen():
        run.do(a.joins())
    run.do(a.pushes("u", "v"))


@_recorded("A PS task comes back from its log, in the middle of a push.", policy=_WITH_LOG)
def ps_recovers(run: Recording) -> None:
    (a,) = run.workers(1)
    run.keeps(a, "commit")
    push = run.start(a.pushes("u", "v", reads="v"))
    run.wait(0.1)
    run.crashes(1)
    run.network.release()
    run.finish(push)


@_recorded("The sequencer comes back from its log; the answer to PUSH went down with it.", policy=_WITH_LOG)
def sequencer_recovers(run: Recording) -> None:
    (a,) = run.workers(1)
    with run.unseen():
        run.do(a.pushes("u", "v"))
    run.loses_answer(a, "push")
    run.keeps(a, "push", 2)
    push = run.start(a.pushes("u", "v"))
    run.wait(0.1)
    run.crashes(0)
    run.network.release()
    run.finish(push)


@_recorded("The chief takes a snapshot between two pushes.")
def snapshot(run: Recording) -> None:
    (a,) = run.workers(1)
    run.keeps(a, "commit")
    push = run.start(a.pushes("u", "v"))
    run.wait(0.1)
    run.do(run.chief.does(run.save))
    run.network.release()
    run.finish(push)


@_recorded("The last step: the limit is 1.", limit=1)
def last_step(run: Recording) -> None:
    a, b = run.workers(2)
    run.do(a.pushes("u", "v"), b.pushes("u", "v"))
    run.do(run.chief.does(run.chief.client.finish))
    run.do(a.does(a.client.close), b.does(b.client.close))


@_recorded("Two of three workers make a step; the third is late.")
def late_contribution(run: Recording) -> None:
    a, b, c = run.workers(3)
    run.do(a.contributes(2), b.contributes(2))
    run.do(c.contributes(2))


@_recorded("A read over two PS tasks, which has to be asked twice.")
def consistent_read(run: Recording) -> None:
    a, b = run.workers(2)
    run.keeps(a, "commit")
    push = run.start(a.pushes("u", "v"))
    run.wait(0.1)
    read = run.start(b.pulls("u", "v"))
    run.wait(0.0015)
    run.network.release()
    run.finish([*push, *read])


@_recorded("Two workers make a step together; one of them dies before the next.", leases=True)
def dead_contributor(run: Recording) -> None:
    a, b = run.workers(2)
    with run.unseen():
        run.do(a.contributes(2), b.contributes(2))
    run.say("worker b dies; its lease ends 15 s later")
    b.process.kill()
    run.do(a.contributes(2))


@_recorded("Two workers make a step of three units of work.")
def units(run: Recording) -> None:
    a, b = run.workers(2)
    run.do(a.takes_unit(3), b.takes_unit(3))
    run.do(b.brings_unit(3))
    run.do(a.brings_unit(3))
    run.do(a.takes_unit(3))
    waits = run.start(b.takes_unit(3))
    run.do(a.brings_unit(3))
    run.finish(waits)
    run.do(b.brings_unit(3))


@_recorded(
    "No worker may be more than one push ahead of the slowest.",
    ps=1,
    policy=RunPolicy(staleness="wait", max_staleness=1),
)
def bounded_staleness(run: Recording) -> None:
    a, b = run.workers(2)
    run.do(a.pushes("u"), b.pushes("u"))
    run.do(a.pushes("u"))
    ahead = run.start(a.pushes("u", reads="u"))
    run.wait(0.2)
    run.do(b.pushes("u"))
    run.finish(ahead)


@_recorded("The chief stands still, and is replaced.", leases=True)
def chief_replaced(run: Recording) -> None:
    (a,) = run.workers(1)
    run.do(run.chief.claims_chief())
    run.do(run.chief.does(run.chief.client.open))
    run.say("nothing is heard of the chief for 30 s")
    run.chief.process.stop_for(40.0)
    run.wait(31.0)
    run.do(a.claims_chief(after_secs=30.0))
    run.do(a.does(a.client.open))
    run.say("the old chief wakes up")
    run.wait(20.0)
    run.do(run.chief.does(run.chief.client.finish))


@_recorded("A run begins.", limit=100, begun=False)
def run_begins(run: Recording) -> None:
    run.keeps(run.chief, "push")
    begins = run.start(run.chief.does(run.begin))
    run.wait(0.1)
    (a,) = run.workers(1)
    run.do(a.pulls("v"))
    run.network.release()
    run.finish(begins)
    run.do(a.pulls("v"))
