"""Entry points of the roles: the package's root, which alone may name them all, puts each role's functions here.

So a worker's code reaches a PS in its own process, and the chief's a PS task's service, without importing them.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: "local" and "grpc", schemes of targets -> makes transports to all PS tasks from the rest of the target and the kind
#: of transport; "serve" -> serves as the PS task that TF_CONFIG describes, until its job has ended.
ENTRIES: dict[str, Callable[..., Any]] = {}
