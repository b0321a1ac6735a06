"""Line process: a Python process whose stdin and stdout carry lines: commands and answers of JSON, one a line.

Linux: processor time is read from /proc; where there is `setpriv`, the process ends with its parent.
"""

from __future__ import annotations

import contextlib
import json
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["LineProcess"]

_SERVING = "serving on "
#: A process that says nothing for so long has hung.
_ANSWER_SECS = 120.0


class LineProcess:
    """A Python process that takes commands by lines. One thread at a time.

    Args:
        arguments: Of the interpreter, e.g. ["-m", "globalstep.ps"].
        environ: Its whole environment.
        by: What to put before the command.
        python: The interpreter; default this one.
        log: Where its stderr goes; default where ours does.
        folder: Where it works; default where we do.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        *,
        by: Sequence[str] = (),
        python: str = sys.executable,
        log: Path | None = None,
        folder: Path | None = None,
    ) -> None:
        # The death of its parent ends it even where that is killed outright.
        guard = [setpriv, "--pdeathsig", "KILL"] if (setpriv := shutil.which("setpriv")) else []
        self._called = " ".join(arguments)
        self._says_why = str(log or "above")
        with contextlib.ExitStack() as stack:
            self._process = subprocess.Popen(
                [*by, *guard, python, *arguments], env=dict(environ), cwd=folder, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=stack.enter_context(log.open("ab")) if log else None, text=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def cpu_secs(self) -> float:
        """Processor time of all its threads so far."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has ended
                total += int(task.read_text().split()[0])
        return total / 1e9

    def tell(self, command: Mapping[str, Any]) -> None:
        """Send a command, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to a command.

        Raises:
            RuntimeError: If the process ends or hangs.
        """
        reply: dict[str, Any] = json.loads(self._line())
        return reply

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command and wait for the answer; see `answer`."""
        self.tell(command)
        return self.answer()

    def address(self) -> str:
        """Wait until a PS says where it serves; see `answer`."""
        line = self._line()
        if not line.startswith(_SERVING):
            raise RuntimeError(f"{self._called} said {line!r}; {_SERVING!r} was expected.")
        return line.removeprefix(_SERVING).strip()

    def _line(self) -> str:
        # At most one line is on its way, so that none can hide in the buffer from select.
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], _ANSWER_SECS)[0]:
            raise RuntimeError(f"{self._called} has said nothing for {_ANSWER_SECS:.0f} s.")
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"{self._called} ended with code {self._process.wait()}; see {self._says_why}.")
        return line

    def end(self, grace_secs: float) -> None:
        """Close its stdin, which it takes as a request to end; kill it if it does not in time."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_secs)
        self.kill()

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            # What was still to be written to it has no reader.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
