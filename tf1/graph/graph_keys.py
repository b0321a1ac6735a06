"""Names of the standard collections of a graph, TensorFlow's.

Layer: tf1. Imports nothing of globalstep.
"""

from __future__ import annotations


class GraphKeys:
    """Names of the standard collections, TensorFlow's values."""

    GLOBAL_VARIABLES = "variables"
    VARIABLES = "variables"
    ALL_VARIABLES = "variables"
    LOCAL_VARIABLES = "local_variables"
    METRIC_VARIABLES = "metric_variables"
    MODEL_VARIABLES = "model_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    REGULARIZATION_LOSSES = "regularization_losses"
    LOSSES = "losses"
    GLOBAL_STEP = "global_step"
    SUMMARIES = "summaries"
    SUMMARY_OP = "summary_op"
    QUEUE_RUNNERS = "queue_runners"
    TABLE_INITIALIZERS = "table_initializer"
    SAVERS = "savers"
    TRAIN_OP = "train_op"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
    UPDATE_OPS = "update_ops"
    WEIGHTS = "weights"
    BIASES = "biases"
    ACTIVATIONS = "activations"
    ASSET_FILEPATHS = "asset_filepaths"
    CONCATENATED_VARIABLES = "concatenated_variables"
    COND_CONTEXT = "cond_context"
    EVAL_STEP = "eval_step"
    LOCAL_RESOURCES = "local_resources"
    RESOURCES = "resources"
    SAVEABLE_OBJECTS = "saveable_objects"
    TRAINABLE_RESOURCE_VARIABLES = "trainable_resource_variables"
    WHILE_CONTEXT = "while_context"
