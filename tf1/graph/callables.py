"""Arguments and names of functions, as in `tensorflow.python.util.function_utils`.

Layer: tf1. Imports nothing of globalstep.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["fn_args", "get_func_code", "get_func_name", "has_kwargs"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def named(name: str, doc: str) -> Callable[[_Function], _Function]:
    """Return a decorator that gives a function of a family its name and docstring."""

    def name_it(function: _Function) -> _Function:
        function.__name__ = function.__qualname__ = name
        function.__doc__ = doc
        return function

    return name_it


def fn_args(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments that a call of `fn` still takes by place, without a method's `self`.

    A function that `functools.wraps` has decorated takes those of the one within, as TensorFlow's decorators have it.

    >>> fn_args(functools.partial(lambda a, b, c: None, 1, c=2))
    ('b',)
    """
    if isinstance(fn, functools.partial):
        rest = fn_args(fn.func)[len(fn.args) :]
        return tuple(name for name in rest if name not in fn.keywords)
    plain = _function(fn)
    names = inspect.getfullargspec(inspect.unwrap(plain)).args
    return tuple(names[1:] if inspect.ismethod(plain) else names)


def has_kwargs(fn: Callable[..., Any]) -> bool:
    """Return whether `fn` takes keywords of any name.

    Raises:
        TypeError: If it cannot be called.
    """
    if not callable(fn):
        raise TypeError(f"Argument `fn` should be a callable. Received: fn={fn} (of type {type(fn)})")
    plain = fn.func if isinstance(fn, functools.partial) else fn
    return inspect.getfullargspec(_function(plain)).varkw is not None


def get_func_name(func: Callable[..., Any]) -> str:
    """Return the name of a function or method, and the type of another object that can be called.

    Raises:
        ValueError: If it cannot be called.
    """
    _check_callable(func)
    if inspect.ismethod(func):
        return f"{type(func.__self__).__name__}.{func.__func__.__name__}"
    return func.__name__ if inspect.isfunction(func) else str(type(func))


def get_func_code(func: Callable[..., Any]) -> Any:
    """Return the code of a function, a method or an object's `__call__`; None where there is none.

    Raises:
        ValueError: If it cannot be called.
    """
    _check_callable(func)
    return getattr(_function(func), "__code__", None)


def _function(fn: Any) -> Any:
    """Return a function or method as it is, and of an object with `__call__` that method."""
    return fn if inspect.isroutine(fn) or inspect.isclass(fn) else getattr(fn, "__call__", fn)  # noqa: B004


def _check_callable(func: Any) -> None:
    if not callable(func):
        raise ValueError(f"Argument `func` must be a callable. Received func={func} (of type {type(func)})")
