"""`gs.torch` as a module, for `from globalstep.torch import Embedding`.

The framework is imported when one of the names is used.
"""

import sys
from typing import TYPE_CHECKING, Any, cast

from globalstep.framework_names import torch

if TYPE_CHECKING:
    from globalstep.worker.frameworks.torch_embedding import Embedding as Embedding
    from globalstep.worker.frameworks.torch_embedding import EmbeddingBag as EmbeddingBag

__all__ = ["Embedding", "EmbeddingBag"]

# It can be called, which a module of Python's own cannot.
sys.modules[__name__] = cast(Any, torch)
