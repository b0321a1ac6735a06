"""Paths from the wire: the directories that a PS task may write and read on behalf of callers.

Names of files are names, with no way out of their directory. With `--run-root DIR` every directory is within DIR;
without, the chief's word decides, which is why only the chief may send one where there are roles.

Layer: ps. Threads: functions and a value; any number at once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from globalstep.errors import InvalidArgumentError, PermissionDeniedError
from globalstep.files.storage import PROBE

#: Fields of requests that are names of files in the request's directory.
_NAMES = ("file", "probe_file")


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The directories that callers may name.

    Attributes:
        root: They are within this one, a path or URL; "" for any.
    """

    root: str = ""

    def check(self, request: Any) -> None:
        """Refuse a request that names a file or directory that it may not.

        Args:
            request: Any message; `directory`, `file` and `probe_file` are looked at where it has them.

        Raises:
            InvalidArgumentError: If a file's name is none.
            PermissionDeniedError: If the directory is not within the root.
        """
        for field in _NAMES:
            name = getattr(request, field, "")
            if name in (".", "..") or any(sign in name for sign in "/\\\0"):
                raise InvalidArgumentError(f"{name!r} is not a file name ({field}).")
        # Nothing is written, nor looked at, but what a save makes.
        file, probe = getattr(request, "file", ""), getattr(request, "probe_file", "")
        if file and not file.endswith(".safetensors"):
            raise InvalidArgumentError(f"{file!r} is not the name of a checkpoint's file: those end in .safetensors.")
        if probe and not probe.startswith(PROBE):
            raise InvalidArgumentError(f"{probe!r} is not the name of a probe: those begin with {PROBE}.")
        directory = getattr(request, "directory", "")
        if "\0" in directory:
            raise InvalidArgumentError(f"{directory!r} is not a directory.")
        if directory and self.root and not self._within(directory):
            raise PermissionDeniedError(
                f"The directory {directory!r} is not within {self.root!r}, the --run-root of this PS task. Put the "
                "run's directory there, or start the task with another one."
            )

    def _within(self, directory: str) -> bool:
        if "://" in self.root or "://" in directory:
            root = self.root.rstrip("/")
            inside = directory == root or directory.startswith(root + "/")
            return "://" in self.root and inside and ".." not in directory.split("/")
        # Links are followed: what a path means counts, not how it is written.
        root = os.path.realpath(self.root)
        return os.path.commonpath([root, os.path.realpath(directory)]) == root
