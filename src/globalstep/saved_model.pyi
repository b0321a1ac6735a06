# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from types import ModuleType

from globalstep.tf1.exporting.saved_model import SavedModelBuilder as Builder
from globalstep.tf1.exporting.saved_model import load as load
from globalstep.tf1.exporting.saved_model import simple_save as simple_save
from globalstep.tf1.exporting.saved_model_files import contains_saved_model as contains_saved_model
from globalstep.tf1.exporting.saved_model_files import contains_saved_model as maybe_saved_model_directory
from globalstep.tf1.exporting.signatures import build_signature_def as build_signature_def
from globalstep.tf1.exporting.signatures import build_tensor_info as build_tensor_info
from globalstep.tf1.exporting.signatures import classification_signature_def as classification_signature_def
from globalstep.tf1.exporting.signatures import get_tensor_from_tensor_info as get_tensor_from_tensor_info
from globalstep.tf1.exporting.signatures import is_valid_signature as is_valid_signature
from globalstep.tf1.exporting.signatures import predict_signature_def as predict_signature_def
from globalstep.tf1.exporting.signatures import regression_signature_def as regression_signature_def

builder: ModuleType
constants: ModuleType
loader: ModuleType
signature_constants: ModuleType
signature_def_utils: ModuleType
tag_constants: ModuleType
utils: ModuleType
