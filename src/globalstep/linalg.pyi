# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.ops.array_ops import matrix_transpose as transpose
from globalstep.tf1.ops.constant_ops import eye as eye
from globalstep.tf1.ops.linear_operators import LinearOperator as LinearOperator
from globalstep.tf1.ops.linear_operators import LinearOperatorDiag as LinearOperatorDiag
from globalstep.tf1.ops.linear_operators import LinearOperatorFullMatrix as LinearOperatorFullMatrix
from globalstep.tf1.ops.linear_operators import LinearOperatorLowerTriangular as LinearOperatorLowerTriangular
from globalstep.tf1.ops.matrix_ops import cholesky as cholesky
from globalstep.tf1.ops.matrix_ops import cross as cross
from globalstep.tf1.ops.matrix_ops import diag as tensor_diag
from globalstep.tf1.ops.matrix_ops import diag_part as tensor_diag_part
from globalstep.tf1.ops.matrix_ops import matrix_band_part as band_part
from globalstep.tf1.ops.matrix_ops import matrix_determinant as det
from globalstep.tf1.ops.matrix_ops import matrix_diag as diag
from globalstep.tf1.ops.matrix_ops import matrix_diag_part as diag_part
from globalstep.tf1.ops.matrix_ops import matrix_inverse as inv
from globalstep.tf1.ops.matrix_ops import matrix_set_diag as set_diag
from globalstep.tf1.ops.matrix_ops import matrix_solve as solve
from globalstep.tf1.ops.matrix_ops import self_adjoint_eig as eigh
from globalstep.tf1.ops.matrix_ops import self_adjoint_eigvals as eigvalsh
from globalstep.tf1.ops.matrix_ops import trace as trace
from globalstep.tf1.ops.normalization_ops import l2_normalize as l2_normalize
from globalstep.tf1.ops.product_ops import einsum as einsum
from globalstep.tf1.ops.product_ops import matmul as matmul
from globalstep.tf1.ops.product_ops import tensordot as tensordot
from globalstep.tf1.ops.reduction_ops import norm as norm
