"""`tf.linalg.LinearOperator` and those of its kinds that are dense matrices."""

from __future__ import annotations

from typing import Any

from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import expand_dims, matrix_transpose, shape, squeeze
from globalstep.tf1.ops.math_ops import abs, log
from globalstep.tf1.ops.matrix_ops import (
    matrix_band_part,
    matrix_determinant,
    matrix_diag,
    matrix_diag_part,
    matrix_solve,
    trace,
)
from globalstep.tf1.ops.product_ops import matmul


class LinearOperator:
    """A matrix [..., m, n], or a batch of them.

    Source: TensorFlow 1.15 `tf.linalg.LinearOperator`.

    Args:
        matrix: Node or array.
        is_non_singular: What is known of it, as TensorFlow takes it.
        is_self_adjoint: The same.
        is_positive_definite: The same.
        is_square: The same.
        name: Its name.
    """

    def __init__(
        self,
        matrix: Any,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
    ) -> None:
        self._matrix = as_node(matrix)
        self.is_non_singular, self.is_self_adjoint = is_non_singular, is_self_adjoint
        self.is_positive_definite, self.is_square = is_positive_definite, is_square
        self.name = name or type(self).__name__
        self.dtype = self._matrix.dtype
        if self._matrix.shape.ndims is not None and self._matrix.shape.ndims < 2:
            raise ValueError(f"Argument matrix must have at least 2 dimensions. Found: {self._matrix.shape}")

    @property
    def shape(self) -> TensorShape:
        """[..., m, n]."""
        return self._matrix.shape

    @property
    def batch_shape(self) -> TensorShape:
        """[...]."""
        return TensorShape(self.shape[:-2])

    @property
    def range_dimension(self) -> Any:
        """The size m."""
        return self.shape[-2]

    @property
    def domain_dimension(self) -> Any:
        """The size n."""
        return self.shape[-1]

    def shape_tensor(self, name: str | None = None) -> Node:
        """Give the shape as a node."""
        return shape(self._matrix, name=name)

    def to_dense(self, name: str | None = None) -> Node:
        """Give the matrix."""
        return self._matrix

    def diag_part(self, name: str | None = None) -> Node:
        """Give the diagonal [..., min(m, n)]."""
        return matrix_diag_part(self._matrix, name=name)

    def trace(self, name: str | None = None) -> Node:
        """Give the sum of the diagonal."""
        return trace(self._matrix, name=name)

    def determinant(self, name: str | None = None) -> Node:
        """Give the determinant."""
        return matrix_determinant(self._matrix, name=name)

    def log_abs_determinant(self, name: str | None = None) -> Node:
        """Give the logarithm of the determinant's size."""
        return log(abs(self.determinant()), name=name)

    def matmul(self, x: Any, adjoint: bool = False, adjoint_arg: bool = False, name: str | None = None) -> Node:
        """Multiply with matrices [..., n, k]; `adjoint` transposes this one first, `adjoint_arg` the other."""
        return matmul(self._matrix, x, transpose_a=adjoint, transpose_b=adjoint_arg, name=name)

    def matvec(self, x: Any, adjoint: bool = False, name: str | None = None) -> Node:
        """Multiply with vectors [..., n]."""
        return squeeze(self.matmul(expand_dims(x, -1), adjoint), [-1], name=name)

    def solve(self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False, name: str | None = None) -> Node:
        """Solve matrix @ x = rhs for x, [..., n, k]."""
        right = matrix_transpose(rhs) if adjoint_arg else rhs
        return matrix_solve(self._matrix, right, adjoint, name=name)

    def solvevec(self, rhs: Any, adjoint: bool = False, name: str | None = None) -> Node:
        """Solve matrix @ x = rhs for vectors [..., n]."""
        return squeeze(self.solve(expand_dims(rhs, -1), adjoint), [-1], name=name)

    def add_to_tensor(self, x: Any, name: str | None = None) -> Node:
        """Add matrices."""
        return self._matrix + as_node(x)


class LinearOperatorFullMatrix(LinearOperator):
    """Any matrix; see LinearOperator."""


class LinearOperatorLowerTriangular(LinearOperator):
    """The lower triangle of a matrix, with zeros above.

    Args:
        tril: [..., n, n]; what is above the diagonal is not looked at.
        *known: As for LinearOperator.
        **further: The same.
    """

    def __init__(self, tril: Any, *hints: Any, **further: Any) -> None:
        super().__init__(matrix_band_part(tril, -1, 0), *hints, **further)


class LinearOperatorDiag(LinearOperator):
    """A matrix with zeros beside its diagonal.

    Args:
        diag: [..., n].
        *known: As for LinearOperator.
        **further: The same.
    """

    def __init__(self, diag: Any, *hints: Any, **further: Any) -> None:
        super().__init__(matrix_diag(diag), *hints, **further)
