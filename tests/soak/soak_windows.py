"""The windows of a job in which the soak kills tasks of every role: the job's side and the soak's.

A task that comes to such a window, a save say, makes a file that names it, and stays there until the file is gone.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

ROLES = ("ps", "chief", "worker")
#: Windows of the end, each of which a job comes to once, and of the middle, which come again and again.
END = ("last save", "saved", "last evaluation", "leaving")
MIDDLE = ("save", "evaluation")
#: Which part of the middle's windows is held.
HELD = 0.3


def stay(folder: str, window: str, task: str) -> None:
    """Stay in a window, as a task of the job, until the soak says go on."""
    mark = Path(folder) / f"{window}={task}={os.getpid()}"
    mark.touch()
    pause = threading.Event()
    while mark.exists():
        pause.wait(0.02)


@dataclass
class Held:
    """A task in a window: who is killed, and when, and when it goes on, by the monotonic clock.

    Attributes:
        kill: The tasks to kill; none once they are.
    """

    kill: list[str]
    kill_at: float
    go_at: float


class Windows:
    """Plans whom to kill in which window: in each of them a task of every role, some before it goes on, some after.

    Args:
        folder: For the files of the tasks that are in one.
        rng: Where chance comes from.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        self._held: dict[Path, Held] = {}
        # All PS tasks of a job at once take back whatever is not on disk.
        self._plan = {window: rng.sample([*ROLES, "all PS"], 4) for window in (*END, *MIDDLE)}

    def due(self, now: float, tasks: Collection[str]) -> list[tuple[str, list[str]]]:
        """Let those go on whose time it is.

        Args:
            now: The monotonic clock.
            tasks: The names of all tasks.

        Returns:
            Whom to kill now: (window, names of tasks).
        """
        found = []
        there = set(self._folder.iterdir())
        for path in sorted(there - set(self._held)):
            self._held[path] = self._planned(path.name, now, tasks)
        for path, held in list(self._held.items()):
            if held.kill and now >= held.kill_at:
                found.append((path.name.split("=")[0], held.kill))
                held.kill = []
            if now >= held.go_at:
                path.unlink(missing_ok=True)
            if not held.kill and not path.exists():
                del self._held[path]
        return found

    def _planned(self, name: str, now: float, tasks: Collection[str]) -> Held:
        window, task, _ = name.split("=")
        plan, rng = self._plan[window], self._rng
        if not plan or (window in MIDDLE and rng.random() > HELD):
            return Held([], now, now)
        role = plan.pop()
        killed = [one for one in tasks if one.startswith(role[-2:].lower() if role == "all PS" else role)]
        if role != "all PS":
            # A worker that leaves is the one to kill.
            killed = [task] if window == "leaving" and role in task else [rng.choice(killed)]
        if rng.random() < 0.5:
            return Held(killed, now, now + rng.uniform(0.0, 3.0))
        return Held(killed, now + rng.uniform(0.0, 0.1), now)
