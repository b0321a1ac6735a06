"""`gs.sparse`: functions of sparse tensors.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.graph.sparse_tensor": "SparseTensor",
    "globalstep.tf1.ops.parsing_ops": "to_dense=sparse_tensor_to_dense",
    "globalstep.tf1.ops.sparse_ops": (
        "add=sparse_add concat=sparse_concat fill_empty_rows=sparse_fill_empty_rows from_dense "
        "matmul=sparse_tensor_dense_matmul placeholder=sparse_placeholder reduce_sum=sparse_reduce_sum "
        "reorder=sparse_reorder reshape=sparse_reshape retain=sparse_retain slice=sparse_slice "
        "sparse_dense_matmul=sparse_tensor_dense_matmul to_indicator=sparse_to_indicator transpose=sparse_transpose"
    ),
}

__all__ = namespace(
    __name__,
    _NAMES,
    absent=dict.fromkeys(
        ("cross", "cross_hashed", "expand_dims", "eye", "mask", "maximum", "merge", "minimum", "reduce_max",
         "reduce_max_sparse", "reduce_sum_sparse", "reset_shape", "segment_mean", "segment_sqrt_n", "segment_sum",
         "softmax", "split"),
        "compute it with numpy in gs.py_func, from the SparseTensor's three parts.",
    ),
)  # fmt: skip
