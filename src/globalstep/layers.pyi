# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.ops.layer_ops import average_pooling2d as average_pooling2d
from globalstep.ops.layer_ops import batch_normalization as batch_normalization
from globalstep.ops.layer_ops import conv2d as conv2d
from globalstep.ops.layer_ops import dense as dense
from globalstep.ops.layer_ops import dropout as dropout
from globalstep.ops.layer_ops import flatten as flatten
from globalstep.ops.layer_ops import max_pooling2d as max_pooling2d
