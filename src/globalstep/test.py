"""`gs.test`: what programs ask of a build of TensorFlow; tests themselves are written with pytest.

Floor: face.
"""

from globalstep.absent import ABSENT_IN_TEST
from globalstep.lazy import face

_NAMES = {"globalstep.build_info": "gpu_device_name is_built_with_cuda is_built_with_rocm is_gpu_available"}

__all__ = face(__name__, _NAMES, absent=ABSENT_IN_TEST)
