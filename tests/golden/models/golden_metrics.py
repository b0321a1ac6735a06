"""The metrics of the golden data: what scripts/make_golden_models.py runs in TensorFlow, and the tests here.

Imports neither; each side looks the names up in its own `metrics` module.
"""

from dataclasses import dataclass, field

import numpy as np

BATCHES = 3
SIZE = 16
CLASSES = 5


@dataclass(frozen=True)
class MetricCase:
    """A metric, the kind of its inputs, and its other arguments."""

    metric: str
    #: What is fed: a key of `_INPUTS`.
    kind: str
    number: int = 0
    arguments: dict = field(default_factory=dict)
    weighted: bool = False

    @property
    def name(self):
        return f"{self.metric}-{self.number}-{'weighted' if self.weighted else 'plain'}"


_THRESHOLDS = {"thresholds": [0.0, 0.25, 0.5, 0.9]}

# Metric, kind of inputs, sets of arguments.
_METRICS = (
    ("mean", "values", [{}]),
    ("mean_tensor", "values", [{}]),
    ("percentage_below", "values", [{"threshold": 0.1}]),
    ("accuracy", "classes", [{}]),
    ("mean_absolute_error", "numbers", [{}]),
    ("mean_squared_error", "numbers", [{}]),
    ("root_mean_squared_error", "numbers", [{}]),
    ("mean_relative_error", "relative", [{}]),
    ("mean_cosine_distance", "vectors", [{"dim": 1}]),
    ("true_positives", "bools", [{}]),
    ("true_negatives", "bools", [{}]),
    ("false_positives", "bools", [{}]),
    ("false_negatives", "bools", [{}]),
    ("precision", "bools", [{}]),
    ("recall", "bools", [{}]),
    (
        "auc",
        "probabilities",
        [
            {},
            {"curve": "PR"},
            {"curve": "PR", "summation_method": "careful_interpolation"},
            {"summation_method": "minoring", "num_thresholds": 20},
            {"summation_method": "majoring", "num_thresholds": 20},
            {"curve": "PR", "summation_method": "majoring", "thresholds": [0.5, 0.1]},
        ],
    ),
    ("true_positives_at_thresholds", "probabilities", [_THRESHOLDS]),
    ("true_negatives_at_thresholds", "probabilities", [_THRESHOLDS]),
    ("false_positives_at_thresholds", "probabilities", [_THRESHOLDS]),
    ("false_negatives_at_thresholds", "probabilities", [_THRESHOLDS]),
    ("precision_at_thresholds", "probabilities", [_THRESHOLDS]),
    ("recall_at_thresholds", "probabilities", [_THRESHOLDS]),
    ("sensitivity_at_specificity", "probabilities", [{"specificity": 0.7}]),
    ("specificity_at_sensitivity", "probabilities", [{"sensitivity": 0.7}]),
    ("mean_per_class_accuracy", "classes", [{"num_classes": CLASSES}]),
    ("mean_iou", "classes", [{"num_classes": CLASSES}]),
    ("precision_at_k", "scores", [{"k": 1}, {"k": 3}, {"k": 3, "class_id": 2}]),
    ("recall_at_k", "scores", [{"k": 1}, {"k": 3}, {"k": 3, "class_id": 2}]),
    ("average_precision_at_k", "scores", [{"k": 3}]),
    ("precision_at_k", "one label", [{"k": 2}]),
    ("recall_at_k", "one label", [{"k": 2}]),
    ("precision_at_top_k", "ranked", [{"k": 3}, {}]),
    ("recall_at_top_k", "ranked", [{"k": 3}, {"class_id": 1}]),
)


def metric_cases():
    """Every metric with each set of arguments, with and without weights."""
    counts: dict[str, int] = {}
    cases = []
    for metric, kind, all_arguments in _METRICS:
        for arguments in all_arguments:
            number = counts[metric] = counts.get(metric, -1) + 1
            cases += [MetricCase(metric, kind, number, arguments, weighted) for weighted in (False, True)]
    return cases


#: Kind -> name of the argument, dtype and shape of what is fed.
FED = {
    "values": {"values": ("float32", [SIZE])},
    "numbers": {"labels": ("float32", [SIZE]), "predictions": ("float32", [SIZE, 1])},
    "relative": {name: ("float32", [SIZE]) for name in ("labels", "predictions", "normalizer")},
    "vectors": {"labels": ("float32", [SIZE, 3]), "predictions": ("float32", [SIZE, 3])},
    "classes": {"labels": ("int64", [SIZE]), "predictions": ("int64", [SIZE])},
    "bools": {"labels": ("bool", [SIZE]), "predictions": ("bool", [SIZE])},
    "probabilities": {"labels": ("int64", [SIZE]), "predictions": ("float32", [SIZE])},
    "scores": {"labels": ("int64", [SIZE, 2]), "predictions": ("float32", [SIZE, CLASSES])},
    "ranked": {"labels": ("int64", [SIZE, 2]), "predictions_idx": ("int64", [SIZE, 3])},
    "one label": {"labels": ("int64", [SIZE]), "predictions": ("float32", [SIZE, CLASSES])},
}


def batches(kind):
    """Give what is fed in each run: argument -> array, weights among them."""
    random = np.random.RandomState(7)
    found = []
    for _ in range(BATCHES):
        batch = {}
        for argument, (dtype, shape) in FED[kind].items():
            if dtype == "float32":
                values = random.uniform(size=shape) if kind == "probabilities" else random.normal(size=shape)
            else:
                top = 2 if kind in ("bools", "probabilities") else CLASSES
                values = random.randint(0, top, size=shape)
            batch[argument] = values.astype(dtype)
        rows = [SIZE, 1] if kind == "vectors" else [SIZE]
        batch["weights"] = random.choice([0.0, 0.5, 1.0, 2.0], size=rows).astype(np.float32)
        found.append(batch)
    return found


def run(case, metrics, placeholder, session, initializer, names):
    """Run a case with either library; give the updates [BATCHES, ...], the value after them, and Variables' names.

    Args:
        case: The case.
        metrics: The module that has the metric.
        placeholder: Function of dtype and shape.
        session: The session.
        initializer: Gives the op that starts local Variables.
        names: Gives the names of the local Variables.
    """
    fed = {argument: placeholder(dtype, shape) for argument, (dtype, shape) in FED[case.kind].items()}
    if case.weighted:
        fed["weights"] = placeholder("float32", batches(case.kind)[0]["weights"].shape)
    value, update = getattr(metrics, case.metric)(**fed, **case.arguments)
    session.run(initializer())
    updates = [
        session.run(update, {node: batch[argument] for argument, node in fed.items()}) for batch in batches(case.kind)
    ]
    return {"updates": np.stack(updates), "value": session.run(value), "names": np.array(names())}
