"""`gs.metrics`: metrics of a model over many batches, in local Variables.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.metrics.classes": "mean_iou mean_per_class_accuracy",
    "globalstep.tf1.metrics.counts": ("false_negatives false_positives precision recall true_negatives true_positives"),
    "globalstep.tf1.metrics.means": (
        "accuracy mean mean_absolute_error mean_cosine_distance mean_relative_error mean_squared_error mean_tensor "
        "percentage_below root_mean_squared_error"
    ),
    "globalstep.tf1.metrics.ranking": (
        "average_precision_at_k precision_at_k precision_at_top_k recall_at_k recall_at_top_k "
        "sparse_average_precision_at_k sparse_precision_at_k"
    ),
    "globalstep.tf1.metrics.thresholds": (
        "auc false_negatives_at_thresholds false_positives_at_thresholds precision_at_thresholds recall_at_thresholds "
        "sensitivity_at_specificity specificity_at_sensitivity true_negatives_at_thresholds "
        "true_positives_at_thresholds"
    ),
}

__all__ = namespace(__name__, _NAMES)
