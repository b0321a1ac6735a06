"""Functions that make their Variables at the first call, and share them with the later ones.

Layer: tf1. Source of behaviour and texts: TensorFlow 1.12 `python/ops/template.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph.graph import GraphKeys, get_collection
from globalstep.tf1.variables.variable_scope import AUTO_REUSE, VariableScope, variable_scope


class Template:
    """What `make_template` returns; call it as the function.

    Attributes:
        variable_scope: The scope of its Variables; None before there is one.
    """

    def __init__(
        self, name: str, func: Callable[..., Any], create_scope_now: bool, unique_name: str | None, custom_getter: Any
    ) -> None:
        if name is None:
            raise ValueError("name cannot be None.")
        self._func, self._called = func, False
        self._first = functools.partial(variable_scope, unique_name, name, custom_getter=custom_getter)
        self.variable_scope: VariableScope | None = None
        if create_scope_now:
            with self._first(auxiliary_name_scope=False) as self.variable_scope:
                pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function in its scope.

        Raises:
            ValueError: If a later call makes a trainable Variable.
        """
        before = len(get_collection(GraphKeys.TRAINABLE_VARIABLES))
        known, reuse = self.variable_scope, True if self._called else AUTO_REUSE
        with variable_scope(known, reuse=reuse) if known else self._first() as scope:
            result = self._func(*args, **kwargs)
        if self._called and (new := get_collection(GraphKeys.TRAINABLE_VARIABLES)[before:]):
            raise ValueError(
                "Trainable variable created when calling a template after the first time, perhaps you used tf.Variable "
                f"when you meant tf.get_variable: {new}"
            )
        self.variable_scope, self._called = known or scope, True
        return result


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Any = None,
    **kwargs: Any,
) -> Template:
    """Return a function whose calls share the Variables that `func_` makes by `get_variable`.

    Args:
        name_: Of the scope; it is made unique.
        func_: The function.
        create_scope_now_: Whether the scope is made unique now, not at the first call.
        unique_name_: Name of the scope as it is, for templates that share it.
        custom_getter_: As for `variable_scope`.
        **kwargs: Passed to `func_` at each call.
    """
    return Template(name_, functools.partial(func_, **kwargs), create_scope_now_, unique_name_, custom_getter_)
