"""The registry of kernels: for each kind of node, the function that gives its value.

A node is data: its op type, its inputs, its attributes, its dtype and static shape. What computes it is found by the op
type, where a kernel stands beside the op that it belongs to:

    @computes("Gather")
    def _gather(params, indices, *, axis):
        return np.take(params, indices, axis)

* `computes` registers a function of the values of `node.inputs`. What it takes by keyword only are the node's
  attributes of these names, and `dtype`, numpy's dtype of the node's value.
* `kernel_of` registers what makes the function from the node, where one function does not do. It reads nothing of the
  inputs but what is static.
* `saving_kernel_of` registers what also returns, beside the value, what the gradient of the node needs of it; see
  `globalstep.tf1.gradients.registry.saved`.

Attributes are what a graph file can hold: numbers, texts, arrays, dtypes, shapes, nodes, lists of them, and objects of
the classes that `globalstep.tf1.exporting.values` lists. So a graph can be written to a file and read back, and no file
names code. A node that computes by a function of the program (`py_func`) has that function, and no kernel: no file can
hold it.

Layer: tf1, below the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from globalstep.errors import FailedPreconditionError

if TYPE_CHECKING:
    from globalstep.tf1.graph.graph import Node


Function = Callable[..., Any]
Kernel = Callable[["Node"], Function]
_Kernel = TypeVar("_Kernel", bound=Kernel)
_Function = TypeVar("_Function", bound=Function)

_kernels: dict[str, Kernel] = {}
_saving: dict[str, Kernel] = {}


def kernel_of(*op_types: str) -> Callable[[_Kernel], _Kernel]:
    """Register the decorated function as the kernel of these kinds of nodes; see the module's text."""
    return _registering(_kernels, op_types)


def saving_kernel_of(*op_types: str) -> Callable[[_Kernel], _Kernel]:
    """Register a kernel whose function returns the value, and what is saved of it for the gradient's kernel."""
    return _registering(_saving, op_types)


def _registering(kernels: dict[str, Kernel], op_types: tuple[str, ...]) -> Callable[[_Kernel], _Kernel]:
    def register(kernel: _Kernel) -> _Kernel:
        for op_type in op_types:
            if op_type in kernels:
                raise ValueError(f"There are two kernels of {op_type!r}: {kernels[op_type]} and {kernel}.")
            kernels[op_type] = kernel
        return kernel

    return register


@overload
def computes(op_type: str) -> Callable[[_Function], _Function]: ...
@overload
def computes(op_type: str, function: _Function) -> _Function: ...


def computes(op_type: str, function: Function | None = None) -> Any:
    """Register the function of all nodes of a kind, and return it; see the module's text.

    Args:
        op_type: The kind.
        function: Takes the values of a node's inputs, and by keyword only attributes. Returns the node's value.
            Default: what is decorated.
    """
    if function is None:
        return lambda decorated: computes(op_type, decorated)
    kernel_of(op_type)(lambda node: with_attributes(function, node))
    return function


def with_attributes(function: Function, node: Node) -> Function:
    """Return a function with the attributes of a node for what it takes by keyword only."""
    code: Any = getattr(function, "__code__", None)  # numpy's have none, and take no attributes
    names = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount] if code is not None else ()
    if not names:
        return function
    # A call with defaults takes a fifth of the time of one through functools.partial.
    own = FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    own.__kwdefaults__ = {name: _attribute(node, name) for name in names}
    return own


def _attribute(node: Node, name: str) -> Any:
    return node.attrs[name] if name in node.attrs or name != "dtype" else node.dtype.as_numpy_dtype


def has_kernel(op_type: str) -> bool:
    """Return whether a kind of nodes has a kernel."""
    return op_type in _kernels


def function_of(node: Node) -> Function | None:
    """Return the function of the values of a node's inputs; None where its kind has no kernel.

    Raises:
        FailedPreconditionError: If a file gave the node, without what the kernel needs.
    """
    kernel = _kernels.get(node.op_type)
    try:
        return None if kernel is None else kernel(node)
    except Exception as error:
        if not node.is_read:
            raise
        raise FailedPreconditionError(
            f"{node.op_name!r} ({node.op_type}) was imported from a file that is damaged, or of another version of "
            f"globalstep: {type(error).__name__}: {error}"
        ) from error


def saving_function_of(node: Node) -> Function:
    """Return the function that gives the value of a node and what is saved of it.

    Raises:
        KeyError: If its kind saves nothing.
    """
    # What a file gave without what computes it says so.
    return node.own_fn if node.own_fn is not None and "missing" in node.attrs else _saving[node.op_type](node)
