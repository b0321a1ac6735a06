# Made by scripts/generate_faces.py from the table in the .py beside it; do not edit.

from globalstep.build_info import gpu_device_name as gpu_device_name
from globalstep.build_info import is_built_with_cuda as is_built_with_cuda
from globalstep.build_info import is_built_with_rocm as is_built_with_rocm
from globalstep.build_info import is_gpu_available as is_gpu_available
