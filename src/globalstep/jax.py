"""`gs.jax` as a module, for `from globalstep.jax import Embedding`.

The framework is imported when one of the names is used.
"""

import sys
from typing import TYPE_CHECKING, Any, cast

from globalstep.framework_names import jax

if TYPE_CHECKING:
    from globalstep.worker.frameworks.jax_embedding import Embedding as Embedding

__all__ = ["Embedding"]

# It can be called, which a module of Python's own cannot.
sys.modules[__name__] = cast(Any, jax)
