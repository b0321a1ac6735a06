"""`gs.test`: what programs ask of a build of TensorFlow, and the test case that its users derive theirs from.

Layer: namespace.
"""

from globalstep.lazy import namespace
from globalstep.tf1.absent import ABSENT_IN_TEST

_NAMES = {
    "globalstep.tf1.gradient_checker": "compute_gradient compute_gradient_error",
    "globalstep.tf1.sessions.build_info": "gpu_device_name is_built_with_cuda is_built_with_rocm is_gpu_available",
    "globalstep.tf1.test_case": "TestCase create_local_cluster get_temp_dir main mock",
}

__all__ = namespace(__name__, _NAMES, absent=ABSENT_IN_TEST)
