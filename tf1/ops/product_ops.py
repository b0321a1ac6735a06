"""Products of matrices and of arrays over several axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.execution import products
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import expand_dims, transpose
from globalstep.tf1.ops.building import operand_list, operands, static_ints
from globalstep.tf1.ops.gradient_ops import broadcast_like, sum_like

__all__ = ["einsum", "matmul", "tensordot"]


def _swap(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


#: Products of matrices, by whether each is transposed.
_PRODUCTS: dict[tuple[bool, bool], Callable[[Any, Any], Any]] = {
    (False, False): lambda u, v: products.matmul(u, v),
    (True, False): lambda u, v: products.matmul(u.T, v),
    (False, True): lambda u, v: products.matmul(u, v.T),
    (True, True): lambda u, v: products.matmul(u.T, v.T),
}


def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Node:
    """Multiply matrices, or batches of matrices.

    Args:
        a: Node or array [..., n, k] (or [..., k, n] with `transpose_a`).
        b: Node or array [..., k, m] (or [..., m, k] with `transpose_b`).
        transpose_a: Whether to transpose the last two dimensions of `a` first.
        transpose_b: The same for `b`.
        adjoint_a: The same as `transpose_a` for real values.
        adjoint_b: The same as `transpose_b` for real values.
        a_is_sparse: Accepted; a hint without effect here.
        b_is_sparse: Accepted; a hint without effect here.
        name: Name of the node.

    Returns:
        A node [..., n, m].

    Raises:
        ValueError: If the shapes do not fit, or both a transpose and an adjoint are asked for.
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError("Only one of transpose and adjoint can be True.")
    x, y = operands("MatMul", a, b, ("a", "b"))
    flip_a, flip_b = bool(transpose_a or adjoint_a), bool(transpose_b or adjoint_b)
    shape = _matmul_shape(x, y, flip_a, flip_b)
    attrs = {"transpose_a": flip_a, "transpose_b": flip_b}
    kind = "MatMul" if shape.ndims in (2, None) else "BatchMatMul"
    return Node(kind, (x, y), name=name or "MatMul", dtype=x.dtype, shape=shape, attrs=attrs)


@kernel_of("MatMul", "BatchMatMul")
def _matmul(node: Node) -> Any:
    flip_a, flip_b = node.attrs["transpose_a"], node.attrs["transpose_b"]
    of_matrices = _PRODUCTS[flip_a, flip_b]

    def product(u: Any, v: Any) -> Any:
        if np.ndim(u) == np.ndim(v) == 2:
            return of_matrices(u, v)
        return np.matmul(_swap(u) if flip_a else u, _swap(v) if flip_b else v)

    return of_matrices if all(part.shape.ndims == 2 for part in node.inputs) else product


@gradient_of("MatMul", "BatchMatMul")
def _matmul_gradient(node: Node, grad: Node) -> tuple[Node, Node]:
    a, b = node.inputs
    flip_a, flip_b = node.attrs["transpose_a"], node.attrs["transpose_b"]
    # Of transposed operands the product is the transposed one of the others.
    to_a = matmul(b, grad, transpose_a=flip_b, transpose_b=True) if flip_a else matmul(grad, b, transpose_b=not flip_b)
    to_b = matmul(grad, a, transpose_a=True, transpose_b=flip_a) if flip_b else matmul(a, grad, transpose_a=not flip_a)
    if a.shape.ndims == b.shape.ndims == 2:
        return to_a, to_b
    return sum_like(to_a, a), sum_like(to_b, b)


def _matmul_shape(x: Node, y: Node, flip_a: bool, flip_b: bool) -> TensorShape:
    if x.shape.dims is None or y.shape.dims is None:
        return TensorShape(None)
    for node in (x, y):
        if len(node.shape) < 2:
            raise ValueError(
                f"Shape must be rank 2 but is rank {len(node.shape)} for {node.name!r} (op: 'MatMul') with "
                f"input shapes: {x.shape}, {y.shape}."
            )
    (*lead_a, n, k), (*lead_b, k2, m) = x.shape.as_list(), y.shape.as_list()
    n, k = (k, n) if flip_a else (n, k)
    k2, m = (m, k2) if flip_b else (k2, m)
    if k is not None and k2 is not None and k != k2:
        raise ValueError(
            f"Dimensions must be equal, but are {k} and {k2} for {x.name!r} and {y.name!r} (op: 'MatMul') "
            f"with input shapes: {x.shape}, {y.shape}."
        )
    lead = lead_a if len(lead_a) >= len(lead_b) else lead_b
    return TensorShape([*lead, n, m])


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Node:
    """Sum products over some axes of two arrays.

    Args:
        a: Node or array.
        b: Node or array of the same dtype.
        axes: How many of the last axes of `a` and first of `b` to sum over, or a pair of axis lists.
        name: Name of the node.

    Returns:
        A node.
    """
    x, y = operands("Tensordot", a, b, ("a", "b"))
    pairs: Any = axes if isinstance(axes, int) else tuple(list(static_ints(part, "axes")) for part in axes)
    shape = _tensordot_shape(x.shape, y.shape, pairs)
    return Node("Tensordot", (x, y), name=name, dtype=x.dtype, shape=shape, attrs={"axes": pairs})


@computes("Tensordot")
def _tensordot(u: Any, v: Any, *, axes: Any) -> Any:
    return np.tensordot(u, v, axes)


@gradient_of("Tensordot")
def _tensordot_gradient(node: Node, grad: Node) -> tuple[Node, Node]:
    x, y = node.inputs
    ranks, axes = (len(x.shape), len(y.shape)), node.attrs["axes"]
    pairs = (range(ranks[0] - axes, ranks[0]), range(axes)) if isinstance(axes, int) else axes
    summed = [[axis % rank for axis in part] for part, rank in zip(pairs, ranks, strict=True)]
    free = [[axis for axis in range(rank) if axis not in part] for part, rank in zip(summed, ranks, strict=True)]
    lead = len(free[0])
    to_x = tensordot(grad, y, [range(lead, lead + len(free[1])), free[1]])
    order_x = [*free[0], *(summed[0][summed[1].index(axis)] for axis in sorted(summed[1]))]
    to_y = tensordot(x, grad, [free[0], range(lead)])
    order_y = [*(summed[1][summed[0].index(axis)] for axis in sorted(summed[0])), *free[1]]
    return transpose(to_x, np.argsort(order_x).tolist()), transpose(to_y, np.argsort(order_y).tolist())


@gradient_of("Einsum")
def _einsum_gradient(node: Node, grad: Node) -> list[Node]:
    left, arrow, right = node.attrs["equation"].replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        once = sorted(letter for letter in set(left) - set(",.") if left.count(letter) == 1)
        right = ("..." if "." in left else "") + "".join(once)
    return [_einsum_part(node, grad, [*terms], right, at) for at in range(len(terms))]


def _einsum_part(node: Node, grad: Node, terms: list[str], right: str, at: int) -> Node:
    own, operand = terms.pop(at), node.inputs[at]
    letters = own.replace(".", "")
    if len(set(letters)) < len(letters):
        raise LookupError(
            f"No gradient defined for operation '{node.op_name}' (op type: Einsum): {own!r} repeats a label"
        )
    # What is in no other term was summed over: each of its elements has the same gradient.
    alone = [letter for letter in letters if letter not in right + "".join(terms)]
    kept = "".join(letter for letter in own if letter not in alone)
    kept = kept if "." in right + "".join(terms) else kept.replace(".", "")
    others = [other for place, other in enumerate(node.inputs) if place != at]
    made = einsum(f"{','.join([right, *terms])}->{kept}", grad, *others)
    if alone:
        before, _, after = own.partition("...")
        for place, letter in enumerate(before):
            made = expand_dims(made, place) if letter in alone else made
        for place, letter in enumerate(reversed(after)):
            made = expand_dims(made, -1 - place) if letter in alone else made
        made = broadcast_like(made, operand)
    return sum_like(made, operand)


def _tensordot_shape(x: TensorShape, y: TensorShape, axes: Any) -> TensorShape:
    if x.dims is None or y.dims is None:
        return TensorShape(None)
    pairs = (range(-axes, 0), range(axes)) if isinstance(axes, int) else axes
    dims: list[int | None] = []
    for shape, summed in zip((x, y), pairs, strict=True):
        gone = {axis + len(shape) if axis < 0 else axis for axis in summed}
        dims += [size for axis, size in enumerate(shape.as_list()) if axis not in gone]
    return TensorShape(dims)


def einsum(equation: str, *inputs: Any, name: str | None = None) -> Node:
    """Sum products as an Einstein convention says, e.g. `einsum("ij,jk->ik", a, b)`.

    Args:
        equation: The subscripts.
        *inputs: Nodes or arrays of one dtype, as many as the equation has.
        name: Name of the node.

    Returns:
        A node.
    """
    nodes = operand_list("Einsum", inputs, "inputs")
    shape = _einsum_shape(equation, [node.shape for node in nodes])
    return Node("Einsum", nodes, name=name, dtype=nodes[0].dtype, shape=shape, attrs={"equation": equation})


@computes("Einsum")
def _einsum(*values: Any, equation: str) -> Any:
    return np.einsum(equation, *values)


def _einsum_shape(equation: str, shapes: Sequence[TensorShape]) -> TensorShape:
    left, arrow, right = equation.replace(" ", "").partition("->")
    sizes: dict[str | int, int | None] = {}
    dots = 0
    for term, shape in zip(left.split(","), shapes, strict=False):
        if shape.dims is None:
            return TensorShape(None)
        before, has_dots, after = term.partition("...")
        spread = len(shape) - len(before) - len(after)
        if spread < 0 or (spread and not has_dots):
            return TensorShape(None)
        dots = max(dots, spread)
        for label, size in zip((*before, *range(-spread, 0), *after), shape.as_list(), strict=True):
            # Of sizes that broadcast, the one that is not 1.
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label] or (size if size != 1 else None)
    if not arrow:
        labels = sorted(letter for letter in set(left) - set(",.") if left.count(letter) == 1)
        right = ("..." if dots else "") + "".join(labels)
    before, has_dots, after = right.partition("...")
    result = [sizes.get(label) for label in (*before, *(range(-dots, 0) if has_dots else ()), *after)]
    return TensorShape(result)
