"""Operations that order or bundle others, and those that call Python: group, Print, Assert, py_func."""

from __future__ import annotations

import builtins
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import as_dtype, string_array
from globalstep.errors import InvalidArgumentError
from globalstep.runtime.log_format import write_line
from globalstep.tf1.graph.graph import (
    GraphKeys,
    Node,
    as_node,
    control_dependencies,
    get_collection,
    get_default_graph,
    tuple_item,
)
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.ops.array_ops import identity
from globalstep.tf1.ops.gradient_ops import passes
from globalstep.tf1.ops.math_ops import equal, greater, greater_equal, less, less_equal, not_equal


def no_op(name: str | None = None) -> Node:
    """Give an operation that does nothing, for its control inputs' sake."""
    return Node("NoOp", name=name, operation=True)


def tables_initializer(name: str = "init_all_tables") -> Node:
    """Give the operation that fills the lookup tables of the graph: what TABLE_INITIALIZERS holds.

    Args:
        name: Its name.
    """
    return group(*get_collection(GraphKeys.TABLE_INITIALIZERS), name=name)


def group(*inputs: Any, name: str | None = None, **kwargs: Any) -> Node:
    """Give one operation that runs all of `inputs`.

    Args:
        *inputs: Nodes, operations, IndexedSlices, or lists of them.
        name: Name of the operation.
        **kwargs: None are taken.

    Returns:
        An operation; it has no value.

    Raises:
        TypeError: If an input is none of these.
        ValueError: For unknown keyword arguments.
    """
    if kwargs:
        raise ValueError(f"Unknown keyword arguments: {', '.join(kwargs)}")
    graph = get_default_graph()
    nodes = [_runnable(item, graph) for item in _flat(inputs)]
    graph = nodes[0].graph if nodes else graph
    return Node("NoOp", name=name or "group_deps", operation=True, control_inputs=nodes, graph=graph)


def _flat(items: Any) -> list[Any]:
    if isinstance(items, (list, builtins.tuple)):
        return [leaf for item in items for leaf in _flat(item)]
    return [items]


def _runnable(item: Any, graph: Any) -> Node:
    if isinstance(item, IndexedSlices):
        item = item.values
    if item is None or isinstance(item, str):
        raise TypeError(f"Expected tensor or operation in group, got {item!r}")
    owner = getattr(item, "graph", graph)
    node: Node = owner.as_graph_element(item)
    return node


def tuple(tensors: Sequence[Any], name: str | None = None, control_inputs: Any = None) -> list[Any]:
    """Give the values once all of them, and `control_inputs`, are there.

    Args:
        tensors: List of nodes, IndexedSlices, or None.
        name: Name scope of the nodes.
        control_inputs: Further operations to wait for.

    Returns:
        A list like `tensors`.

    Raises:
        ValueError: If `tensors` holds no value.
    """
    graph = get_default_graph()
    waits = [_runnable(item, graph) for item in [*(t for t in tensors if t is not None), *(control_inputs or [])]]
    if all(item is None for item in tensors):
        raise ValueError(f"Must have at least one Tensor: {list(tensors)}")
    with graph.name_scope(name or "tuple"):
        return [None if item is None else with_dependencies(waits, item) for item in tensors]


def with_dependencies(dependencies: Sequence[Any], output_tensor: Any, name: str | None = None) -> Any:
    """Give `output_tensor` (a node or IndexedSlices), after `dependencies` ran."""
    with control_dependencies(dependencies):
        if isinstance(output_tensor, IndexedSlices):
            return IndexedSlices(identity(output_tensor.values, name), output_tensor.indices, output_tensor.dense_shape)
        return identity(output_tensor, name or "control_dependency")


def Print(  # noqa: N802
    input_: Any,
    data: Sequence[Any],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Node:
    """Give `input_` as it is, and write `data` to the standard error stream whenever it is evaluated.

    Args:
        input_: Node or array.
        data: Nodes or arrays to write.
        message: What to write before them.
        first_n: Write only this many times; default every time.
        summarize: How many elements of each to write; default 3.
        name: Name of the node.

    Returns:
        A node like `input_`.
    """
    node, shown = as_node(input_), [as_node(item) for item in data]
    attrs = {"message": message, "first_n": first_n, "summarize": summarize}
    return Node("Print", (node, *shown), name=name, dtype=node.dtype, shape=node.shape, attrs=attrs, stateful=True)


@kernel_of("Print")
def _print(node: Node) -> Any:
    message, first_n, summarize = (node.attrs[part] for part in ("message", "first_n", "summarize"))
    counted = itertools.count(1)

    def show(value: Any, *items: Any) -> Any:
        if first_n is None or first_n < 0 or next(counted) <= first_n:
            text = "".join(f"[{_summary(item, summarize)}]" for item in items)
            write_line(sys.stderr, f"{message or ''}{text}")
        return value

    return show


passes("Print")


def _summary(value: Any, summarize: int | None) -> str:
    flat = np.asarray(value).reshape(-1)
    count = 3 if summarize is None else flat.size if summarize < 0 else summarize
    text = " ".join(item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in flat[:count])
    return text + ("..." if flat.size > count else "")


def Assert(  # noqa: N802
    condition: Any, data: Sequence[Any], summarize: int | None = None, name: str | None = None
) -> Node:
    """Give an operation that fails the run unless `condition` holds.

    Args:
        condition: Boolean node, array or bool; all of it must hold.
        data: Nodes or values to tell in the error.
        summarize: How many elements of each to tell; default 3.
        name: Name of the operation.

    Returns:
        An operation: run it, or make others depend on it by `gs.control_dependencies`.

    Raises:
        InvalidArgumentError: In the run.
    """
    nodes = [as_node(condition), *(as_node(item) for item in data)]
    return Node("Assert", nodes, name=name, operation=True, attrs={"summarize": summarize}, stateful=True)


@computes("Assert")
def _check(holds: Any, *items: Any, summarize: int | None) -> None:
    if not np.all(holds):
        shown = " ".join(f"[{_summary(item, summarize)}]" for item in items)
        raise InvalidArgumentError(f"assertion failed: {shown}")


def _comparison(word: str, test: Callable[[Any, Any], Node], symbol: str, default: Any = None) -> Callable[..., Node]:
    def function(
        x: Any,
        y: Any = default,
        data: Any = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Node:
        if y is None:
            raise TypeError(f"assert_{word}() misses its argument 'y'.")
        holds, a, b = test(x, y), as_node(x), as_node(y)
        shown = [f"x ({a.name}) = ", a, *([f"y ({b.name}) = ", b] if default is None else [])]
        text = f"Condition x {symbol} {'y' if default is None else default} did not hold element-wise:"
        data = data or [message or "", text, *shown]
        if (
            word == "equal"
            and "value" in a.attrs
            and "value" in b.attrs
            and not np.all(a.attrs["value"] == b.attrs["value"])
        ):
            raise InvalidArgumentError("\n".join(map(str, data)))
        return Assert(holds, data, summarize, name or f"assert_{word}")

    function.__name__ = function.__qualname__ = f"assert_{word}"
    function.__doc__ = f"""Give an operation that fails the run unless all elements are {word.replace("_", " ")}.

    Args:
        x: Node or array.
        y: What to compare with, where the function takes two.
        data: What to tell in the error; default both values.
        summarize: How many elements of each to tell.
        message: What to tell first.
        name: Name of the operation.

    Returns:
        An operation.

    Raises:
        InvalidArgumentError: In the run; of two unequal constants at once.
    """
    return function


assert_equal = _comparison("equal", equal, "==")
assert_less = _comparison("less", less, "<")
assert_greater = _comparison("greater", greater, ">")
assert_positive = _comparison("positive", greater, ">", 0)
assert_non_negative = _comparison("non_negative", greater_equal, ">=", 0)
assert_none_equal = _comparison("none_equal", not_equal, "!=")
assert_less_equal = _comparison("less_equal", less_equal, "<=")
assert_greater_equal = _comparison("greater_equal", greater_equal, ">=")
assert_negative = _comparison("negative", less, "<", 0)
assert_non_positive = _comparison("non_positive", less_equal, "<=", 0)


def _for_program(item: Any) -> Any:
    """Return a value as a program's function is given it: a single string as bytes, an array that may be written to."""
    if not isinstance(item, np.ndarray):
        return item
    if item.dtype.kind == "O" and item.ndim == 0:
        return item[()]
    return item if item.flags.writeable else item.copy()


def py_func(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: Any,  # noqa: N803
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Give the results of a Python function of arrays, as nodes.

    Args:
        func: Called in each run with the arrays of `inp`; gives as many arrays as `Tout` has dtypes.
        inp: Nodes or arrays.
        Tout: A dtype, or a list of dtypes, of the results.
        stateful: Whether it may give other results for the same arguments.
        name: Name of the node.

    Returns:
        A node; a list of nodes if `Tout` is a list, an operation if it is empty. They have no gradient: `gs.gradients`
        through one raises LookupError. Use `gs.py_loss` for a function that gives its own gradients.

    Raises:
        InvalidArgumentError: In the run, if the function gives another number of results.
    """
    nodes = [as_node(item) for item in inp]
    several = isinstance(Tout, (list, builtins.tuple))
    kinds = [as_dtype(kind) for kind in (Tout if several else [Tout])]

    def call(*arrays: Any) -> Any:
        result = func(*map(_for_program, arrays))
        results = (
            builtins.tuple(result)
            if isinstance(result, (list, builtins.tuple))
            else ()
            if result is None and not kinds
            else (result,)
        )
        if len(results) != len(kinds):
            raise InvalidArgumentError(
                f"py_func {getattr(func, '__name__', func)!r} returned {len(results)} values, but expects to "
                f"see {len(kinds)} values."
            )
        arrays_out = builtins.tuple(
            string_array(r) if kind.name == "string" else np.array(r, dtype=kind.as_numpy_dtype)
            for r, kind in zip(results, kinds, strict=True)
        )
        return arrays_out if several else arrays_out[0]

    if not several:
        return Node("PyFunc", nodes, fn=call, name=name, dtype=kinds[0], stateful=True)
    parts = Node("PyFunc", nodes, fn=call, name=name, stateful=True, operation=not kinds, attrs={"tuple": True})
    return [tuple_item(parts, i, dtype=kind) for i, kind in enumerate(kinds)] or (parts if stateful else [])
