"""The branches of a module, by name, and which of them a block of a test takes."""

from __future__ import annotations

import ast
import contextlib
import itertools
import sys
import threading
from pathlib import Path

__all__ = ["branches_of", "taken"]

_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def branches_of(module, without=()):
    """Give line -> "function: condition" of every branch: bodies of if, else, except, and what follows an early end.

    Args:
        module: It.
        without: Names of classes of it that are left out.
    """
    found = {}
    tree = ast.parse(Path(module.__file__).read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", "") not in without]
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for line, condition in _in(function.body):
                found[line] = f"{function.name}: {condition}"
    return found


def _in(body):
    for node, after in itertools.zip_longest(body, body[1:]):
        if isinstance(node, ast.FunctionDef):
            continue
        if isinstance(node, ast.If):
            condition = ast.unparse(node.test)
            yield node.body[0].lineno, condition
            if node.orelse:
                yield node.orelse[0].lineno, f"not ({condition})"
            elif after is not None and isinstance(node.body[-1], _ENDS):
                yield after.lineno, f"not ({condition})"
        for handler in getattr(node, "handlers", ()):
            yield handler.body[0].lineno, f"except {ast.unparse(handler.type)}"
            yield from _in(handler.body)
        for part in ("body", "orelse", "finalbody"):
            yield from _in(getattr(node, part, ()))


@contextlib.contextmanager
def taken(*modules):
    """Give the set into which the branches of the modules go that are taken in the block, by whatever thread."""
    lines = {module.__file__: branches_of(module) for module in modules}
    found = set()

    def in_function(frame, event, _):
        name = lines[frame.f_code.co_filename].get(frame.f_lineno) if event == "line" else None
        if name is not None:
            found.add(name)
        return in_function

    def everywhere(frame, event, _):
        return in_function if frame.f_code.co_filename in lines else None

    before = sys.gettrace()
    threading.settrace(everywhere)
    sys.settrace(everywhere)
    try:
        yield found
    finally:
        sys.settrace(before)
        threading.settrace(before)
