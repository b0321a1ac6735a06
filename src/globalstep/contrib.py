"""`gs.contrib`: the few parts of tf.contrib that parameter-server programs use.

Layer: namespace.
"""

from globalstep.absent import ABSENT_IN_CONTRIB
from globalstep.lazy import nested_namespace
from globalstep.recurrence import CELLS

__all__ = ["framework", "layers", "metrics", "opt", "rnn", "seq2seq", "training"]

framework = nested_namespace(
    f"{__name__}.framework",
    {
        "globalstep.variables.named_variables": "variable=get_variable",
        "globalstep.variables.training_util": (
            "assert_global_step create_global_step get_global_step get_or_create_global_step"
        ),
        "globalstep.variables.variable_collections": (
            "get_local_variables=local_variables get_model_variables=model_variables "
            "get_trainable_variables=trainable_variables get_variables=global_variables"
        ),
    },
    absent={"arg_scope": "give the arguments to each layer, or bind them with functools.partial."},
)
layers = nested_namespace(
    f"{__name__}.layers",
    {
        "globalstep.ops.init_ops": (
            "variance_scaling_initializer xavier_initializer=glorot_uniform_initializer "
            "xavier_initializer_conv2d=glorot_uniform_initializer"
        ),
        "globalstep.ops.layer_ops": "flatten",
    },
    absent={
        "batch_norm": "use gs.layers.batch_normalization.",
        "conv2d": "use gs.layers.conv2d; it applies no activation unless it is given one.",
        "embed_sequence": "use gs.nn.embedding_lookup.",
        "fully_connected": "use gs.layers.dense; it applies no activation unless it is given one.",
        "l2_regularizer": "write it as a function: lambda w: scale * gs.nn.l2_loss(w).",
        "optimize_loss": "use an optimizer's minimize, with gs.clip_by_global_norm between its two halves if needed.",
    },
)
metrics = nested_namespace(
    f"{__name__}.metrics",
    {
        "globalstep.evaluation.streaming": (
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
opt = nested_namespace(
    f"{__name__}.opt", {"globalstep.optimizers.optimizers_modern": "AdamWOptimizer LazyAdamOptimizer"}
)
rnn = nested_namespace(
    f"{__name__}.rnn",
    {
        **CELLS,
        "globalstep.recurrence.lstm_cells": f"{CELLS['globalstep.recurrence.lstm_cells']} LayerNormBasicLSTMCell",
        "globalstep.recurrence.sequences": "static_bidirectional_rnn static_rnn",
    },
)
seq2seq = nested_namespace(f"{__name__}.seq2seq", {"globalstep.recurrence.sequence_losses": "sequence_loss"})
training = nested_namespace(
    f"{__name__}.training",
    {"globalstep.graph.device": "GreedyLoadBalancingStrategy RandomStrategy byte_size_load_fn"},
)


def __getattr__(name: str) -> object:
    hint = ABSENT_IN_CONTRIB.get(name) or f"of tf.contrib there are {', '.join(__all__)}."
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {hint}", name=name, obj=None)
