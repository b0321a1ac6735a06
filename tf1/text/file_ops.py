"""Whole files as strings, in a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.errors import NotFoundError
from globalstep.tf1.gfile import GFile, Glob, MakeDirs
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.text.string_ops import as_bytes


def _path(value: Any) -> str:
    return as_bytes(np.asarray(value, dtype=object).reshape(-1)[0]).decode("utf-8", "surrogateescape")


def _found(op_type: str, path: Any, name: str | None, shape: Any) -> Node:
    inputs, attrs = [as_node(path, "string")], {"stops_gradient": True}
    return Node(op_type, inputs, name=name or op_type, dtype="string", shape=shape, stateful=True, attrs=attrs)


def read_file(filename: Any, name: str | None = None) -> Node:
    """Give all of a file.

    Args:
        filename: Path: a string, or a scalar string node.
        name: Name of the node; default "ReadFile".

    Returns:
        A scalar string node.

    Raises:
        NotFoundError: In the run, if there is none.
    """
    return _found("ReadFile", filename, name, [])


@computes("ReadFile")
def _read(value: Any) -> Any:
    path = _path(value)
    content = np.empty((), dtype=object)
    try:
        with GFile(path, "rb") as file:
            content[()] = file.read()
    except FileNotFoundError:
        raise NotFoundError(f"{path}; No such file or directory") from None
    return content


def write_file(filename: Any, contents: Any, name: str | None = None) -> Node:
    """Give the operation that writes a file, and makes its folder if need be.

    Args:
        filename: Path: a string, or a scalar string node.
        contents: A scalar string node, or a string.
        name: Name of the operation; default "WriteFile".
    """
    inputs = (as_node(filename, "string"), as_node(contents, "string"))
    return Node("WriteFile", inputs, name=name or "WriteFile", operation=True, stateful=True)


@computes("WriteFile")
def _write(value: Any, text: Any) -> None:
    path = _path(value)
    folder = path.rpartition("/")[0]
    if folder:
        MakeDirs(folder)
    with GFile(path, "wb") as file:
        file.write(as_bytes(np.asarray(text, dtype=object).reshape(-1)[0]))


def matching_files(pattern: Any, name: str | None = None) -> Node:
    """Give the paths that match patterns such as ``data/*.txt``, in order.

    Args:
        pattern: A string or several, or a node of them.
        name: Name of the node; default "MatchingFiles".

    Returns:
        A vector of strings.
    """
    return _found("MatchingFiles", pattern, name, [None])


@computes("MatchingFiles")
def _match(values: Any) -> Any:
    paths = {path for item in np.asarray(values, dtype=object).reshape(-1) for path in Glob(_path(item))}
    matches = np.empty(len(paths), dtype=object)
    matches[:] = [as_bytes(path) for path in sorted(paths)]
    return matches
