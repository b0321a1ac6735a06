"""Functions of nodes, by name: how a file says which function computes a node.

A node's function is one of this package: of a module, or made within another function. A file names it, with a
fingerprint of its source, and holds what it closes over. So a file has no code in it, and reading one runs none: only
functions of the modules named here are found again.

Layer: tf1. Threads: functions, and tables that are made once.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import linecache
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy as np

__all__ = [
    "NotWritableError",
    "class_at",
    "code_named",
    "function_named",
    "is_known_module",
    "name_of_code",
    "name_of_global",
]

#: Packages whose functions compute nodes, and the folder of TensorFlow's library below which the others are.
_PACKAGES = frozenset(
    (
        *("contrib", "gradients", "graph", "images", "layers", "loops"),
        *("metrics", "ops", "optimizers", "rnn", "text", "variables"),
    )
)
_LIBRARY = "globalstep.tf1."
#: Further modules whose functions, classes and enums nodes hold.
_MODULES = frozenset(
    (
        *("globalstep.dtypes", "globalstep.tf1.losses", "globalstep.wire.declarations", "globalstep.wire.expressions"),
        # Not all of the folder: `vocabulary` opens files.
        *(f"{_LIBRARY}feature_columns.{name}" for name in ("categorical", "column", "dense", "layers")),
    )
)
#: Functions of numpy, besides the universal ones, that have no effects.
_OF_NUMPY = frozenset(
    (
        *("all", "any", "argmax", "argmin", "argsort", "concatenate", "cumsum", "diag", "einsum", "max", "mean", "min"),
        *("ones_like", "prod", "reshape", "sort", "std", "sum", "tensordot", "transpose", "var", "where", "zeros_like"),
    )
)


class NotWritableError(Exception):
    """A value that a file cannot hold; its text says why."""


def is_known_module(name: str) -> bool:
    """Say whether functions and classes of this module may be named in a file."""
    is_library = name.startswith(_LIBRARY) and name.removeprefix(_LIBRARY).partition(".")[0] in _PACKAGES
    return is_library or name in _MODULES


def name_of_code(function: FunctionType) -> tuple[str, str]:
    """Give where the code of a function is, and its fingerprint.

    Args:
        function: Any function made by `def` or `lambda`.

    Returns:
        "module:qualified name#number", the number among those of the same name; and the fingerprint.

    Raises:
        NotWritableError: If it is none of this package's.
    """
    module, code = function.__module__, function.__code__
    if not module or not is_known_module(module):
        raise NotWritableError(
            f"the function {function.__qualname__} of the module {module} cannot be part of a graph file"
        )
    name = code.co_qualname
    same = _codes(module).get(name, [])
    if code not in same:
        raise NotWritableError(f"the source of {module} has changed since this program loaded it")
    number = same.index(code)
    return f"{module}:{name}#{number}", _fingerprint(module, name, number)


def code_named(place: str, fingerprint: str) -> tuple[str, CodeType]:
    """Find the code that `name_of_code` gave a name to.

    Returns:
        Its module's name, and the code.

    Raises:
        NotWritableError: If this version of the package has no such function, or another in its place.
    """
    module, _, rest = place.partition(":")
    name, _, number = rest.rpartition("#")
    _require_known(module)
    same = _codes(module).get(name, [])
    if not number.isdigit() or int(number) >= len(same) or _fingerprint(module, name, int(number)) != fingerprint:
        raise NotWritableError(f"{name} of {module} is not the same in this version of globalstep")
    return module, same[int(number)]


def name_of_global(value: Any) -> str | None:
    """Give "module:name" of a function, class or other callable that a module holds by a name; None where none does."""
    if not callable(value):
        return None
    entry = _globals(len(sys.modules)).get(id(value))
    return None if entry is None else entry[1]


def function_named(place: str) -> Any:
    """Find the function that `name_of_global` gave a name to.

    Raises:
        NotWritableError: If there is no such function, or a file may not name it.
    """
    module, _, name = str(place).partition(":")
    if module != "numpy":
        _require_known(module)
    function = vars(importlib.import_module(module)).get(name)
    if name.startswith("__") or not callable(function):
        raise NotWritableError(f"{module} has no function {name} in this version of globalstep")
    if isinstance(function, type) or not _is_allowed(module, name, function):
        raise NotWritableError(f"a graph file may not name {name} of {module}")
    return function


def class_at(place: str) -> Any:
    """Return the class at "module:name", a place that this package has chosen and no file."""
    module, _, name = place.partition(":")
    return vars(importlib.import_module(module))[name]


def _require_known(module: str) -> None:
    if not is_known_module(module):
        raise NotWritableError(f"a graph file may not name functions of {module}")
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise NotWritableError(f"this version of globalstep has no module {module}") from error


@functools.lru_cache(maxsize=1)
def _globals(modules: int) -> dict[int, tuple[Any, str]]:
    """Identity -> what the modules that are loaded now have names for, and its place; its home's where it has one."""
    entries: dict[int, tuple[Any, str]] = {}
    spaces = [(name, vars(module)) for name, module in list(sys.modules.items()) if is_known_module(name)]
    spaces.append(("numpy", vars(np)))
    for at_home in (True, False):
        for module, space in spaces:
            for name, value in list(space.items()):
                if not callable(value) or name.startswith("__") or id(value) in entries:
                    continue
                if _is_allowed(module, name, value) and (not at_home or getattr(value, "__module__", "") == module):
                    entries[id(value)] = (value, f"{module}:{name}")
    return entries


def _is_allowed(module: str, name: str, value: Any) -> bool:
    if module == "numpy":
        return isinstance(value, np.ufunc) or name in _OF_NUMPY
    return is_known_module(str(getattr(value, "__module__", None)))


@functools.cache
def _codes(module: str) -> dict[str, list[CodeType]]:
    """The code of all functions of a module, by qualified name, in the order of its source."""
    spec = importlib.import_module(module).__spec__
    loader: Any = None if spec is None else spec.loader
    code = loader.get_code(module) if hasattr(loader, "get_code") else None
    codes: dict[str, list[CodeType]] = {}
    for inner in _within(code) if code is not None else ():
        codes.setdefault(inner.co_qualname, []).append(inner)
    return codes


def _within(code: CodeType) -> Iterator[CodeType]:
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield item
            yield from _within(item)


@functools.cache
def _fingerprint(module: str, name: str, number: int) -> str:
    """Hash its source lines without their spaces: the same for another Python, or another indentation."""
    code = _codes(module)[name][number]
    first, last = code.co_firstlineno, code.co_firstlineno
    for inner in (code, *_within(code)):
        last = max([last, *(end for _, end, _, _ in inner.co_positions() if end is not None)])
    lines = linecache.getlines(code.co_filename)[first - 1 : last]
    return hashlib.sha256("".join("".join(lines).split()).encode()).hexdigest()[:16]
