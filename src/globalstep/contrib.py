"""`gs.contrib`: the few parts of tf.contrib that parameter-server programs use."""

import sys

from globalstep.lazy import nested_namespace
from globalstep.tf1.absent import (
    ABSENT_IN_CONTRIB,
    ABSENT_IN_CONTRIB_LAYERS,
    ABSENT_IN_DATA,
    ABSENT_IN_FRAMEWORK,
    ABSENT_IN_LEARN,
    ABSENT_IN_SLIM,
)
from globalstep.tf1.data import TRANSFORMATIONS
from globalstep.tf1.module_paths import module_paths
from globalstep.tf1.rnn import CELLS

__all__ = [
    "crf",
    "data",
    "distributions",
    "estimator",
    "feature_column",
    "framework",
    "layers",
    "learn",
    "legacy_seq2seq",
    "lookup",
    "losses",
    "metrics",
    "nn",
    "opt",
    "predictor",
    "rnn",
    "seq2seq",
    "slim",
    "tensorboard",
    "tfprof",
    "training",
]

_ARG_SCOPE = "add_arg_scope arg_scope arg_scoped_arguments current_arg_scope has_arg_scope"
_RESTORING = "assign_from_checkpoint assign_from_checkpoint_fn"
_STEPS = "assert_global_step create_global_step get_global_step get_or_create_global_step"
_MODEL_VARIABLES = (
    "VariableDeviceChooser add_model_variable assert_or_get_global_step assign_from_values "
    "assign_from_values_fn filter_variables get_local_variables get_model_variables get_trainable_variables "
    "get_unique_variable get_variable_full_name get_variables get_variables_by_name get_variables_by_suffix "
    "get_variables_to_restore global_variable local_variable model_variable variable"
)
_INITIALIZERS = "variance_scaling_initializer xavier_initializer xavier_initializer_conv2d=xavier_initializer"
_LAYERS = (
    "avg_pool2d bias_add conv1d conv2d convolution convolution1d convolution2d dropout elu flatten fully_connected "
    "legacy_fully_connected legacy_relu linear max_pool2d maxout one_hot_encoding relu relu6 repeat softmax stack "
    "unit_norm"
)
_CONVOLUTIONS = (
    "avg_pool3d conv2d_transpose conv3d conv3d_transpose convolution2d_transpose convolution3d "
    "convolution3d_transpose max_pool3d separable_conv2d separable_convolution2d"
)
_REGULARIZERS = "apply_regularization l1_l2_regularizer l1_regularizer l2_regularizer sum_regularizer"
_SUMMARIES = (
    "summarize_activation summarize_activations summarize_biases summarize_collection summarize_tensor "
    "summarize_tensors summarize_variables summarize_weights"
)
_LOSSES = (
    "absolute_difference cosine_distance hinge_loss log_loss mean_squared_error sigmoid_cross_entropy "
    "softmax_cross_entropy sparse_softmax_cross_entropy sum_of_squares"
)
_TOTAL_LOSSES = "add_loss compute_weighted_loss get_losses get_regularization_losses get_total_loss"

distributions = nested_namespace(
    f"{__name__}.distributions",
    {
        "globalstep.tf1.distributions.continuous": "Laplace Logistic StudentT Uniform",
        "globalstep.tf1.distributions.counts": "DirichletMultinomial Multinomial Poisson",
        "globalstep.tf1.distributions.discrete": "Bernoulli Categorical OneHotCategorical",
        "globalstep.tf1.distributions.normal": (
            "MultivariateNormalDiag MultivariateNormalDiagWithSoftplusScale Normal NormalWithSoftplusScale"
        ),
        "globalstep.tf1.distributions.parameters": "softplus_inverse",
    },
    like="globalstep.distributions",
)
_CRF = "crf_binary_score crf_decode crf_log_likelihood crf_log_norm crf_sequence_score crf_unary_score viterbi_decode"
crf = nested_namespace(f"{__name__}.crf", {"globalstep.tf1.contrib.crf": _CRF})
data = nested_namespace(f"{__name__}.data", TRANSFORMATIONS, ABSENT_IN_DATA, like="globalstep.data")
estimator = nested_namespace(
    f"{__name__}.estimator",
    {
        "globalstep.tf1.estimator.canned": "DNNEstimator DNNLinearCombinedEstimator LinearEstimator",
        "globalstep.tf1.estimator.extenders": (
            "add_metrics clip_gradients_by_norm forward_features make_early_stopping_hook read_eval_metrics "
            "stop_if_higher_hook stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook"
        ),
        "globalstep.tf1.estimator.heads": (
            "binary_classification_head logistic_regression_head multi_class_head multi_head multi_label_head "
            "poisson_regression_head regression_head"
        ),
    },
)
feature_column = nested_namespace(
    f"{__name__}.feature_column",
    {"globalstep.tf1.feature_columns.sequences": "sequence_input_layer"},
    like="globalstep.feature_column",
)
framework = nested_namespace(
    f"{__name__}.framework",
    {
        "globalstep.tf1.variables.checkpoint_variables": (
            "init_from_checkpoint list_variables load_checkpoint load_variable"
        ),
        "globalstep.tf1.slim.restoring": _RESTORING,
        "globalstep.tf1.contrib.arg_scope": _ARG_SCOPE,
        "globalstep.tf1.contrib.deprecation": "deprecated",
        "globalstep.tf1.contrib.model_variables": _MODEL_VARIABLES,
        "globalstep.tf1.ops.static_checks": "is_tensor",
        "globalstep.tf1.variables.training_util": _STEPS,
    },
    absent=ABSENT_IN_FRAMEWORK,
)
#: An attribute, and a module that can be imported.
framework.__dict__["nest"] = nested_namespace(
    f"{__name__}.framework.nest",
    {"globalstep.tf1.graph.nest": "assert_same_structure flatten is_sequence map_structure pack_sequence_as"},
)
layers = nested_namespace(
    f"{__name__}.layers",
    {
        "globalstep.tf1.contrib.contrib_convolutions": _CONVOLUTIONS,
        "globalstep.tf1.contrib.contrib_initializers": _INITIALIZERS,
        "globalstep.tf1.contrib.contrib_layers": _LAYERS,
        "globalstep.tf1.contrib.contrib_normalization": "batch_norm layer_norm",
        "globalstep.tf1.contrib.embeddings": "bow_encoder embed_sequence",
        "globalstep.tf1.ops.embedding_ops": "safe_embedding_lookup_sparse",
        "globalstep.tf1.contrib.summarizing": _SUMMARIES,
        "globalstep.tf1.contrib.training_ops": "OPTIMIZER_CLS_NAMES OPTIMIZER_SUMMARIES optimize_loss",
        "globalstep.tf1.layers.regularizers": _REGULARIZERS,
    },
    absent=ABSENT_IN_CONTRIB_LAYERS,
)
learn = nested_namespace(
    f"{__name__}.learn",
    {"globalstep.tf1.estimator.experiment": "Experiment learn_runner", "globalstep.estimator": "RunConfig"},
    absent=ABSENT_IN_LEARN,
)
losses = nested_namespace(
    f"{__name__}.losses",
    {"globalstep.tf1.contrib.contrib_losses": _LOSSES, "globalstep.tf1.losses": _TOTAL_LOSSES},
)
metrics = nested_namespace(
    f"{__name__}.metrics",
    {
        "globalstep.tf1.metrics.streaming": (
            "accuracy aggregate_metric_map aggregate_metrics streaming_accuracy streaming_auc "
            "streaming_false_negatives streaming_false_positives streaming_mean streaming_mean_absolute_error "
            "streaming_mean_cosine_distance streaming_mean_iou streaming_mean_relative_error "
            "streaming_mean_squared_error streaming_mean_tensor streaming_percentage_less streaming_precision "
            "streaming_precision_at_thresholds streaming_recall streaming_recall_at_k streaming_recall_at_thresholds "
            "streaming_root_mean_squared_error streaming_sensitivity_at_specificity streaming_sparse_precision_at_k "
            "streaming_sparse_recall_at_k streaming_specificity_at_sensitivity streaming_true_negatives "
            "streaming_true_positives"
        ),
    },
)
tensorboard = nested_namespace(f"{__name__}.tensorboard", {})
_plugins = tensorboard.__dict__["plugins"] = nested_namespace(f"{__name__}.tensorboard.plugins", {})
_plugins.__dict__["projector"] = nested_namespace(
    f"{__name__}.tensorboard.plugins.projector",
    {"globalstep.tf1.contrib.projector": "EmbeddingInfo ProjectorConfig SpriteMetadata visualize_embeddings"},
)
nn = nested_namespace(
    f"{__name__}.nn",
    {
        "globalstep.tf1.ops.cross_entropy_ops": (
            "deprecated_flipped_sigmoid_cross_entropy_with_logits deprecated_flipped_softmax_cross_entropy_with_logits "
            "deprecated_flipped_sparse_softmax_cross_entropy_with_logits"
        ),
    },
)
opt = nested_namespace(
    f"{__name__}.opt", {"globalstep.tf1.optimizers.optimizers_modern": "AdamWOptimizer LazyAdamOptimizer"}
)
legacy_seq2seq = nested_namespace(
    f"{__name__}.legacy_seq2seq",
    {
        "globalstep.tf1.rnn.legacy_decoders": ("basic_rnn_seq2seq rnn_decoder sequence_loss sequence_loss_by_example"),
    },
)
lookup = nested_namespace(
    f"{__name__}.lookup",
    {
        "globalstep.tf1.text.lookup_tables": (
            "HashTable IdTableWithHashBuckets KeyValueTensorInitializer MutableHashTable StaticVocabularyTable "
            "TextFileIndex TextFileInitializer"
        ),
        "globalstep.tf1.text.vocabularies": (
            "index_table_from_file index_table_from_tensor index_to_string index_to_string_table_from_file "
            "index_to_string_table_from_tensor string_to_index string_to_index_table_from_file=index_table_from_file "
            "string_to_index_table_from_tensor=index_table_from_tensor"
        ),
    },
    absent={"MutableDenseHashTable": "use gs.contrib.lookup.MutableHashTable."},
)
predictor = nested_namespace(
    f"{__name__}.predictor", {"globalstep.tf1.contrib.predictor": "from_estimator from_saved_model"}
)
rnn = nested_namespace(
    f"{__name__}.rnn",
    {
        **CELLS,
        "globalstep.tf1.rnn.fused_cells": ("FusedRNNCell FusedRNNCellAdaptor LSTMBlockFusedCell TimeReversedFusedRNN"),
        "globalstep.tf1.rnn.lstm_cells": "BasicLSTMCell LSTMBlockCell LSTMCell LayerNormBasicLSTMCell NASCell",
        "globalstep.tf1.rnn.sequences": "stack_bidirectional_dynamic_rnn static_bidirectional_rnn static_rnn",
    },
)
seq2seq = nested_namespace(
    f"{__name__}.seq2seq",
    {
        "globalstep.tf1.rnn.attention": (
            "AttentionMechanism AttentionWrapper AttentionWrapperState BahdanauAttention LuongAttention tile_batch"
        ),
        "globalstep.tf1.rnn.decoder_inputs": "GreedyEmbeddingHelper SampleEmbeddingHelper TrainingHelper",
        "globalstep.tf1.rnn.decoders": "BasicDecoder BasicDecoderOutput Decoder dynamic_decode",
        "globalstep.tf1.rnn.sequence_losses": "sequence_loss",
    },
    absent={
        "BeamSearchDecoder": "decode with gs.contrib.seq2seq.GreedyEmbeddingHelper or SampleEmbeddingHelper.",
        "ScheduledEmbeddingTrainingHelper": "train with gs.contrib.seq2seq.TrainingHelper.",
    },
)
slim = nested_namespace(
    f"{__name__}.slim",
    {
        "globalstep.tf1.slim.restoring": _RESTORING,
        "globalstep.tf1.contrib.arg_scope": _ARG_SCOPE,
        "globalstep.tf1.contrib.contrib_convolutions": _CONVOLUTIONS,
        "globalstep.tf1.contrib.contrib_initializers": _INITIALIZERS,
        "globalstep.tf1.contrib.contrib_layers": _LAYERS,
        "globalstep.tf1.contrib.contrib_normalization": "batch_norm layer_norm",
        "globalstep.tf1.contrib.model_variables": _MODEL_VARIABLES,
        "globalstep.tf1.contrib.summarizing": _SUMMARIES,
        "globalstep.tf1.layers.regularizers": _REGULARIZERS,
        "globalstep.tf1.variables.training_util": _STEPS,
    },
    absent={**ABSENT_IN_CONTRIB_LAYERS, **ABSENT_IN_SLIM},
)
_LEARNING = {
    "globalstep.tf1.slim.learning": "train train_step",
    "globalstep.tf1.contrib.training_ops": (
        "add_gradients_summaries clip_gradient_norms create_train_op multiply_gradients"
    ),
}
_DATA = {
    "data_decoder": "DataDecoder",
    "data_provider": "DataProvider",
    "dataset": "Dataset",
    "dataset_data_provider": "DatasetDataProvider",
    "parallel_reader": "get_data_files parallel_read",
    "tfexample_decoder": "BoundingBox Image ItemHandler ItemHandlerCallback TFExampleDecoder Tensor",
}
_WITHIN_SLIM = {
    **{
        name: nested_namespace(f"{__name__}.slim.{name}", {"globalstep.tf1.slim.datasets": names})
        for name, names in _DATA.items()
    },
    "layers": layers,
    "learning": nested_namespace(f"{__name__}.slim.learning", _LEARNING),
    "losses": losses,
    "model_analyzer": nested_namespace(
        f"{__name__}.slim.model_analyzer", {"globalstep.tf1.contrib.model_analysis": "analyze_vars"}
    ),
    "prefetch_queue": nested_namespace(
        f"{__name__}.slim.prefetch_queue", {"globalstep.tf1.inputs.prefetch_queue": "prefetch_queue"}
    ),
    "utils": nested_namespace(
        f"{__name__}.slim.utils",
        {
            "globalstep.tf1.contrib.named_outputs": (
                "append_tensor_alias collect_named_outputs convert_collection_to_dict gather_tensors_aliases "
                "get_tensor_aliases last_dimension"
            ),
        },
    ),
}
# They are attributes, and modules that can be imported: `from globalstep.contrib.slim.learning import train`.
slim.__dict__.update(_WITHIN_SLIM)
sys.modules.update({f"{__name__}.slim.{name}": module for name, module in _WITHIN_SLIM.items()})
tfprof = nested_namespace(f"{__name__}.tfprof", {})
#: An attribute, and a module that can be imported.
tfprof.__dict__["model_analyzer"] = nested_namespace(
    f"{__name__}.tfprof.model_analyzer",
    {
        "globalstep.tf1.contrib.model_analysis": (
            "FLOAT_OPS_OPTIONS TRAINABLE_VARS_PARAMS_STAT_OPTIONS print_model_analysis"
        ),
    },
)
training = nested_namespace(
    f"{__name__}.training",
    {
        "globalstep.tf1.contrib.hyper_parameters": "HParams",
        "globalstep.tf1.graph.device": "GreedyLoadBalancingStrategy RandomStrategy byte_size_load_fn",
    },
)


#: For `import globalstep.contrib.learn`; see AbsentImports.
__path__: list[str] = []
public_absent = ABSENT_IN_CONTRIB
module_paths(
    __name__,
    {
        "framework.python.framework.checkpoint_utils": "gs.train",
        "framework.python.ops": "gs.contrib.framework",
        "framework.python.ops.arg_scope": "gs.contrib.framework",
        "framework.python.ops.variables": "gs.contrib.framework gs.contrib.slim",
        "layers.python.layers": "gs.contrib.layers",
        "layers.python.layers.encoders": "gs.contrib.layers",
        "layers.python.layers.initializers": "gs.contrib.layers",
        "layers.python.layers.layers": "gs.contrib.layers",
        "layers.python.layers.optimizers": "gs.contrib.layers",
        "layers.python.layers.regularizers": "gs.contrib.layers",
        "layers.python.layers.summaries": "gs.contrib.layers",
        "layers.python.layers.utils": "gs.contrib.slim.utils",
        "crf.python.ops.crf": "gs.contrib.crf",
        "learn.datasets": "gs.tf1.mnist.base",
        "learn.datasets.base": "gs.tf1.mnist.base",
        "learn.datasets.mnist": "gs.tf1.mnist.mnist gs.tf1.mnist.mnist_files",
        "learn.python.learn.learn_runner": "gs.tf1.estimator.experiment:run",
        "learn.python.learn.run_config": "gs.contrib.learn",
        "learn.python.learn.datasets": "gs.tf1.mnist.base",
        "learn.python.learn.datasets.base": "gs.tf1.mnist.base",
        "learn.python.learn.datasets.mnist": "gs.tf1.mnist.mnist gs.tf1.mnist.mnist_files",
        "learn.python.learn.utils.input_fn_utils": "",
        "learn.python.learn.utils.saved_model_export_utils": "",
        "losses.python.losses.loss_ops": "gs.contrib.losses",
        "metrics.python.ops.metric_ops": "gs.contrib.metrics",
        "rnn.python.ops.core_rnn": "gs.contrib.rnn",
        "rnn.python.ops.core_rnn_cell": "gs.contrib.rnn gs.tf1.rnn.linear",
        "rnn.python.ops.core_rnn_cell_impl": "gs.contrib.rnn gs.tf1.rnn.linear",
        "rnn.python.ops.lstm_ops": "gs.contrib.rnn",
        "rnn.python.ops.rnn": "gs.contrib.rnn",
        "rnn.python.ops.rnn_cell": "gs.contrib.rnn",
        **{f"slim.python.slim.data.{name}": f"gs.contrib.slim.{name}" for name in _DATA},
        "slim.python.slim.data.prefetch_queue": "gs.contrib.slim.prefetch_queue",
        "slim.python.slim.learning": "gs.contrib.slim.learning",
        "training.python.training.hparam": "gs.contrib.training",
    },
)


def __getattr__(name: str) -> object:
    hint = ABSENT_IN_CONTRIB.get(name) or f"of tf.contrib there are {', '.join(__all__)}."
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {hint}", name=name, obj=None)
