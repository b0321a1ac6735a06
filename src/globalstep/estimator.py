"""`gs.estimator`: Estimators as TensorFlow 1.15 has them, in its roles of a cluster."""

from globalstep.lazy import namespace, nested_namespace

__all__ = [*namespace(__name__), "experimental", "export", "inputs"]

_HOOKS = (
    "make_early_stopping_hook stop_if_higher_hook stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook"
)
experimental = nested_namespace(
    f"{__name__}.experimental",
    {"globalstep.tf1.estimator.canned": "LinearEstimator", "globalstep.tf1.estimator.extenders": _HOOKS},
)
export = nested_namespace(
    f"{__name__}.export",
    {
        "globalstep.tf1.estimator.export": (
            "ServingInputReceiver TensorServingInputReceiver build_parsing_serving_input_receiver_fn "
            "build_raw_serving_input_receiver_fn"
        ),
        "globalstep.tf1.estimator.model_fn": "ClassificationOutput ExportOutput PredictOutput RegressionOutput",
    },
)
inputs = nested_namespace(
    f"{__name__}.inputs", {"globalstep.tf1.estimator.input_fns": "numpy_input_fn pandas_input_fn"}
)
