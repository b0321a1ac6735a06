# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.ops.array_ops import check_numerics as check_numerics
from globalstep.tf1.ops.array_ops import verify_tensor_all_finite as assert_all_finite
from globalstep.tf1.ops.control_flow_ops import Assert as Assert
from globalstep.tf1.ops.control_flow_ops import assert_equal as assert_equal
from globalstep.tf1.ops.control_flow_ops import assert_greater as assert_greater
from globalstep.tf1.ops.control_flow_ops import assert_greater_equal as assert_greater_equal
from globalstep.tf1.ops.control_flow_ops import assert_less as assert_less
from globalstep.tf1.ops.control_flow_ops import assert_less_equal as assert_less_equal
from globalstep.tf1.ops.control_flow_ops import assert_negative as assert_negative
from globalstep.tf1.ops.control_flow_ops import assert_non_negative as assert_non_negative
from globalstep.tf1.ops.control_flow_ops import assert_non_positive as assert_non_positive
from globalstep.tf1.ops.control_flow_ops import assert_none_equal as assert_none_equal
from globalstep.tf1.ops.control_flow_ops import assert_positive as assert_positive
from globalstep.tf1.ops.math_ops import is_finite as is_finite
from globalstep.tf1.ops.math_ops import is_inf as is_inf
from globalstep.tf1.ops.math_ops import is_nan as is_nan
from globalstep.tf1.ops.static_checks import assert_integer as assert_integer
from globalstep.tf1.ops.static_checks import assert_near as assert_near
from globalstep.tf1.ops.static_checks import assert_rank as assert_rank
from globalstep.tf1.ops.static_checks import assert_rank_at_least as assert_rank_at_least
from globalstep.tf1.ops.static_checks import assert_rank_in as assert_rank_in
from globalstep.tf1.ops.static_checks import assert_type as assert_type
