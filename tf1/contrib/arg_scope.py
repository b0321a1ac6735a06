"""arg_scope: defaults for the arguments of layers within a block.

Layer: tf1. Threads: the scopes of one thread are not those of another.
Source: TensorFlow 1.15 `contrib/framework/python/ops/arg_scope.py`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
#: Function's key -> defaults.
_Scope = dict[Any, dict[str, Any]]


class _ArgScopes(threading.local):
    """The thread's scopes, innermost last."""

    def __init__(self) -> None:
        self.scopes: list[_Scope] = [{}]


_stack = _ArgScopes()
#: Key of each function that takes part -> the arguments that have defaults.
_names: dict[Any, tuple[str, ...]] = {}


def add_arg_scope(func: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function take part in `arg_scope`.

    Args:
        func: Any function with keyword arguments.

    Returns:
        A function that takes the same arguments; those that a scope names have the scope's defaults.
    """
    key = arg_scope_func_key(func)
    takes = inspect.signature(func).parameters.values()
    _names[key] = tuple(one.name for one in takes if one.default is not one.empty)

    @functools.wraps(func)
    def with_defaults(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        defaults = _stack.scopes[-1].get(key)
        if not defaults:
            return func(*args, **kwargs)
        return func(*args, **{**defaults, **kwargs})

    with_defaults._key_op = key  # type: ignore[attr-defined]
    return with_defaults


@contextlib.contextmanager
def arg_scope(list_ops_or_scope: Sequence[Any] | Mapping[Any, Any], **kwargs: Any) -> Iterator[_Scope]:
    """Give functions other defaults within the block.

    Args:
        list_ops_or_scope: Functions, each made by `add_arg_scope`; or the scope of an earlier block, to enter again.
        **kwargs: Their defaults. What a call says itself wins, then the innermost scope.

    Yields:
        The scope: enter it again as `arg_scope(scope)`.

    Raises:
        TypeError: If it is neither a list nor a scope.
        ValueError: If a function takes no part, or a scope is entered again with further arguments.

    >>> import globalstep as gs
    >>> slim = gs.contrib.slim
    >>> with slim.arg_scope([slim.fully_connected], activation_fn=None, biases_initializer=None):
    ...     y = slim.fully_connected(gs.ones([1, 3]), 2, scope="linear")
    >>> [variable.op_name for variable in gs.global_variables()]
    ['linear/weights']
    """
    if isinstance(list_ops_or_scope, Mapping):
        if kwargs:
            raise ValueError("When attempting to re-use a scope by suppling a dictionary, kwargs must be empty.")
        scope = {key: dict(defaults) for key, defaults in list_ops_or_scope.items()}
    else:
        if not isinstance(list_ops_or_scope, (list, tuple)):
            raise TypeError("list_ops_or_scope must either be a list/tuple or reused scope (i.e. dict)")
        scope = dict(_stack.scopes[-1])
        for function in list_ops_or_scope:
            if not has_arg_scope(function):
                name = (getattr(function, "__module__", "?"), getattr(function, "__name__", repr(function)))
                raise ValueError(f"{name} is not decorated with @add_arg_scope")
            key = arg_scope_func_key(function)
            scope[key] = {**scope.get(key, {}), **kwargs}
    _stack.scopes.append(scope)
    try:
        yield scope
    finally:
        _stack.scopes.pop()


def current_arg_scope() -> _Scope:
    """Give the innermost scope: function's key -> defaults."""
    return _stack.scopes[-1]


def arg_scope_func_key(op: Any) -> Any:
    """Give the key of a function in scopes."""
    return getattr(op, "_key_op", str(op))


def has_arg_scope(func: Any) -> bool:
    """Say whether `add_arg_scope` made a function."""
    return arg_scope_func_key(func) in _names


def arg_scoped_arguments(func: Any) -> tuple[str, ...]:
    """Give the names of the arguments of a function that a scope can give defaults for.

    Raises:
        ValueError: If it takes no part in scopes.
    """
    if not has_arg_scope(func):
        raise ValueError(f"{func!r} is not decorated with @add_arg_scope")
    return _names[arg_scope_func_key(func)]
