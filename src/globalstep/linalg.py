"""`gs.linalg`: functions of matrices, as TensorFlow 1.15 groups them.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.ops.array_ops": "transpose=matrix_transpose",
    "globalstep.tf1.ops.constant_ops": "eye",
    "globalstep.tf1.ops.matrix_ops": (
        "band_part=matrix_band_part cholesky cross det=matrix_determinant diag=matrix_diag "
        "diag_part=matrix_diag_part inv=matrix_inverse set_diag=matrix_set_diag solve=matrix_solve tensor_diag=diag "
        "tensor_diag_part=diag_part trace"
    ),
    "globalstep.tf1.ops.normalization_ops": "l2_normalize",
    "globalstep.tf1.ops.product_ops": "einsum matmul tensordot",
    "globalstep.tf1.ops.reduction_ops": "norm",
}

__all__ = namespace(
    __name__,
    _NAMES,
    absent=dict.fromkeys(
        ("cholesky_solve", "eigh", "eigvalsh", "expm", "logdet", "lstsq", "lu", "qr", "slogdet", "svd",
         "triangular_solve"),
        "compute it with numpy in gs.py_func, or with gs.torch or gs.jax where gradients are needed.",
    ),
)  # fmt: skip
