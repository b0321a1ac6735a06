"""`tensorflow.python.lib.io.file_io`: files and folders under the names that TensorFlow's own modules have for them.

Layer: tf1. Thread-safe as far as the file system is.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator

from globalstep.tf1 import gfile
from globalstep.tf1.gfile import GFile as FileIO

__all__ = [
    "FileIO",
    "copy",
    "create_dir",
    "delete_file",
    "delete_recursively",
    "file_exists",
    "get_matching_files",
    "is_directory",
    "list_directory",
    "read_file_to_string",
    "recursive_create_dir",
    "rename",
    "stat",
    "walk",
    "write_string_to_file",
]

file_exists = gfile.Exists
delete_file = gfile.Remove
create_dir = gfile.MkDir
recursive_create_dir = gfile.MakeDirs
copy = gfile.Copy
rename = gfile.Rename
delete_recursively = gfile.DeleteRecursively
is_directory = gfile.IsDirectory
list_directory = gfile.ListDirectory
stat = gfile.Stat


def read_file_to_string(filename: str, binary_mode: bool = False) -> str | bytes:
    """Give what a file holds.

    Args:
        filename: The file.
        binary_mode: Give bytes instead of text.

    Raises:
        NotFoundError: If it does not exist.
    """
    with FileIO(filename, "rb" if binary_mode else "r") as file:
        content: str | bytes = file.read()
    return content


def write_string_to_file(filename: str, file_content: str | bytes) -> None:
    """Write a file.

    Args:
        filename: The file; replaced if it is there.
        file_content: Text or bytes.
    """
    with FileIO(filename, "wb" if isinstance(file_content, bytes) else "w") as file:
        file.write(file_content)


def get_matching_files(filename: str | Iterable[str]) -> list[str]:
    """List the paths that match a pattern, or any of several."""
    patterns = [filename] if isinstance(filename, str) else filename
    return list(itertools.chain.from_iterable(gfile.Glob(os.fspath(pattern)) for pattern in patterns))


def walk(top: str, in_order: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Go through a folder and all below it; parents first if `in_order`."""
    return gfile.Walk(top, in_order)
