"""`gs.sparse`: functions of sparse tensors."""

from globalstep.lazy import namespace

__all__ = namespace(
    __name__,
    absent=dict.fromkeys(
        ("cross", "cross_hashed", "expand_dims", "eye", "mask", "maximum", "merge", "minimum", "reduce_max",
         "reduce_max_sparse", "reduce_sum_sparse", "reset_shape", "segment_mean", "segment_sqrt_n", "segment_sum",
         "softmax", "split"),
        "compute it with numpy in gs.py_func, from the SparseTensor's three parts.",
    ),
)  # fmt: skip
