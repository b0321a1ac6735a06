"""Matrices: their diagonals and bands, and the solution of equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import composed, gradient_of
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import expand_dims, matrix_transpose
from globalstep.tf1.ops.building import operands, pairwise, require_float
from globalstep.tf1.ops.gradient_ops import rearranges, unbroadcast
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.ops.reduction_ops import reduce_sum


def _sizes(node: Node) -> list[int | None] | None:
    return None if node.shape.dims is None else node.shape.as_list()


def _eye(rows: int, columns: int, dtype: Any) -> Any:
    return np.eye(rows, columns, dtype=dtype)


@computes("MatrixDiagPart")
def _diagonal(value: Any) -> Any:
    """Give the main diagonals [..., min(m, n)] of matrices [..., m, n]."""
    length = min(np.shape(value)[-2:])
    places = np.arange(length)
    return value[..., places, places]


def diag(diagonal: Any, name: str | None = None) -> Node:
    """Give [*s, *s] with `diagonal` [*s] where both halves of the indices are equal, and 0 elsewhere."""
    node = as_node(diagonal)
    sizes = _sizes(node)
    shape = TensorShape(None if sizes is None else sizes + sizes)
    return Node("Diag", (node,), name=name, dtype=node.dtype, shape=shape)


@computes("Diag")
def _diag(value: Any) -> Any:
    shape = np.shape(value)
    count = int(np.prod(shape))
    flat = np.reshape(value, (count, 1)) * _eye(count, count, value.dtype)
    return np.reshape(flat, (*shape, *shape))


def diag_part(input: Any, name: str | None = None) -> Node:
    """Give of [*s, *s] the elements where both halves of the indices are equal: what `diag` was given.

    Raises:
        ValueError: If the two halves of the shape differ.
    """
    node = as_node(input)
    sizes = _sizes(node)
    if sizes is not None:
        half = len(sizes) // 2
        if not sizes or len(sizes) % 2 or not node.shape[:half].is_compatible_with(node.shape[half:]):
            raise ValueError(f"diag_part needs a shape of two equal halves; {node.name!r} has {node.shape}.")
    shape = TensorShape(None if sizes is None else sizes[: len(sizes) // 2])
    return Node("DiagPart", (node,), name=name, dtype=node.dtype, shape=shape)


@computes("DiagPart")
def _diag_part(value: Any) -> Any:
    shape = np.shape(value)[: np.ndim(value) // 2]
    count = int(np.prod(shape))
    return np.reshape(_diagonal(np.reshape(value, (count, count))), shape)


def matrix_diag(diagonal: Any, name: str | None = None) -> Node:
    """Give for each row [..., n] a matrix [..., n, n] with it on the diagonal."""
    node = as_node(diagonal)
    sizes = _sizes(node)
    shape = TensorShape(None if sizes is None else [*sizes, sizes[-1]])
    return Node("MatrixDiag", (node,), name=name, dtype=node.dtype, shape=shape)


computes("MatrixDiag", lambda v: np.expand_dims(v, -1) * _eye(np.shape(v)[-1], np.shape(v)[-1], v.dtype))


def matrix_diag_part(input: Any, name: str | None = None) -> Node:
    """Give the diagonals [..., min(m, n)] of matrices [..., m, n]."""
    node = as_node(input)
    return Node("MatrixDiagPart", (node,), name=name, dtype=node.dtype, shape=_diagonal_shape(node))


def _diagonal_shape(node: Node) -> TensorShape:
    sizes = _sizes(node)
    if sizes is None:
        return TensorShape(None)
    last = [size for size in sizes[-2:] if size is not None]
    return TensorShape([*sizes[:-2], min(last) if len(last) == 2 else None])


def matrix_set_diag(input: Any, diagonal: Any, name: str | None = None) -> Node:
    """Give matrices [..., m, n] with other diagonals [..., min(m, n)]."""
    node, new = operands("MatrixSetDiag", input, diagonal, ("input", "diagonal"))
    return Node("MatrixSetDiag", (node, new), name=name, dtype=node.dtype, shape=node.shape)


@computes("MatrixSetDiag")
def _set_diag(value: Any, line: Any) -> Any:
    rows, columns = np.shape(value)[-2:]
    rest = value * (1 - _eye(rows, columns, value.dtype))
    length = min(rows, columns)
    wide = np.expand_dims(line, -1) * _eye(length, columns, value.dtype)
    if rows > length:
        below = np.zeros((*np.shape(wide)[:-2], rows - length, columns), value.dtype)
        wide = np.concatenate([wide, below], axis=-2)
    return rest + wide


def matrix_band_part(input: Any, num_lower: Any, num_upper: Any, name: str | None = None) -> Node:
    """Give matrices [..., m, n] with 0 outside of a band around the diagonal.

    Args:
        input: Node or array.
        num_lower: How many diagonals below the main one stay: an int or an integer node; all if negative.
        num_upper: How many above it.
        name: Name of the node.

    Returns:
        A node like `input`.
    """
    node, lower, upper = as_node(input), as_node(num_lower), as_node(num_upper)
    return Node("MatrixBandPart", (node, lower, upper), name=name, dtype=node.dtype, shape=node.shape)


@computes("MatrixBandPart")
def _band_part(value: Any, below: Any, above: Any) -> Any:
    rows, columns = np.shape(value)[-2:]
    ahead = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    mask = ((below < 0) | (-ahead <= below)) & ((above < 0) | (ahead <= above))
    return value * mask.astype(value.dtype)


def trace(x: Any, name: str | None = None) -> Node:
    """Give the sums of the diagonals of matrices [..., m, n]."""
    node = as_node(x)
    sizes = _sizes(node)
    shape = TensorShape(None if sizes is None else sizes[:-2])
    return Node("Trace", (node,), name=name or "trace", dtype=node.dtype, shape=shape)


computes("Trace", lambda v: np.sum(_diagonal(v), axis=-1))


def _square(op_type: str, input: Any) -> Node:
    node = require_float(op_type, as_node(input), "input")
    sizes = _sizes(node)
    if sizes is not None and (len(sizes) < 2 or len({size for size in sizes[-2:] if size is not None}) > 1):
        raise ValueError(f"Dimensions must be equal: {op_type} needs square matrices; {node.name!r} has {node.shape}.")
    return node


def _solved(fn: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Give a function of matrices that says in TensorFlow's words why one cannot be solved."""

    def solve(*values: Any) -> Any:
        try:
            return fn(*values)
        except np.linalg.LinAlgError:
            raise InvalidArgumentError(what) from None

    return solve


def matrix_inverse(input: Any, adjoint: bool = False, name: str | None = None) -> Node:
    """Give the inverses of square matrices [..., n, n]; `adjoint` transposes them first.

    Raises:
        InvalidArgumentError: In the run: "Input is not invertible."
    """
    node = _square("MatrixInverse", input)
    node = matrix_transpose(node) if adjoint else node
    return Node("MatrixInverse", (node,), name=name, dtype=node.dtype, shape=node.shape)


computes("MatrixInverse", _solved(np.linalg.inv, "Input is not invertible."))


def matrix_determinant(input: Any, name: str | None = None) -> Node:
    """Give the determinants of square matrices [..., n, n]."""
    node = _square("MatrixDeterminant", input)
    sizes = _sizes(node)
    shape = TensorShape(None if sizes is None else sizes[:-2])
    return Node("MatrixDeterminant", (node,), name=name, dtype=node.dtype, shape=shape)


computes("MatrixDeterminant", np.linalg.det)


def cholesky(input: Any, name: str | None = None) -> Node:
    """Give the lower triangles L with L L^T = A of symmetric, positive definite matrices [..., n, n].

    Raises:
        InvalidArgumentError: In the run: "Cholesky decomposition was not successful. The input might not be valid."
    """
    node = _square("Cholesky", input)
    return Node("Cholesky", (node,), name=name, dtype=node.dtype, shape=node.shape)


computes(
    "Cholesky",
    _solved(np.linalg.cholesky, "Cholesky decomposition was not successful. The input might not be valid."),
)


def matrix_solve(matrix: Any, rhs: Any, adjoint: bool = False, name: str | None = None) -> Node:
    """Solve matrix @ x = rhs.

    Args:
        matrix: Floating node or array [..., n, n].
        rhs: Another of the same dtype [..., n, k].
        adjoint: Whether `matrix` is transposed first.
        name: Name of the node.

    Returns:
        A node [..., n, k].

    Raises:
        InvalidArgumentError: In the run: "Input matrix is not invertible."
    """
    left, right = operands("MatrixSolve", matrix, rhs, ("matrix", "rhs"))
    left = _square("MatrixSolve", left)
    left = matrix_transpose(left) if adjoint else left
    return Node("MatrixSolve", (left, right), name=name, dtype=right.dtype, shape=right.shape)


computes("MatrixSolve", _solved(lambda a, b: np.matmul(np.linalg.inv(a), b), "Input matrix is not invertible."))


def cross(a: Any, b: Any, name: str | None = None) -> Node:
    """Give the cross products of vectors [..., 3]."""
    return pairwise("Cross", a, b, name, names=("a", "b"))


@computes("Cross")
def _cross(x: Any, y: Any) -> Any:
    after, before = np.array([1, 2, 0]), np.array([2, 0, 1])
    return x[..., after] * y[..., before] - x[..., before] * y[..., after]


rearranges("Diag", "DiagPart", "MatrixBandPart", "MatrixDiag", "MatrixDiagPart")
rearranges("MatrixSetDiag", data=lambda node: [0, 1])


@gradient_of("Trace")
@composed
def _trace_gradient(node: Node) -> Node:
    return reduce_sum(matrix_diag_part(node.inputs[0]), [-1])


@gradient_of("MatrixInverse")
def _inverse_gradient(node: Node, grad: Node) -> Any:
    return (-matmul(node, matmul(grad, node, transpose_b=True), transpose_a=True),)


@gradient_of("MatrixDeterminant")
def _determinant_gradient(node: Node, grad: Node) -> Any:
    inverse = matrix_transpose(matrix_inverse(node.inputs[0]))
    return (expand_dims(expand_dims(grad * node, -1), -1) * inverse,)


@gradient_of("Cholesky")
def _cholesky_gradient(node: Node, grad: Node) -> Any:
    inverse = matrix_inverse(node)
    middle = matmul(node, grad, transpose_a=True)
    middle = matrix_band_part(matrix_set_diag(middle, 0.5 * matrix_diag_part(middle)), -1, 0)
    whole = matmul(matmul(inverse, middle, transpose_a=True), inverse)
    return (0.5 * (whole + matrix_transpose(whole)),)


@gradient_of("MatrixSolve")
def _solve_gradient(node: Node, grad: Node) -> Any:
    to_right = matrix_solve(node.inputs[0], grad, adjoint=True)
    return -matmul(to_right, node, transpose_b=True), to_right


@gradient_of("Cross")
def _cross_gradient(node: Node, grad: Node) -> Any:
    x, y = node.inputs
    return unbroadcast(cross(y, grad), x, y), unbroadcast(cross(grad, x), y, x)


def self_adjoint_eig(tensor: Any, name: str | None = None) -> tuple[Node, Node]:
    """Give the eigenvalues [..., n] of symmetric matrices, smallest first, and their vectors as columns [..., n, n].

    Only the lower triangles are read.
    """
    node = as_node(tensor)
    parts = Node("SelfAdjointEigV2", (node,), name=name or "self_adjoint_eig", attrs={"tuple": True})
    values = tuple_item(parts, 0, dtype=node.dtype, shape=node.shape[:-1])
    return values, tuple_item(parts, 1, dtype=node.dtype, shape=node.shape)


def self_adjoint_eigvals(tensor: Any, name: str | None = None) -> Node:
    """Give the eigenvalues of `self_adjoint_eig` alone."""
    return self_adjoint_eig(tensor, name or "self_adjoint_eigvals")[0]


computes("SelfAdjointEigV2", lambda matrices: tuple(np.linalg.eigh(matrices)))


@gradient_of("SelfAdjointEigV2")
def _eigen_gradient(node: Node, grads: Any) -> Any:
    of_values, of_vectors = [*grads, None][:2]
    values, vectors = self_adjoint_eig(node.inputs[0])
    middle = matrix_diag(0.0 * values if of_values is None else of_values)
    if of_vectors is not None:
        apart = 1.0 / matrix_set_diag(expand_dims(values, -2) - expand_dims(values, -1), 0.0 * values + 1.0)
        middle += matrix_set_diag(apart, 0.0 * values) * matmul(vectors, of_vectors, transpose_a=True)
    whole = matmul(vectors, matmul(middle, vectors, transpose_b=True))
    whole = matrix_band_part(whole + matrix_transpose(whole), -1, 0)
    return (matrix_set_diag(whole, 0.5 * matrix_diag_part(whole)),)
