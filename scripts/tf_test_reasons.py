"""Why tests of TensorFlow's are not meant to pass: a reason, and what the name and the text of such a failure match.

The first reason that fits a failure is its own. Failures are lines "file.Class.test: kind: text"; see tf_tests.py,
which writes them by their reasons to tests/compatibility/tf_tests.md.
"""

REASONS: dict[str, tuple[str, ...]] = {
    "Eager mode, functions as graphs, variants, resource handles: a graph is the only mode": (
        r"[Ee]ager|GradientTape|Defun|defun|dtypes\.variant|with_control_flow_v2|stub_resource",
        r"variable_creator_scope|DEFAULT_USE_RESOURCE|NoAdditionalReadOps|ResourceColocation",
    ),
    "Distribution strategies and their coordinator are absent": (
        r"[Dd]istribut(e|ion)_?([Cc]oordinator|Strategy|_test)|distribute\.Distr",
        r"Synchronization|testGetTrainableVariablesWith",
    ),
    "PS tasks have no rules of these optimizers of contrib/opt, which are absent": (
        r"contrib\.opt\.python\.training\.",
        r"(agn|drop_stale|elastic|model_average|external)_?\w*_test|ggt_test",
    ),
    "Tokens of SyncReplicasOptimizer have no effect: a run waits for its step (docs/deviations.md)": (
        r"SyncReplicasOptimizerTest",
    ),
    "AdamW takes the rate first (docs/deviations.md)": (r"AdamWOptimizerTest",),
    "Object-based checkpoints (Checkpoint, CheckpointManager, CheckpointedOp) are absent: gs.train.Saver saves": (
        r"saver_test_utils|checkpointable|Checkpoint(able|Manager)|'NoneType' object is not callable",
    ),
    "Graph files and events hold globalstep's nodes, not SaverDef, QueueRunnerDef, ServerDef (docs/deviations.md)": (
        r"DESCRIPTOR|QueueRunnerDef|to_proto|_add_collection_def|saver_def|meta_graph|MetaGraphTest",
        r"GraphDef was not|b'' is not true|testSharedName|test(Multi)?Queue\w*Constructor|Constructor\w*: ",
        r"default_session_config|not less than 29000|RunMetadata|ScopedGraphTest|_write_version|attribute 'sharded'",
    ),
    "What a PS task holds stays after Session.reset, and has one shape and one container (docs/deviations.md)": (
        r"the Variable has shape|VariableContainer|argument 'container'",
        r"server_lib_(multiple|same)|Isolate|testResetFails|testCloseCancels|testResetOfBlocking|TwoServersSamePort",
    ),
    "count_up_to counts on at the limit (docs/deviations.md)": (r"queue_runner_test\.\w+\.test(Basic|Start|TwoOps)",),
    "Private names of TensorFlow: what they do is tested by public ones": (
        r"private name: |object has no attribute '_(?!cached)\w+'|coordinator_test|KeepCheckpointEveryNHours",
        r"training_ops\.(sparse_)?apply_|gen_\w+_ops\.|pywrap_tensorflow\.|device_util|tensorboard_logging|test_ops",
        r"make_tensor_proto|assert_proper_iter|remove_squeezable|get_gradient_function|convert_n_to|tf_inspect",
        r"testing_utils|variable_op\b|scatter_nd_non_aliasing|strided_slice_grad|reduced_shape|parallel_dynamic",
        r"attribute '(op_def|get_attr|table_ref|save_slice_info|queue_ref|is_local|initialized_value|closed)'",
        r"weights_broadcast_ops|NoSuchNameError: tensorflow\.python\.ops\.(state_ops\.variable_op|sets\.)|_concat\(\)",
        r"FakeSummaryWriter|testRestoreRunsOnSameDevice|IdentityOpTest|testTensorStr|tensor_array_grad",
    ),
    "The test's numpy or Python is older": (
        r"numpy is newer|inhomogeneous|only 0-dimensional|module 'numpy' has no|`np\.\w+_?` was removed|'tostring'",
        r"Python integer -?\d+ out of bounds|truth value of an empty array|not all arguments converted during string",
    ),
    "Types that are absent: complex, bfloat16, quantized": (
        r"bfloat16|[cC]omplex|quantize|Conjugate|SplitOpTest\.testGradientsAll|ConcatOpTest\.testGradientsSimple",
        r"(SumReduction|CastOp)Test\.testGradients?: ",
    ),
    "A worker's session waits for a chief, which the test never starts, also where it has no Variables": (
        r"supervisor_test.*NonChief",
    ),
    "The ops of a run go one after another, and a graph is built by one thread": (
        r"testDequeueEnqueueFail|PyFuncTest\.testParallel|testTwoThreads|testBigEnqueueMany",
    ),
    "Files and packages that the test has not here, and more memory or time": (
        r"lmdb|LMDB|portpicker|saver_large|Timeout|takes more than",
    ),
    "An op without a value is a node, not an Operation": (
        r"ScaffoldTest|'Node' object has no attribute 'type'|NoVars",
    ),
    "Bodies of loops, and branches, give dense values, and a body changes no Variables": (
        r"body of a loop may not change|(Cond|WhileGrad_|WhileShapeInference)Sparse|WrtInitialLoopVal|testCond_4",
        r"TensorArrayState|PartStopGradient",
    ),
    "Operators take no sparse values: gs.sparse_tensor_to_dense makes them dense": (r"object of type SparseTensor",),
    "Constants are not folded, and one that fills is no input": (
        r"StackOpTest\.testConst|PyFuncTest\.testStateless|FillTest\.testGradient",
    ),
    "A Python error in a py_func stays what it is": (r"PyFuncTest\.testExceptionHandling",),
    "Several steps within a run, tfdbg and RunOptions that hooks merge": (
        r"steps_per_run|debug_tensor_watch|testCallsHooksBeginEnd",
    ),
    "Axes and numbers of parts must be known when the graph is built": (
        r"axis must be a number or a constant|must be known when|needs tables whose number|allowed by the axis remap",
    ),
    "Absent, with what to use instead (docs/compatibility.md)": (r"NoSuchNameError: \S+: ",),
    "Names and arguments that none of the programs asked for that were read (docs/compatibility.md)": (
        r"missing name: |missing argument: |NoSuchNameError|unexpected keyword argument",
        r"attribute '(export|serialize_state|is_feedable|is_fetchable)'|Int32IndexTable|int32_index_table|AsTensorTest",
    ),
    "What is known of a shape before the run is more, or less": (
        r"<unknown>|[\[ ]None[],].* != |!= \[.*None|\(\?,|as_list\(\) is not defined",
        r"Shape(Inference|Info|Uncertain|d?Placeholder)|SequenceMask|SparsePlaceholder|StaticShape|ShapeFunction|PartlyUnknown|SparseTransposeTest.testTranspose",
    ),
    "An error has another text, or another type": (
        r"does not match|Regex didn't match|queue_runner_test|is not iterable",
        r"^\w+\.\w+\.\w*(Error|Fail|Invalid|Bad|Wrong|Illegal|Mismatch|OutOfRange|[Rr]aises)\w*: ",
    ),
    "What TensorFlow refuses when the graph is built is refused in the run, or taken; or the other way round": (
        r"not raised|AsStringOpTest|TensorIndexing|With2DDefaults|invalid entry in coordinates|BroadcastAllDimensions",
    ),
    "A step is one before the session has initialized it": (r"which is not a step of this run",),
    "recover_session says whether the model is ready, also where no checkpoint was read": (r"NoChkptStillRunsLocal",),
    "Each FileWriter has a file of its own, also where a session is shared": (r"Sharing_withOtherSession",),
    "last_checkpoints has all that are there, also where none is deleted": (r"testNoMaxToKeep",),
    "The state file's name is refused as a checkpoint's by a RuntimeError; a caller's list stays as it was": (
        r"testNameCollision|testAllModelCheckpointPaths|testSaveToNonexistingPath|testDebugString",
    ),
    "State of averages without bias has other names, and is made once": (r"moving_averages_test",),
    "Softmax with cross entropy takes named arguments, as TensorFlow's public function does": (r"xent_op_test",),
    "Values that are rounded once, or drawn, by numpy; rows of one place are added up before": (
        r"relu_op_test|init_ops_test\.(Var|Trunc|Rand)|in_topk_op|ScatterAddSub|testMergeSummary",
    ),
    "TensorArray and slices have no grad, and no assign, of their own": (
        r"attribute '(grad|assign|mark_used)'|SliceAssignTest|TensorArrayTest",
    ),
    "A gradient is an array where TensorFlow has IndexedSlices": (r"IndexedSlices|has no attribute 'values'",),
    "The whole of a partitioned Variable has a node once it is used": (r"PartitionedV\w+\.testMeta",),
    "A cell that is built by itself makes its Variables in the current scope": (r"testCellsBuild",),
    "Variables hold numbers": (r"StringDefaultInitializer",),
    "A caching device and colocation have no effect: a run reads once": (
        r"[Cc]aching|[Cc]olocat|DevicePlacement|control_?inputs|ControlDeps|DependenciesDevice",
    ),
    "count_up_to counts on at the limit (docs/deviations.md), of Variables": (r"CountUpTo",),
    "A step_fn that loses its session is not run anew": (r"test_step_fn_recovery_from_coordinator",),
}
