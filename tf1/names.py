"""TensorFlow 1's names in `globalstep` itself, for programs that say `import globalstep as tf`.

`globalstep` looks here for a name that is none of its own.

Layer: tf1.
"""

from __future__ import annotations

from globalstep.runtime.log_format import write_to_stderr
from globalstep.tf1.absent import ABSENT

__all__ = ["ABSENT", "MODULES", "NAMES"]

#: Modules of globalstep that are reached by a name.
_MODULES = (
    "app compat contrib core data debugging distribute distributions dtypes examples feature_column flags "
    "gfile graph_util image initializers io layers linalg logging lookup losses math metrics nest nn "
    "python python_io queue random saved_model sparse strings summary test train"
)
MODULES = _MODULES.split()

#: Module -> its names; "new=old" gives `old` as `new`.
NAMES = {
    "globalstep.tf1.variables.assignments": (
        "assign assign_add assign_sub count_up_to scatter_add scatter_sub scatter_update"
    ),
    "globalstep.tf1.variables.element_assignments": (
        "scatter_div scatter_max scatter_min scatter_mul scatter_nd_add scatter_nd_sub scatter_nd_update"
    ),
    "globalstep.tf1.ops.clipping": "clip_by_average_norm clip_by_global_norm clip_by_norm clip_by_value global_norm",
    "globalstep.compat": "disable_eager_execution disable_v2_behavior",
    "globalstep.config": "GPUOptions GraphOptions OptimizerOptions RunOptions",
    "globalstep.tf1.graph.device": "DeviceSpec",
    "globalstep.dtypes": (
        "DType as_dtype bool=bool_ complex64 complex128 double=float64 float16 float32 float64 half=float16 "
        "int8 int16 int32 int64 string uint8 uint16 uint32 uint64"
    ),
    "globalstep.tf1.gradients.gradients": "AggregationMethod gradients",
    "globalstep.tf1.exporting.graph_files": "import_graph_def",
    "globalstep.tf1.graph.graph": (
        "Graph GraphKeys Node Operation Tensor=Node add_to_collection add_to_collections colocate_with "
        "container control_dependencies device get_collection get_collection_ref get_default_graph name_scope "
        "reset_default_graph"
    ),
    "globalstep.tf1.graph.indexed_slices": "IndexedSlices",
    "globalstep.tf1.images.geometry": "random_crop",
    "globalstep.tf1.loops.functional": "foldl foldr map_fn scan",
    "globalstep.tf1.loops.tensor_array": "TensorArray",
    "globalstep.tf1.loops.while_loops": "while_loop",
    "globalstep.tf1.variables.named_variables": "get_local_variable get_variable",
    "globalstep.tf1.ops.array_ops": (
        "broadcast_dynamic_shape broadcast_static_shape broadcast_to check_numerics expand_dims identity "
        "matrix_transpose rank reshape shape shape_n size squeeze stop_gradient transpose "
        "verify_tensor_all_finite"
    ),
    "globalstep.tf1.ops.constant_ops": (
        "constant convert_to_tensor convert_to_tensor_or_indexed_slices eye fill lin_space linspace ones "
        "ones_like placeholder placeholder_with_default range zeros zeros_like"
    ),
    "globalstep.tf1.ops.conditional_ops": "case cond",
    "globalstep.tf1.ops.counting_ops": "confusion_matrix",
    "globalstep.tf1.ops.static_checks": (
        "assert_integer assert_rank assert_rank_at_least assert_rank_in assert_type is_tensor"
    ),
    "globalstep.tf1.ops.control_flow_ops": (
        "Assert Print assert_equal assert_greater assert_greater_equal assert_less assert_less_equal "
        "assert_negative assert_non_negative assert_non_positive assert_none_equal assert_positive group "
        "initialize_all_tables=tables_initializer no_op py_func tables_initializer tuple"
    ),
    "globalstep.tf1.graph.sparse_tensor": "SparseTensor SparseTensorValue",
    "globalstep.tf1.ops.sparse_ops": (
        "sparse_add sparse_concat sparse_fill_empty_rows sparse_placeholder sparse_reduce_sum sparse_reorder "
        "sparse_reshape sparse_retain sparse_slice sparse_tensor_dense_matmul sparse_to_indicator "
        "sparse_transpose"
    ),
    "globalstep.tf1.ops.indexing_ops": (
        "boolean_mask gather gather_nd newaxis one_hot scatter_nd select=where slice strided_slice where"
    ),
    "globalstep.tf1.ops.init_ops": (
        "constant_initializer glorot_normal_initializer glorot_uniform_initializer ones_initializer "
        "orthogonal_initializer random_normal_initializer random_uniform_initializer "
        "truncated_normal_initializer uniform_unit_scaling_initializer variance_scaling_initializer "
        "zeros_initializer"
    ),
    "globalstep.tf1.ops.joining_ops": (
        "concat pack pad parallel_stack reverse reverse_v2 split stack tile unpack unstack"
    ),
    "globalstep.tf1.ops.matrix_ops": (
        "cholesky cross diag diag_part matrix_band_part matrix_determinant matrix_diag matrix_diag_part "
        "matrix_inverse matrix_set_diag matrix_solve trace"
    ),
    "globalstep.tf1.ops.math_ops": (
        "abs accumulate_n acos add add_n asin atan atan2 cast ceil cos cosh div div_no_nan divide equal exp "
        "expm1 floor floordiv floormod greater greater_equal is_finite is_inf is_nan less less_equal log "
        "log1p log_sigmoid logical_and logical_not logical_or logical_xor maximum minimum mod mul=multiply "
        "multiply neg=negative negative not_equal pow realdiv reciprocal rint round rsqrt saturate_cast "
        "scalar_mul sigmoid sign sin sinh sqrt square squared_difference sub=subtract subtract tan tanh "
        "to_bfloat16 to_double to_float to_int32 to_int64 truediv truncatediv truncatemod"
    ),
    "globalstep.tf1.ops.ordering_ops": (
        "argsort batch_gather cumprod listdiff=setdiff1d meshgrid repeat roll setdiff1d sort "
        "unique_with_counts unravel_index"
    ),
    "globalstep.tf1.ops.parsing_ops": (
        "decode_csv decode_raw FixedLenFeature FixedLenSequenceFeature parse_example parse_single_example "
        "sparse_tensor_to_dense sparse_to_dense SparseFeature VarLenFeature"
    ),
    "globalstep.tf1.ops.sequence_parsing": "parse_single_sequence_example",
    "globalstep.tf1.ops.partition_ops": "dynamic_partition dynamic_stitch invert_permutation sequence_mask unique",
    "globalstep.tf1.ops.product_ops": "einsum matmul tensordot",
    "globalstep.tf1.ops.random_ops": (
        "multinomial random_gamma random_normal random_poisson random_shuffle random_uniform set_random_seed "
        "truncated_normal"
    ),
    "globalstep.tf1.ops.reduction_ops": (
        "arg_max=argmax arg_min=argmin argmax argmin bincount count_nonzero cumsum norm reduce_all reduce_any "
        "reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_sum"
    ),
    "globalstep.tf1.ops.reversal_ops": "reverse_sequence",
    "globalstep.tf1.ops.segment_ops": (
        "segment_max segment_mean segment_min segment_prod segment_sum unsorted_segment_max "
        "unsorted_segment_mean unsorted_segment_min unsorted_segment_prod unsorted_segment_sqrt_n "
        "unsorted_segment_sum"
    ),
    "globalstep.tf1.ops.spatial_ops": (
        "batch_to_space batch_to_space_nd depth_to_space extract_image_patches space_to_batch "
        "space_to_batch_nd space_to_depth"
    ),
    "globalstep.tf1.ops.special_ops": "acosh asinh atanh digamma erf erfc lbeta lgamma",
    "globalstep.tf1.ops.summary_ops_v0": (
        "histogram_summary image_summary merge_all_summaries merge_summary scalar_summary"
    ),
    "globalstep.tf1.variables.partitioned_variables": (
        "PartitionedVariable fixed_size_partitioner min_max_variable_partitioner variable_axis_size_partitioner"
    ),
    "globalstep.tf1.graph.shapes": "Dimension TensorShape",
    "globalstep.files.tensorboard_protos": (
        "Event GraphDef HistogramProto MetaGraphDef NodeDef RunMetadata SessionLog Summary"
    ),
    "globalstep.tf1.text.file_ops": "matching_files read_file write_file",
    "globalstep.tf1.text.string_numbers": "as_string string_to_number",
    "globalstep.tf1.text.string_ops": (
        "decode_base64 encode_base64 reduce_join regex_replace string_join string_split string_strip "
        "string_to_hash_bucket string_to_hash_bucket_fast string_to_hash_bucket_strong substr"
    ),
    "globalstep.tf1.variables.variable_collections": (
        "all_variables assert_variables_initialized global_variables global_variables_initializer "
        "initialize_all_variables initialize_local_variables initialize_variables is_variable_initialized "
        "local_variables local_variables_initializer model_variables moving_average_variables "
        "report_uninitialized_variables trainable_variables variables_initializer"
    ),
    "globalstep.tf1.variables.variable_scope": (
        "AUTO_REUSE VariableScope get_variable_scope no_regularizer variable_op_scope variable_scope"
    ),
    "globalstep.tf1.variables.variables": "Variable",
    "globalstep.tf1.inputs.queues": "FIFOQueue PaddingFIFOQueue QueueBase RandomShuffleQueue",
    "globalstep.tf1.inputs.readers": (
        "FixedLengthRecordReader IdentityReader ReaderBase TFRecordReader TextLineReader WholeFileReader"
    ),
    "globalstep.tf1.sessions.session": "InteractiveSession Session get_default_session",
}

# Programs for TensorFlow 1.x look for lines of the log on stderr, whether or not they have set up logging.
write_to_stderr()
