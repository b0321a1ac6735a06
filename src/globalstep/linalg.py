"""`gs.linalg`: functions of matrices, as TensorFlow 1.15 groups them."""

from globalstep.lazy import namespace

__all__ = namespace(
    __name__,
    absent=dict.fromkeys(
        ("cholesky_solve", "eigh", "eigvalsh", "expm", "logdet", "lstsq", "lu", "qr", "slogdet", "svd",
         "triangular_solve"),
        "compute it with numpy in gs.py_func, or with gs.torch or gs.jax where gradients are needed.",
    ),
)  # fmt: skip
