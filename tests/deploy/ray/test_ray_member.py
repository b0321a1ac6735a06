"""What an actor of Ray does with its task's process, called here without Ray."""

import asyncio
import contextlib
import io
import os
import select
import signal

import pytest

from globalstep.deploy.launch.console import Console
from globalstep.deploy.launch.launcher import Task
from globalstep.deploy.ray.job import _RayLauncher
from globalstep.deploy.ray.member import MOVED, Member, TaskAddress


@pytest.fixture
def member():
    with contextlib.closing(Member(lambda: "10.0.0.1")) as made:
        yield made


def run(member, program, environ=None, stay=None, folder=""):
    *parts, code = member.run(["-c", program], environ or {}, 1, folder, stay)
    return [line for part in parts for line in part], code


def test_its_lines_and_its_exit_code(member, tmp_path):
    program = "import os; print('one\\ntwo'); print('a\\rb', os.getcwd(), end=''); raise SystemExit(3)"
    assert run(member, program, folder=str(tmp_path)) == (["one", "two", f"b {tmp_path}"], 3)


def test_a_process_that_was_killed_has_the_exit_code_of_its_signal(member):
    assert run(member, "import os; os.kill(os.getpid(), 9)") == ([], 137)


def test_the_environment_is_the_nodes_without_what_belongs_to_another_task(member, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("GLOBALSTEP_TOKEN", "of the chief")
    monkeypatch.setenv("OF_THE_NODE", "7")
    program = "import os; print(*(os.environ.get(n) for n in ('TF_CONFIG', 'GLOBALSTEP_TOKEN', 'OF_THE_NODE', 'A')))"
    assert run(member, program, {"A": "1"}) == (["None None 7 1"], 0)


def test_a_task_that_was_moved_does_not_start(member, tmp_path):
    program = f"open({str(tmp_path / 'started')!r}, 'w')"
    assert run(member, program, stay=TaskAddress("10.0.0.2", 1)) == ([], MOVED)
    assert not (tmp_path / "started").exists()


def test_its_port_stays_its_own_also_after_a_restart(member):
    place = member.place()
    assert place.host == "10.0.0.1"
    assert member.place() == place
    with contextlib.closing(Member(lambda: "10.0.0.1")) as again:
        assert run(again, "", stay=place) == ([], 0)
        assert again.place() == place


def test_it_is_asked_to_end(member):
    program = "import signal, sys; signal.signal(15, lambda *_: sys.exit(143)); print('up', flush=True); signal.pause()"
    parts = member.run(["-c", program], {}, 1, "", None)
    assert next(parts) == ["up"]
    member.signal(signal.SIGTERM)
    assert list(parts) == [143]
    # It is not started again by a call that was on its way.
    assert run(member, "print('again')") == ([], 143)
    # But when the job begins again.
    member.place()
    assert run(member, "print('again')") == (["again"], 0)


def test_what_it_left_behind_ends_with_it(member):
    program = (
        "import subprocess, sys; "
        "print(subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']).pid, flush=True)"
    )
    (pid,), code = run(member, program)
    assert code == 0
    try:
        descriptor = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 10)[0]
    finally:
        os.close(descriptor)


def test_secrets_are_in_the_environment_of_the_process_alone(member, monkeypatch):
    program = "import os; print(os.environ['GLOBALSTEP_RUN_TOKEN'], os.environ['A'])"
    *parts, code = member.run(["-c", program], {"A": "1"}, 1, "", None, {"GLOBALSTEP_RUN_TOKEN": "secret"})
    assert (parts, code) == ([["secret 1"]], 0)
    assert "GLOBALSTEP_RUN_TOKEN" not in os.environ


class FakeRay:
    """Keeps what is put into Ray's store, and what actors are called with."""

    def __init__(self):
        self.store = []

    def put(self, value):
        self.store.append(value)
        return len(self.store) - 1


class Called:
    """An actor whose `run` is looked at."""

    def __init__(self):
        self.calls = []
        self.run = self

    def options(self, **_):
        return self

    async def _ended(self):
        async def code():
            return 0

        yield code()

    def remote(self, *arguments):
        self.calls.append(arguments)
        return self._ended()


def test_tokens_go_through_rays_store_and_are_in_no_argument():
    tokens = {"GLOBALSTEP_RUN_TOKEN": "of the run", "GLOBALSTEP_TOKEN": "of the role"}
    task = Task("ps:0", ["-m", "globalstep.ps"], {"A": "1", **tokens})
    store, actor = FakeRay(), Called()
    console = Console(io.StringIO(), {})
    launcher = _RayLauncher(store, {"ps:0": actor}, {"ps:0": None}, [task], console, 0, 1.0, None, 1)
    assert asyncio.run(launcher._run_once(task, None)) == 0
    (arguments,) = actor.calls
    assert not any(secret in repr(arguments) for secret in tokens.values())
    assert arguments[1] == {"A": "1"}
    assert store.store[arguments[-1]] == tokens
