"""A PS task that Ray places on another node: the job begins again there, exactly. Ray is played by the test (rung 4).

Its nodes are addresses of the loopback interface; actors are objects of this process, their tasks real processes.
"""

from __future__ import annotations

import asyncio
import io
import re
import types
from pathlib import Path

import pytest
from counted import assert_counted

from globalstep.deploy.ray import job as ray_launch
from globalstep.deploy.ray.member import Member
from globalstep.errors import InvalidArgumentError, ResourceExhaustedError

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
LAST_STEP = 300


class ActorError(Exception):
    """As ray.exceptions.RayActorError."""


class Reference:
    """What a call gives: to be awaited, or asked of `get`."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        yield from ()
        return self.value


class Stored:
    """What `put` gives; no Reference, so that nobody reads it but an actor."""

    def __init__(self, value):
        self.value = value


class Call:
    """A method of an actor; a stored value among its arguments comes as itself."""

    def __init__(self, function):
        self._function = function

    def remote(self, *arguments):
        return self._function(*(one.value if isinstance(one, Stored) else one for one in arguments))

    def options(self, **options):
        return self


class Actor:
    """One actor: a Member, and another one after it was lost."""

    def __init__(self, host):
        self.host = host
        self.member = Member(lambda: self.host)
        self.place = Call(lambda: Reference(self.member.place()))
        self.signal = Call(lambda number: Reference(self.member.signal(number)))
        self.answer = Call(lambda: Reference(self.member.answer()))
        self.run = Call(self._run)

    async def _run(self, *arguments):
        member = self.member
        parts = member.run(*arguments)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            if member is not self.member:
                break
            yield Reference(part)
        if member is not self.member:
            raise ActorError("the node has died")

    def move(self, host):
        """Lose the node, and be started anew on another."""
        lost, self.host = self.member, host
        self.member = Member(lambda: self.host)
        lost.signal(9)
        lost.close()

    def kill(self):
        self.member.signal(9)
        self.member.close()


class PlayedRay:
    """As much of the module `ray` as is used."""

    def __init__(self, hosts, has_room=True):
        self.actors = []
        self._hosts = iter(hosts)
        self.removed = 0
        self.exceptions = types.SimpleNamespace(RayActorError=ActorError, GetTimeoutError=TimeoutError)
        strategies = types.SimpleNamespace(PlacementGroupSchedulingStrategy=lambda group, index: index)
        self.util = types.SimpleNamespace(
            placement_group=lambda bundles, strategy: types.SimpleNamespace(wait=lambda secs: has_room),
            remove_placement_group=lambda group: setattr(self, "removed", self.removed + 1),
            get_node_ip_address=None, scheduling_strategies=strategies,
        )  # fmt: skip

    def is_initialized(self):
        return True

    def remote(self, kind):
        assert kind is Member
        return self

    def options(self, **options):
        played = types.SimpleNamespace()

        def start(where):
            self.actors.append(Actor(next(self._hosts)))
            return self.actors[-1]

        played.remote = start
        return played

    def get(self, references, timeout):
        return [one.value for one in references]

    def put(self, value):
        """Store a value: an actor's method that is called with what this gives gets the value itself."""
        return Stored(value)

    def kill(self, actor):
        actor.kill()

    def cluster_resources(self):
        return {"CPU": 1.0}

    available_resources = cluster_resources


class Output(io.StringIO):
    """Does something once when a task has said a text."""

    def __init__(self, pattern, action):
        super().__init__()
        self._pattern = pattern
        self._action = action

    def write(self, text):
        if self._action is not None and re.search(self._pattern, text):
            action, self._action = self._action, None
            action()
        return super().write(text)


def play(monkeypatch, ray):
    monkeypatch.setattr(ray_launch, "require_extra", lambda *names: ray)


def test_a_ps_on_another_node_has_the_job_begin_again(monkeypatch, tmp_path):
    ray = PlayedRay(["127.0.0.2", "127.0.0.3", "127.0.0.3", "127.0.0.3"])
    play(monkeypatch, ray)
    output = Output(r"worker:0\] step \d\d\d", lambda: ray.actors[0].move("127.0.0.4"))
    count = ["--last-step", LAST_STEP, "--dir", tmp_path / "run", "--say-steps", 5, "--save-steps", 20]
    end = ray_launch.launch(
        JOB, [*map(str, count), "--pause-secs", "0.02"], ps=2, workers=2, stream=output, log_dir=tmp_path / "logs"
    )
    printed = output.getvalue()
    assert end.code == 0, printed
    assert end.codes == dict.fromkeys(["ps:0", "ps:1", "chief:0", "worker:0"], 0)
    assert printed.count("a task is on another node now: the job begins again") == 1
    assert re.search(r"\[ps:0\] serving on 127\.0\.0\.2:", printed)
    assert re.search(r"\[ps:0\] serving on 127\.0\.0\.4:", printed)
    assert "done after" in (tmp_path / "logs" / "again-1" / "worker-0.log").read_text()
    assert ray.removed == 1
    assert_counted(tmp_path / "run", LAST_STEP)


def test_a_ps_that_may_not_be_started_again_ends_the_job(monkeypatch):
    ray = PlayedRay(["127.0.0.2", "127.0.0.3"])
    play(monkeypatch, ray)
    output = Output(r"chief:0\] step \d", lambda: ray.actors[0].move("127.0.0.4"))
    count = ["--last-step", str(LAST_STEP), "--say-steps", "5", "--pause-secs", "0.02"]
    end = ray_launch.launch(JOB, count, max_restarts=0, stream=output)
    assert end.code == 137, output.getvalue()
    assert "ps:0 was ended by SIGKILL (exit code 137); its last lines" in output.getvalue()
    assert ray.removed == 1


def test_where_there_is_no_room(monkeypatch):
    ray = PlayedRay([], has_room=False)
    play(monkeypatch, ray)
    with pytest.raises(
        ResourceExhaustedError, match=r"no room for 2 tasks \(SPREAD: .* after 3 s; it has {'CPU': 1.0}"
    ):
        ray_launch.launch(JOB, ready_secs=3)
    assert ray.removed == 1


@pytest.mark.parametrize(
    ("script", "sizes", "said"),
    [
        ("none.py", {}, "There is no script none.py"),
        (JOB, {"ps": 0}, "At least one PS"),
        (JOB, {"workers": 0}, "At least"),
    ],
)
def test_what_is_refused(script, sizes, said):
    with pytest.raises(InvalidArgumentError, match=said):
        ray_launch.launch(script, **sizes)
