"""The registry of kernels: for each kind of node, the function that gives its value.

A node is data: its op type, its inputs, its attributes, its dtype and static shape. What computes it is found by the op
type, where a kernel stands beside the op that it belongs to:

    @kernel_of("Gather")
    def _gather(node):
        axis = node.attrs["axis"]
        return lambda params, indices: np.take(params, indices, axis)

* `kernel(node)` returns the function of the values of `node.inputs`. It reads nothing of the inputs but what is
  static, and nothing of the attributes that a graph file could not hold: numbers, texts, arrays, dtypes, shapes, nodes,
  and lists of them. So a graph can be written to a file and read back, and no file names code.
* `computes` registers the function itself where all nodes of the type have the same, but for attributes that it takes.
* `saving_kernel_of` registers what also returns, beside the value, what the gradient of the node needs of it; see
  `globalstep.tf1.gradients.registry.saved`.

A node that computes by a function of the program (`py_func`) has that function, and no kernel: no file can hold it.

Layer: tf1, below the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from globalstep.tf1.graph.graph import Node

__all__ = ["computes", "function_of", "kernel_of", "saving_function_of", "saving_kernel_of"]

Function = Callable[..., Any]
Kernel = Callable[["Node"], Function]
_Kernel = TypeVar("_Kernel", bound=Kernel)

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


def computes(op_type: str, function: Function, *attrs: str) -> None:
    """Register the function of all nodes of a kind.

    Args:
        op_type: The kind.
        function: Takes the values of the attributes, then those of a node's inputs. Returns the node's value.
        *attrs: Names of the attributes.
    """
    kernel_of(op_type)(lambda node: partial(function, *(node.attrs[name] for name in attrs)) if attrs else function)


def function_of(node: Node) -> Function | None:
    """Return the function of the values of a node's inputs; None where its kind has no kernel."""
    kernel = _kernels.get(node.op_type)
    return None if kernel is None else kernel(node)


def saving_function_of(node: Node) -> Function:
    """Return the function that gives the value of a node and what is saved of it.

    Raises:
        KeyError: If its kind saves nothing.
    """
    # What a file gave without what computes it says so.
    return node.own_fn if node.own_fn is not None and "missing" in node.attrs else _saving[node.op_type](node)
