"""Background saving: a thread writes a checkpoint while training goes on.

Layer: chief. Threads: one a save, named "globalstep-saver"; the caller that started the save joins it by `result`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from globalstep.runtime.waiting import join_announced, wait_announced

_log = logging.getLogger("globalstep")


class BackgroundSave:
    """A save that is being written, from its snapshot on. Made by `Saver.start_save`. Thread-safe.

    Args:
        save: Saves, and gives the checkpoint's prefix, or None if there is nothing to save. It calls its
            argument, with the prefix, once the snapshot is taken.
        why: Says why a save takes long, for who waits for it; see wait_announced.

    Raises:
        Exception: What `save` raises before the snapshot.

    Attributes:
        prefix: The checkpoint's prefix, known from the snapshot on; None if there is nothing to save.
        thread: Who writes it.
    """

    def __init__(self, save: Callable[[Callable[[str], None]], str | None], why: Callable[[], str] = str) -> None:
        self._why = why
        self.prefix: str | None = None
        self._outcome: Future[str | None] = Future()
        # Set when the snapshot is taken, or will never be.
        self._begun = threading.Event()
        # No daemon: a process that ends lets it finish, so that no half-written files are left behind.
        self.thread = threading.Thread(target=self._run, args=(save,), name="globalstep-saver")
        self.thread.start()
        wait_announced(self._begun.wait, "the PS tasks' snapshot of a checkpoint", why=why)
        if self.prefix is None:
            self.result()

    def done(self) -> bool:
        """Say whether it has ended, well or not."""
        return self._outcome.done()

    def result(self) -> str | None:
        """Wait until it has ended.

        Returns:
            The checkpoint's prefix; it is durable.

        Raises:
            Exception: What the save failed with. The checkpoints from before are still there.
        """
        join_announced(self.thread, f"the checkpoint {self.prefix} to be written", why=self._why)
        return self._outcome.result()

    def _run(self, save: Callable[[Callable[[str], None]], str | None]) -> None:
        try:
            self._outcome.set_result(save(self._taken))
        except BaseException as error:
            if self.prefix is not None:
                # Its owner gets it too, but perhaps much later, or never if it fails of something else.
                _log.warning("The checkpoint %s could not be written: %s", self.prefix, error)
            self._outcome.set_exception(error)
        finally:
            self._begun.set()

    def _taken(self, prefix: str) -> None:
        self.prefix = prefix
        self._begun.set()
