"""Gradients that a program defines itself: `gs.custom_gradient`, and `gs.RegisterGradient` for other ops' nodes.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/custom_gradient.py`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node, closure_of, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.ops.gradient_ops import zeros
from globalstep.tf1.variables.variable_scope import get_variable_scope, variable_scope
from globalstep.tf1.variables.variables import Variable


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that gives its own gradient.

    Args:
        f: Takes nodes; returns a node, or a nest of nodes, and a function. That takes the gradients of these, one
            argument for each, and returns those of the arguments of `f`: one, or a list. Where `f` uses Variables, it
            gets them as `variables` and returns a list of their gradients too.

    Returns:
        The function of nodes, without the gradient.

    Raises:
        TypeError: Of the decorated function, if `f` uses Variables and the gradient does not take them.
        ValueError: Of the decorated function, for keyword arguments.

    >>> import globalstep as gs
    >>> @gs.custom_gradient
    ... def log1pexp(x):
    ...     e = gs.exp(x)
    ...     return gs.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))
    >>> x = gs.constant(100.0)
    >>> with gs.Session() as sess:
    ...     print(sess.run(gs.gradients(log1pexp(x), x)[0]))
    1.0
    """

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise ValueError("The custom_gradient decorator takes no keyword arguments.")
        inputs = [as_node(item) for item in args]
        result, gradient = f(*inputs)
        leaves = [as_node(item) for item in nest.flatten(result)]
        variables = _variables_of(leaves, set(inputs))
        takes = inspect.getfullargspec(gradient)
        takes_variables = "variables" in (*takes.args, *takes.kwonlyargs) or takes.varkw is not None
        if variables and not takes_variables:
            raise TypeError(
                "If using @custom_gradient with a function that uses variables, then grad_fn must accept a "
                "'variables' keyword argument."
            )
        scope = get_variable_scope()

        def back(*grads: Any) -> list[Any]:
            if not variables:
                return nest.flatten(gradient(*grads))
            with variable_scope(scope):
                of_inputs, of_variables = gradient(*grads, variables=variables)
            return [*nest.flatten(of_inputs), *of_variables]

        attrs = {"tuple": True, "count": len(leaves), "gradient": back}
        node = Node("IdentityN", (*leaves, *inputs, *variables), attrs=attrs)
        items = [tuple_item(node, at, dtype=leaf.dtype, shape=leaf.shape) for at, leaf in enumerate(leaves)]
        return nest.pack_sequence_as(result, items)

    return decorated


def Defun(  # noqa: N802
    *input_types: Any,
    grad_func: Callable[..., Any] | None = None,
    python_grad_func: Callable[..., Any] | None = None,
    **_: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function of nodes. Each call makes nodes anew, where TensorFlow keeps one copy for all calls.

    Args:
        *input_types: The dtypes of the arguments.
        grad_func: Takes the arguments, and the gradients of the outputs; gives those of the arguments.
        python_grad_func: Takes an operation with `inputs` and `outputs`, and the gradients of the outputs; gives those
            of the inputs.
        **_: Accepted.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, name: str | None = None) -> Any:
            nodes = [as_node(arg, kind) for arg, kind in zip(args, input_types or [None] * len(args), strict=True)]
            if grad_func is None and python_grad_func is None:
                return function(*nodes)

            def with_gradient(*inputs: Node) -> Any:
                result = function(*inputs)
                if python_grad_func is not None:
                    op = types.SimpleNamespace(inputs=inputs, outputs=nest.flatten(result))
                    return result, functools.partial(python_grad_func, op)
                assert grad_func is not None
                return result, functools.partial(grad_func, *inputs)

            return custom_gradient(with_gradient)(*nodes)

        return called

    return decorate


computes("IdentityN", lambda *values, count: values[:count])


def _variables_of(leaves: Sequence[Node], inputs: set[Node]) -> list[Variable]:
    reached = closure_of(leaves, lambda node: () if node in inputs else node.inputs)
    return [node for node in leaves[0].graph.nodes if isinstance(node, Variable) and node in reached - inputs]


@gradient_of("IdentityN")
def _own_gradient(node: Node, grads: Sequence[Node | None]) -> Sequence[Any]:
    if node.is_read:
        # A file does not choose what is called while a graph is built.
        raise LookupError(f"No gradient defined for operation '{node.op_name}' (op type: {node.op_type})")
    count: int = node.attrs["count"]
    given = [*grads, *[None] * (count - len(grads))]
    known = [zeros(leaf) if grad is None else grad for leaf, grad in zip(node.inputs[:count], given, strict=True)]
    found = node.attrs["gradient"](*known)
    return [*[None] * count, *(None if part is None else _converted(part) for part in found)]


def _converted(part: Any) -> Any:
    return part if hasattr(part, "indices") else as_node(part)


class RegisterGradient:
    """Registers the gradient of a name that `Graph.gradient_override_map` gives to the nodes of other ops.

    The decorated function takes the operation, and the gradient of each of its values; it returns that of each input.

    Args:
        op_type: The name.

    >>> import globalstep as gs
    >>> @gs.RegisterGradient("PassThrough")
    ... def pass_through(op, grad):
    ...     return grad
    >>> x = gs.constant(0.7)
    >>> with gs.get_default_graph().gradient_override_map({"Round": "PassThrough"}):
    ...     y = gs.round(x)
    >>> with gs.Session() as sess:
    ...     print(sess.run([y, gs.gradients(y, x)[0]]))
    [np.float32(1.0), np.float32(1.0)]
    """

    def __init__(self, op_type: str) -> None:
        if not isinstance(op_type, str):
            raise TypeError("op_type must be a string")
        self._op_type = op_type

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Register `f`, and return it."""

        def rule(node: Node, grad: Any) -> list[Any]:
            found = f(node.op, *(grad if isinstance(grad, list) else [grad]))
            parts = found if isinstance(found, (list, tuple)) else [found]
            return [None if part is None else _converted(part) for part in parts]

        gradient_of(self._op_type)(rule)
        return f
