"""Functions that make their Variables at the first call, and share them with the later ones.

Layer: tf1. Source of behaviour and texts: TensorFlow 1.12 `python/ops/template.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph.graph import GraphKeys, get_collection
from globalstep.tf1.variables.variable_scope import VariableScope, variable_scope


class Template:
    """What `make_template` returns; call it as the function.

    Attributes:
        name: The name that it was given.
        func: The function.
        variable_scope: The scope of its Variables; None before there is one.
    """

    def __init__(
        self, name: str, func: Callable[..., Any], create_scope_now: bool, unique_name: str | None, custom_getter: Any
    ) -> None:
        if name is None:
            raise ValueError("name cannot be None.")
        self.name, self.func, self._called = name, func, False
        self._first = functools.partial(variable_scope, unique_name, name, custom_getter=custom_getter)
        self.variable_scope: VariableScope | None = None
        if create_scope_now:
            with self._first(auxiliary_name_scope=False) as self.variable_scope:
                pass

    def _made(self, collection: str) -> list[Any]:
        return self.variable_scope.get_collection(collection) if self.variable_scope and self._called else []

    var_scope = property(lambda self: self.variable_scope, doc="The scope of its Variables.")
    variable_scope_name = property(lambda self: self.variable_scope and f"{self.variable_scope.name}/")
    global_variables = property(lambda self: self._made(GraphKeys.GLOBAL_VARIABLES))
    local_variables = property(lambda self: self._made(GraphKeys.LOCAL_VARIABLES))
    trainable_variables = trainable_weights = property(lambda self: self._made(GraphKeys.TRAINABLE_VARIABLES))
    variables = weights = property(lambda self: self.global_variables + self.local_variables)
    non_trainable_variables = non_trainable_weights = property(
        lambda self: [one for one in self.global_variables if one not in self.trainable_variables]
    )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function in its scope.

        Raises:
            ValueError: If a later call makes a trainable Variable.
        """
        before = len(get_collection(GraphKeys.TRAINABLE_VARIABLES))
        known = self.variable_scope
        with variable_scope(known, reuse=self._called) if known else self._first() as scope:
            result = self.func(*args, **kwargs)
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
    func = functools.wraps(func_)(functools.partial(func_, **kwargs)) if kwargs else func_
    return Template(name_, func, create_scope_now_, unique_name_, custom_getter_)
