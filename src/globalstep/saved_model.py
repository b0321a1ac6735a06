"""`gs.saved_model`: models in a directory with their values, for `loader.load` and for onnxruntime."""

import sys
from types import ModuleType
from typing import Any

from globalstep.lazy import namespace, nested_namespace

_SIGNATURES = "globalstep.tf1.exporting.signatures"
_TABLES = {
    "builder": {"globalstep.tf1.exporting.saved_model": "SavedModelBuilder"},
    "loader": {
        "globalstep.tf1.exporting.saved_model": "load",
        "globalstep.tf1.exporting.saved_model_files": "maybe_saved_model_directory=contains_saved_model",
    },
    "signature_def_utils": {
        _SIGNATURES: (
            "build_signature_def classification_signature_def is_valid_signature predict_signature_def "
            "regression_signature_def"
        )
    },
    "utils": {_SIGNATURES: "build_tensor_info get_tensor_from_tensor_info"},
}
#: Texts that programs and servers agree on, as in TensorFlow.
_TEXTS: dict[str, dict[str, Any]] = {
    "constants": {
        "ASSETS_DIRECTORY": "assets",
        "ASSETS_KEY": "saved_model_assets",
        "LEGACY_INIT_OP_KEY": "legacy_init_op",
        "MAIN_OP_KEY": "saved_model_main_op",
        "SAVED_MODEL_FILENAME_PB": "saved_model.pb",
        "SAVED_MODEL_FILENAME_PBTXT": "saved_model.pbtxt",
        "SAVED_MODEL_SCHEMA_VERSION": 1,
        "VARIABLES_DIRECTORY": "variables",
        "VARIABLES_FILENAME": "variables",
    },
    "signature_constants": {
        "CLASSIFY_INPUTS": "inputs",
        "CLASSIFY_METHOD_NAME": "tensorflow/serving/classify",
        "CLASSIFY_OUTPUT_CLASSES": "classes",
        "CLASSIFY_OUTPUT_SCORES": "scores",
        "DEFAULT_SERVING_SIGNATURE_DEF_KEY": "serving_default",
        "PREDICT_INPUTS": "inputs",
        "PREDICT_METHOD_NAME": "tensorflow/serving/predict",
        "PREDICT_OUTPUTS": "outputs",
        "REGRESS_INPUTS": "inputs",
        "REGRESS_METHOD_NAME": "tensorflow/serving/regress",
        "REGRESS_OUTPUTS": "outputs",
    },
    "tag_constants": {"GPU": "gpu", "SERVING": "serve", "TRAINING": "train"},
}
__all__ = [*namespace(__name__), *_TABLES, *_TEXTS]


def _constants(name: str) -> ModuleType:
    module = ModuleType(f"{__name__}.{name}", f"Constants of {__name__}.{name}, as TensorFlow has them.")
    module.__dict__.update(_TEXTS[name], __all__=sorted(_TEXTS[name]))
    sys.modules[module.__name__] = module
    return module


builder = nested_namespace(f"{__name__}.builder", _TABLES["builder"])
loader = nested_namespace(f"{__name__}.loader", _TABLES["loader"])
signature_def_utils = nested_namespace(f"{__name__}.signature_def_utils", _TABLES["signature_def_utils"])
utils = nested_namespace(f"{__name__}.utils", _TABLES["utils"])
constants = _constants("constants")
signature_constants = _constants("signature_constants")
tag_constants = _constants("tag_constants")
