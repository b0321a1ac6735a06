"""`gs.math`: mathematical functions of nodes, as TensorFlow 1.15 groups them.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.ops.counting_ops": "confusion_matrix",
    "globalstep.tf1.ops.math_ops": (
        "abs accumulate_n acos add add_n asin atan atan2 ceil cos cosh divide divide_no_nan=div_no_nan "
        "equal exp expm1 floor floordiv floormod greater greater_equal is_finite is_inf is_nan less "
        "less_equal log log1p log_sigmoid logical_and logical_not logical_or logical_xor maximum minimum "
        "mod multiply negative not_equal pow reciprocal rint round rsqrt scalar_mul sigmoid sign sin "
        "sinh sqrt square squared_difference subtract tan tanh truediv"
    ),
    "globalstep.tf1.ops.nn_ops": "in_top_k log_softmax softmax softplus softsign top_k zero_fraction",
    "globalstep.tf1.ops.normalization_ops": "l2_normalize",
    "globalstep.tf1.ops.reduction_ops": (
        "argmax argmin bincount count_nonzero cumsum reduce_all reduce_any reduce_euclidean_norm reduce_logsumexp "
        "reduce_max reduce_mean reduce_min reduce_prod reduce_std reduce_sum reduce_variance"
    ),
    "globalstep.tf1.ops.ordering_ops": "cumprod",
    "globalstep.tf1.ops.partition_ops": "invert_permutation",
    "globalstep.tf1.ops.segment_ops": (
        "segment_max segment_mean segment_min segment_prod segment_sum unsorted_segment_max unsorted_segment_mean "
        "unsorted_segment_min unsorted_segment_prod unsorted_segment_sqrt_n unsorted_segment_sum"
    ),
    "globalstep.tf1.ops.special_ops": "acosh asinh atanh digamma erf erfc lbeta lgamma xdivy xlogy",
}

__all__ = namespace(__name__, _NAMES)
