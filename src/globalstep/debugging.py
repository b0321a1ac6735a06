"""`gs.debugging`: checks of values and shapes, as TensorFlow 1.15 groups them.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.ops.array_ops": "assert_all_finite=verify_tensor_all_finite check_numerics",
    "globalstep.tf1.ops.control_flow_ops": (
        "Assert assert_equal assert_greater assert_greater_equal assert_less assert_less_equal assert_negative "
        "assert_non_negative assert_non_positive assert_none_equal assert_positive"
    ),
    "globalstep.tf1.ops.math_ops": "is_finite is_inf is_nan",
    "globalstep.tf1.ops.static_checks": ("assert_integer assert_rank assert_rank_at_least assert_rank_in assert_type"),
}

__all__ = namespace(__name__, _NAMES)
