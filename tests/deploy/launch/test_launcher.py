import asyncio
import io
import os
import select
import signal
import sys

import pytest

from globalstep.deploy.launch.console import PROGRESS_MARK, Console
from globalstep.deploy.launch.launcher import Launcher, Task

#: Stands for a process that runs until it is told to end.
WAIT = "import signal; print('waiting', flush=True); signal.pause()"


class Stream(io.StringIO):
    """Keeps what was written, and calls back on each line with a given text."""

    def __init__(self, text="", then=lambda: None):
        super().__init__()
        self._text, self._then = text, then

    def write(self, written):
        if self._text and self._text in written:
            self._text = ""
            self._then()
        return super().write(written)


def task(name, code):
    return Task(name, [sys.executable, "-S", "-c", code], dict(os.environ))


def launch(*tasks, stream=None, **options):
    stream = stream or Stream()
    console = Console(stream, {})
    options.setdefault("grace_secs", 10.0)
    code = asyncio.run(Launcher(tasks, console, **options).run())
    console.finish()
    return code, stream.getvalue()


def test_the_job_ends_with_its_processes():
    code, output = launch(task("ps:0", "print('serving')"), task("chief:0", "print('trained')"))
    assert code == 0
    assert sorted(output.splitlines()) == ["[chief:0] trained", "[ps:0] serving"]


def test_errors_written_to_stderr_are_shown_too():
    _, output = launch(task("chief:0", "import sys; print('oh', file=sys.stderr)"))
    assert output == "[chief:0] oh\n"


def test_a_long_line_and_one_without_an_end_arrive_whole():
    _, output = launch(task("chief:0", "print('a' * 300_000); print('b', end='')"))
    assert output == f"[chief:0] {'a' * 300_000}\n[chief:0] b\n"


def test_of_a_redrawn_line_the_last_form_is_shown():
    _, output = launch(task("chief:0", "print('1%\\r50%\\r100%')"))
    assert output == "[chief:0] 100%\n"


def test_ps_that_stay_are_ended_once_the_job_is_done():
    code, output = launch(task("ps:0", WAIT), task("chief:0", "pass"), grace_secs=1.0)
    assert code == 0
    assert "the job is done; stopping ps:0, which did not end" in output


def test_a_failed_worker_stops_the_rest_and_is_reported():
    failing = "import sys; print('boom'); sys.exit(3)"
    code, output = launch(task("ps:0", WAIT), task("chief:0", WAIT), task("worker:0", failing))
    assert code == 3
    assert "globalstep launch: worker:0 failed with exit code 3; its last lines:\n    boom\n" in output


def test_a_failed_ps_ends_the_job():
    code, output = launch(task("ps:0", "import sys; sys.exit(143)"), task("chief:0", WAIT))
    assert code == 143
    assert "ps:0 was ended by SIGTERM (exit code 143); its last lines: none" in output
    assert "the job ends for want of ps:0; with --max-restarts=K it is started again" in output
    _, output = launch(task("ps:0", WAIT), task("chief:0", WAIT), task("worker:0", "import sys; sys.exit(137)"))
    assert "the job ends for want of worker:0; with --max-restarts=K it is started again, up to K times (" in output


def test_who_knows_of_restarts_and_who_lost_no_ps_is_not_told_of_them():
    failing = "import sys; sys.exit(3)"
    _, restarted = launch(task("ps:0", failing), task("chief:0", WAIT), max_restarts=1)
    _, of_worker = launch(task("ps:0", WAIT), task("chief:0", WAIT), task("worker:0", failing))
    assert "restart 1 of 1" in restarted
    assert "--max-restarts" not in restarted + of_worker


def test_a_killed_process_is_named_with_its_signal():
    code, output = launch(task("chief:0", "import os; os.kill(os.getpid(), 9)"))
    assert code == 137
    assert "chief:0 was ended by SIGKILL" in output


def test_what_a_process_started_ends_with_it(tmp_path):
    started = tmp_path / "pid"
    code = (
        "import subprocess, sys, pathlib; "
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import signal; signal.pause()']); "
        f"pathlib.Path({str(started)!r}).write_text(str(child.pid))"
    )
    assert launch(task("chief:0", code))[0] == 0
    assert _ends(int(started.read_text()))


def _ends(pid):
    """Wait for the end of a process that is not a child; False after ten seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10.0)[0])
    finally:
        os.close(descriptor)


def test_a_failed_task_is_restarted_as_often_as_allowed(tmp_path):
    count = tmp_path / "count"
    code = (
        f"import pathlib, sys; p = pathlib.Path({str(count)!r}); "
        "n = int(p.read_text()) if p.exists() else 0; p.write_text(str(n + 1)); sys.exit(0 if n == 2 else 1)"
    )
    assert launch(task("chief:0", code), max_restarts=2)[0] == 0
    assert count.read_text() == "3"
    count.unlink()
    assert launch(task("chief:0", code), max_restarts=1)[0] == 1


@pytest.mark.timeout(30)
@pytest.mark.parametrize("first", ["chief:0", "ps:0"])
def test_tasks_that_come_back_when_the_job_was_over_are_not_waited_for(tmp_path, first):
    """A PS that is killed when it has heard of the end holds nothing, and others wait for it; from the soak.

    So does a chief that is killed when it has told one PS of the end, which has ended; later than others came back, if
    it had waited for the lease of a task that died.
    """
    pipe, failed = str(tmp_path / "pipe"), str(tmp_path / "failed")
    os.mkfifo(pipe)
    come_back = (
        "import os, signal, sys\n"
        f"name = {failed!r} + sys.argv[1]\n"
        "if not os.path.exists(name): open(name, 'w').close(); sys.exit(1)\n"
        f"open({pipe!r}, 'w').close() if sys.argv[1] == 'worker:0' else None\n"
        "signal.pause()"
    )
    tasks = [task(name, come_back) for name in ("ps:0", "ps:1", "chief:0", "worker:0")]
    for one in tasks:
        one.command.append(one.name)
        if one.name == first:
            one.command[-2:] = [f"import threading; open({pipe!r}).close(); threading.Event().wait(2.0)"]
    code, output = launch(*tasks, max_restarts=1, grace_secs=1.0)
    assert code == 0
    left = [one.name for one in sorted(tasks, key=lambda one: one.name) if one.name != first]
    assert f"the job is done; stopping {', '.join(left)}, which did not end" in output


def test_of_tasks_that_fail_together_the_first_is_named():
    launcher = Launcher([task("chief:0", "1/0"), task("worker:0", "1/0")], Console(Stream(), {}))
    chief, worker = launcher._tasks
    chief.ended_at, worker.ended_at = 2.0, 1.0

    async def together():
        ended = [asyncio.get_running_loop().create_future() for _ in range(2)]
        for future, code in zip(ended, (1, 9), strict=True):
            future.set_result(code)
        return await launcher._until_done(dict(zip(ended, (chief, worker), strict=True)))

    assert asyncio.run(together()) == 9
    assert launcher.failed == "worker:0 failed with exit code 9"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on_as_sigterm(number):
    # The signal may come while 'ready' is still being printed, and a print within a print is an error.
    tell = (
        "import os, signal, sys; "
        "h = lambda n, f: (os.write(1, b'got %d\\n' % n), sys.exit(0)); "
        "signal.signal(2, h); signal.signal(15, h); print('ready', flush=True); signal.pause()"
    )
    stream = Stream("ready", lambda: os.kill(os.getpid(), number))
    code, output = launch(task("chief:0", tell), stream=stream)
    assert code == 128 + number
    assert "got 15" in output
    assert "its last lines" not in output


def test_what_a_process_started_gets_no_signal_while_it_ends():
    """A DataLoader's processes are what the last step needs."""
    child = "import signal, sys; signal.signal(15, lambda *_: sys.exit(9)); print('up', flush=True); sys.stdin.read()"
    tell = (
        "import signal, subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {child!r}], stdin=subprocess.PIPE); "
        "h = lambda n, f: (child.communicate(), print('child', child.returncode), sys.exit(143)); "
        "signal.signal(15, h); signal.pause()"
    )
    stream = Stream("up", lambda: os.kill(os.getpid(), signal.SIGTERM))
    _, output = launch(task("chief:0", tell), stream=stream)
    assert "[chief:0] child 0" in output


def test_a_process_that_ignores_the_signal_is_killed():
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    stream = Stream("deaf", lambda: os.kill(os.getpid(), signal.SIGINT))
    code, output = launch(task("chief:0", deaf), stream=stream, grace_secs=0.5)
    assert code == 128 + signal.SIGINT
    assert "killing chief:0, which did not end when asked" in output
    # The tasks' own lines speak of the signal that they get.
    assert "Ctrl-C: the job stops; each task is sent SIGTERM, saves what is its to save and ends" in output


def test_a_signal_reaches_a_process_that_is_just_being_started(monkeypatch):
    stream = Stream()
    launcher = Launcher([task("chief:0", WAIT)], Console(stream, {}), grace_secs=20.0)
    create = asyncio.create_subprocess_exec

    async def interrupted(*command, **options):
        process = await create(*command, **options)
        launcher._on_signal(signal.SIGTERM)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", interrupted)
    assert asyncio.run(launcher.run()) == 128 + signal.SIGTERM
    assert "killing" not in stream.getvalue()


def test_progress_of_the_chief_alone_is_shown():
    say = f"print({PROGRESS_MARK!r} + 'step 7')"
    _, output = launch(task("chief:0", say), task("worker:0", say))
    assert output == "[chief:0] step 7\n"


def test_each_task_has_a_log_file(tmp_path):
    launch(task("chief:0", "print('hello')"), log_dir=tmp_path / "logs")
    assert (tmp_path / "logs" / "chief-0.log").read_text() == "hello\n"


def test_a_chief_takes_over_at_its_first_start_only():
    code = "import os; print(f\"over={os.environ.get('GLOBALSTEP_TAKE_OVER')}\"); raise SystemExit(1)"
    chief = task("chief:0", code)
    chief.environ["GLOBALSTEP_TAKE_OVER"] = "1"
    _, output = launch(chief, max_restarts=1)
    assert [line for line in output.splitlines() if line.startswith("[chief:0] over=")] == [
        "[chief:0] over=1",
        "[chief:0] over=None",
    ]
