"""Parts of TensorFlow 1.x that are absent, or have no effect, and what to use instead.

The texts of the first are those of the AttributeErrors; docs/compatibility.md lists both.
"""

_MODEL = (
    "models with recurrence or many convolutions are written in their own framework: wrap them with gs.torch, "
    "gs.jax or gs.py_loss."
)
KERAS_MODELS = f"build it of gs.layers; {_MODEL}"
_FEATURES = "use gs.feature_column, whose columns do the same."
_HIGH_LEVEL = "use gs.estimator, which has the Estimators of TensorFlow 1.15, or gs.train.MonitoredTrainingSession."
_STRATEGY = "use between-graph replication: gs.train.replica_device_setter, or `globalstep launch`."
_EXPORT = "use gs.saved_model.simple_save: it writes ONNX, which onnxruntime serves, and safetensors."

_EAGER = "graphs are built first and run by a session, as in TensorFlow 1.x."
_DEVICES = "computation is numpy's, on the CPU; for other devices use gs.torch or gs.jax."
_COMPUTE = "compute it with numpy or scipy in gs.py_func, or with gs.torch or gs.jax where gradients are needed."
_STEP_LOOP = "use gs.losses and gs.train with gs.train.MonitoredTrainingSession."

#: Absent from `globalstep` itself.
ABSENT = {
    **dict.fromkeys(("GradientTape", "enable_v2_behavior"), _EAGER),
    **dict.fromkeys(("tpu", "xla"), _DEVICES),
    **dict.fromkeys(("audio", "bitwise", "signal", "spectral"), _COMPUTE),
    "autograph": "Python's own loops run while the graph is built; use gs.cond and gs.while_loop.",
    "experimental": "what is here is listed in docs/compatibility.md.",
    "lite": _EXPORT,
    "quantization": "gs.WireOptions sends gradients as float16; models are float32 or float64.",
    "ragged": "pad sequences, and mask them with gs.sequence_mask.",
    "raw_ops": "the functions of gs, gs.math and gs.nn are the ops.",
    "sysconfig": "there is nothing to compile against; write the function with gs.py_func.",
    "user_ops": "write the function with gs.py_func or gs.py_loss.",
    "Dataset": "use gs.data.Dataset.",
    "PriorityQueue": "use gs.FIFOQueue, or sort in Python.",
    "audio_summary": "write sound to files; gs.summary has scalars, histograms and images.",
    "batch_matmul": "use gs.matmul, which multiplies batches of matrices since TensorFlow 1.0.",
    "complex_abs": "use gs.abs.",
    "enable_eager_execution": _EAGER,
    "function": "call a Python function while building the graph.",
    "hessians": "differentiate twice with gs.jax or gs.torch.",
    "inv": "use gs.reciprocal.",
    "load_op_library": "write the function with gs.py_func or gs.py_loss.",
    "profiler": "use gs.train.ProfilerHook.",
}

#: Absent from `globalstep.data` and `globalstep.data.experimental`.
ABSENT_IN_DATA = {
    **dict.fromkeys(
        ("sample_from_datasets", "SqlDataset", "rejection_resample"),
        "write it as a Python generator, and use gs.data.Dataset.from_generator.",
    ),
    "get_single_element": "use Dataset.make_one_shot_iterator().get_next().",
    "prefetch_to_device": "leave it out: computation is on the CPU.",
    "copy_to_device": "leave it out: computation is on the CPU.",
    "Options": "leave it out: elements are made one by one, in order.",
}  # fmt: skip

#: Absent from `globalstep.distribute`.
ABSENT_IN_DISTRIBUTE = {
    **dict.fromkeys(
        ("CrossDeviceOps", "HierarchicalCopyAllReduce", "InputContext", "MirroredStrategy", "NcclAllReduce",
         "OneDeviceStrategy", "ReduceOp", "ReductionToOneDevice", "ReplicaContext", "Strategy", "StrategyExtended",
         "experimental", "experimental_set_strategy", "get_replica_context", "get_strategy", "has_strategy",
         "in_cross_replica_context"),
        _STRATEGY,
    ),
    "cluster_resolver": "use gs.train.from_tf_config.",
}  # fmt: skip

#: Absent from `globalstep.contrib.framework`.
ABSENT_IN_FRAMEWORK = {
    "audio_ops": _COMPUTE,
    **dict.fromkeys(
        ("deprecated_arg_values", "deprecated_args"),
        "use gs.contrib.framework.deprecated for a whole function, or Python's warnings.",
    ),
}

#: Absent from `globalstep.test`.
ABSENT_IN_TEST = {
    "Benchmark": "measure with Python's time, or gs.train.ProfilerHook.",
    "assert_equal_graph_def": "compare what sessions give.",
    "test_src_dir_path": "use Python's __file__.",
}

#: Absent from `globalstep.python`, as a path below it.
ABSENT_IN_PYTHON = {
    "data": "use gs.data.",
    **dict.fromkeys(
        ("debug.LocalCLIDebugHook", "debug.LocalCLIDebugWrapperSession", "debug.TensorBoardDebugHook",
         "debug.TensorBoardDebugWrapperSession", "debug.has_inf_or_nan"),
        "print values by gs.Print, look at them in a hook, or stop in gs.py_func.",
    ),
    "keras": _MODEL,
    "tools": "use `globalstep checkpoint show`.",
}  # fmt: skip

#: Absent from `globalstep.contrib.learn`.
ABSENT_IN_LEARN = dict.fromkeys(
    ("DNNClassifier", "DNNLinearCombinedClassifier", "DNNRegressor", "Estimator", "LinearClassifier",
     "LinearRegressor", "ModeKeys", "infer_real_valued_columns_from_input", "monitors",
     "ModelFnOps", "models", "preprocessing", "SKCompat", "Trainable", "graph_actions"),
    _HIGH_LEVEL,
)  # fmt: skip

#: Absent from `globalstep.nn`.
ABSENT_IN_NN = dict.fromkeys(("ctc_loss", "dilation2d", "max_pool_with_argmax"), _MODEL)

#: Absent from `globalstep.image`.
ABSENT_IN_IMAGE = {"extract_glimpse": _COMPUTE}

#: Absent from `globalstep.train`.
ABSENT_IN_TRAIN = {**dict.fromkeys(("Checkpoint", "CheckpointManager"), "use gs.train.Saver.")}

#: Absent from `globalstep.contrib`.
ABSENT_IN_CONTRIB = {
    **dict.fromkeys(("autograph", "eager"), _EAGER),
    **dict.fromkeys(
        ("boosted_trees", "factorization", "kernel_methods", "linear_optimizer", "tensor_forest", "timeseries"),
        "use scikit-learn, or write the model with gs.layers.",
    ),
    **dict.fromkeys(("bayesflow", "ffmpeg", "image", "signal"), _COMPUTE),
    **dict.fromkeys(("all_reduce", "nccl", "tensorrt", "tpu", "xla"), _DEVICES),
    "gan": _STEP_LOOP,
    "graph_editor": "the graph is built by the program's own code.",
    "keras": _MODEL,
    "lite": _EXPORT,
    "quantize": "models are float32 or float64.",
    "saved_model": _EXPORT,
    "cluster_resolver": "use gs.train.from_tf_config.",
    "distribute": _STRATEGY,
    "session_bundle": _EXPORT,
    "summary": "use gs.summary.",
}

#: Absent from `globalstep.contrib.layers`.
ABSENT_IN_CONTRIB_LAYERS = {
    **dict.fromkeys(
        ("conv2d_in_plane", "convolution2d_in_plane", "gdn", "spatial_softmax"),
        f"use gs.contrib.layers.conv2d, or gs.nn; {_MODEL}",
    ),
    **dict.fromkeys(("group_norm", "instance_norm"), "use gs.contrib.layers.layer_norm, or gs.nn.moments."),
    **dict.fromkeys(
        ("embedding_column", "input_from_feature_columns", "real_valued_column", "sparse_column_with_hash_bucket",
         "sparse_column_with_keys", "create_feature_spec_for_parsing"),
        _FEATURES,
    ),
}  # fmt: skip

#: Absent from `globalstep.contrib.slim`.
ABSENT_IN_SLIM = {
    "nets": "write the model with the layers of gs.contrib.slim.",
    "queues": "use gs.train.start_queue_runners.",
}  # fmt: skip

#: Accepted so that programs run unchanged -> what it does here.
WITHOUT_EFFECT = {
    "ConfigProto": "fields are kept; one that is set is logged once as having no effect",
    "GPUOptions": "as ConfigProto; computation is numpy's, on the CPU",
    "GraphOptions": "as ConfigProto",
    "OptimizerOptions": "as ConfigProto",
    "RunOptions": "as ConfigProto, but for timeout_in_ms and trace_level: RunMetadata gets what a traced run did",
    "container": "all Variables and queues of a PS task are in one container",
    "compat.v1.disable_eager_execution": "graphs are the only mode",
    "compat.v1.disable_v2_behavior": "this is the behaviour of 1.x",
    "disable_eager_execution": "graphs are the only mode",
    "disable_v2_behavior": "this is the behaviour of 1.x",
}
