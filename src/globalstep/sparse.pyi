# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.graph.sparse_tensor import SparseTensor as SparseTensor
from globalstep.tf1.ops.parsing_ops import sparse_tensor_to_dense as to_dense
from globalstep.tf1.ops.sparse_ops import from_dense as from_dense
from globalstep.tf1.ops.sparse_ops import sparse_add as add
from globalstep.tf1.ops.sparse_ops import sparse_concat as concat
from globalstep.tf1.ops.sparse_ops import sparse_fill_empty_rows as fill_empty_rows
from globalstep.tf1.ops.sparse_ops import sparse_placeholder as placeholder
from globalstep.tf1.ops.sparse_ops import sparse_reduce_sum as reduce_sum
from globalstep.tf1.ops.sparse_ops import sparse_reorder as reorder
from globalstep.tf1.ops.sparse_ops import sparse_reshape as reshape
from globalstep.tf1.ops.sparse_ops import sparse_retain as retain
from globalstep.tf1.ops.sparse_ops import sparse_slice as slice
from globalstep.tf1.ops.sparse_ops import sparse_tensor_dense_matmul as matmul
from globalstep.tf1.ops.sparse_ops import sparse_tensor_dense_matmul as sparse_dense_matmul
from globalstep.tf1.ops.sparse_ops import sparse_to_indicator as to_indicator
from globalstep.tf1.ops.sparse_ops import sparse_transpose as transpose
