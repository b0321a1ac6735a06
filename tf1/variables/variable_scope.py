"""Variable scopes: names, initializers and reuse for `named_variables.get_variable`.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/variable_scope.py`. Threads: as for building a graph.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from globalstep.dtypes import DTypeLike, float32
from globalstep.tf1.graph.graph import Graph, GraphKeys, get_default_graph
from globalstep.tf1.variables.partitioned_variables import PartitionedVariable
from globalstep.tf1.variables.variables import Variable


class _ReuseMode(enum.Enum):
    """Reuse by get_variable: AUTO_REUSE makes Variables that are missing and takes those that exist."""

    AUTO_REUSE = 1


AUTO_REUSE = _ReuseMode.AUTO_REUSE


def no_regularizer(_: Any) -> None:
    """Regularize nothing, whatever the scope's regularizer is."""


@dataclass
class VariableScope:
    """The settings of `get_variable` inside a `variable_scope`.

    Attributes:
        reuse: False, True or AUTO_REUSE.
        name: Prefix of names, without a final "/".
        initializer: Default initializer.
        regularizer: Default regularizer.
        partitioner: Default partitioner.
        custom_getter: Wraps every get_variable.
        dtype: Default dtype.
        constraint: Default constraint.
        original_name_scope: Name scope that it was first entered with, with a final "/".
    """

    reuse: Any = False
    name: str = ""
    initializer: Any = None
    regularizer: Any = None
    caching_device: Any = None
    partitioner: Any = None
    custom_getter: Any = None
    dtype: DTypeLike = float32
    use_resource: Any = None
    constraint: Any = None
    original_name_scope: str = ""

    def reuse_variables(self) -> None:
        """Reuse existing Variables from here on in the scope."""
        self.reuse = True

    def set_initializer(self, initializer: Any) -> None:
        """Set the default initializer."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: Any) -> None:
        """Set the default regularizer."""
        self.regularizer = regularizer

    def set_partitioner(self, partitioner: Any) -> None:
        """Set the default partitioner."""
        self.partitioner = partitioner

    def set_dtype(self, dtype: DTypeLike) -> None:
        """Set the default dtype."""
        self.dtype = dtype

    def set_caching_device(self, caching_device: Any) -> None:
        """Keep it, without effect: values are read once a run."""
        self.caching_device = caching_device

    def set_use_resource(self, use_resource: bool) -> None:
        """Keep it, without effect: Variables are of one kind."""
        self.use_resource = use_resource

    def set_custom_getter(self, custom_getter: Any) -> None:
        """Set the custom getter."""
        self.custom_getter = custom_getter

    def get_collection(self, name: str) -> list[Any]:
        """Give the items of a collection whose names are in this scope."""
        return get_default_graph().get_collection(name, f"{self.name}/" if self.name else "")

    def global_variables(self) -> list[Variable]:
        """Give the global Variables in this scope."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def trainable_variables(self) -> list[Variable]:
        """Give the trainable Variables in this scope."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)

    def local_variables(self) -> list[Variable]:
        """Give the local Variables in this scope."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)


@dataclass
class Store:
    """A graph's Variables by name, and its current scope."""

    variables: dict[str, Variable | PartitionedVariable] = field(default_factory=dict)
    scope: VariableScope = field(default_factory=VariableScope)
    #: How often each scope name was opened, for names made unique.
    opened: dict[str, int] = field(default_factory=dict)


def store_of(graph: Graph | None = None) -> Store:
    """Give the named Variables and the current scope of a graph; default the current one."""
    store: Store = (graph or get_default_graph()).extras.setdefault(__name__, Store())
    return store


def get_variable_scope() -> VariableScope:
    """Give the current scope."""
    return store_of().scope


@contextlib.contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    values: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    reuse: Any = None,
    dtype: DTypeLike | None = None,
    use_resource: bool | None = None,
    constraint: Any = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """Open a scope for `get_variable`, and a name scope with it.

    Args:
        name_or_scope: Name to put under the current scope, or a scope to enter again.
        default_name: Name to use, made unique, where `name_or_scope` is None.
        values: Accepted as in TensorFlow.
        initializer: Default initializer within.
        regularizer: Default regularizer within.
        caching_device: Accepted as in TensorFlow.
        partitioner: Default partitioner within.
        custom_getter: Function of (getter, name, *args, **kwargs) that gives the Variable.
        reuse: True to take Variables that exist, AUTO_REUSE to make those that do not; None (and False)
            inherit.
        dtype: Default dtype within.
        use_resource: Accepted as in TensorFlow.
        constraint: Default constraint within.
        auxiliary_name_scope: False to open no name scope.

    Yields:
        The scope.

    Raises:
        TypeError: Without any name.
        ValueError: For reuse with only a default name.
    """
    store = store_of()
    outer = store.scope
    counts = store.opened
    if name_or_scope is None:
        if default_name is None:
            raise TypeError("If default_name is None then name_or_scope is required")
        if reuse:
            raise ValueError("reuse=True cannot be used without a name_or_scope")
        name_or_scope = _unique_scope(store, default_name)
    if isinstance(name_or_scope, VariableScope):
        entered = replace(name_or_scope, reuse=reuse or name_or_scope.reuse)
        short = entered.name.rpartition("/")[2]
    else:
        full = f"{outer.name}/{name_or_scope}" if outer.name else name_or_scope
        entered = replace(outer, name=full, reuse=reuse or outer.reuse)
        short = name_or_scope
    options = {
        "initializer": initializer,
        "regularizer": regularizer,
        "caching_device": caching_device,
        "partitioner": partitioner,
        "dtype": dtype,
        "use_resource": use_resource,
        "constraint": constraint,
    }
    entered = replace(entered, **{key: value for key, value in options.items() if value is not None})
    if custom_getter is not None:
        entered.custom_getter = chained(custom_getter, entered.custom_getter)
    # Names within the scope start anew whenever it is opened again.
    store.opened = {name: n for name, n in counts.items() if not name.startswith(f"{entered.name}/")}
    names = get_default_graph().name_scope(short) if auxiliary_name_scope and short else contextlib.nullcontext("")
    with names as name_scope:
        if not isinstance(name_or_scope, VariableScope):
            entered.original_name_scope = name_scope or entered.original_name_scope
        store.scope = entered
        try:
            yield entered
        finally:
            store.scope = outer
            store.opened = {**counts, entered.name: counts.get(entered.name, 0) + 1}


@contextlib.contextmanager
def variable_op_scope(
    values: Any, name_or_scope: Any, default_name: str | None = None, **options: Any
) -> Iterator[VariableScope]:
    """Open a scope under TensorFlow's older name; see `variable_scope`."""
    with variable_scope(name_or_scope, default_name, values, **options) as scope:
        yield scope


def _unique_scope(store: Store, prefix: str) -> str:
    full = f"{store.scope.name}/{prefix}" if store.scope.name else prefix
    if not store.opened.get(full):
        return prefix
    number = 1
    while store.opened.get(f"{full}_{number}"):
        number += 1
    return f"{prefix}_{number}"


def chained(getter: Callable[..., Any], outer: Callable[..., Any] | None) -> Callable[..., Any]:
    """Give the custom getter that calls `getter` around `outer`."""
    if outer is None:
        return getter

    def both(true_getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        def through_outer(name: str, *args: Any, **kwargs: Any) -> Any:
            return outer(true_getter, name, *args, **kwargs)

        return getter(through_outer, name, *args, **kwargs)

    return both
