# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.gradient_checker import compute_gradient as compute_gradient
from globalstep.tf1.gradient_checker import compute_gradient_error as compute_gradient_error
from globalstep.tf1.sessions.build_info import gpu_device_name as gpu_device_name
from globalstep.tf1.sessions.build_info import is_built_with_cuda as is_built_with_cuda
from globalstep.tf1.sessions.build_info import is_built_with_rocm as is_built_with_rocm
from globalstep.tf1.sessions.build_info import is_gpu_available as is_gpu_available
from globalstep.tf1.test_case import TestCase as TestCase
from globalstep.tf1.test_case import create_local_cluster as create_local_cluster
from globalstep.tf1.test_case import get_temp_dir as get_temp_dir
from globalstep.tf1.test_case import main as main
from globalstep.tf1.test_case import mock as mock
