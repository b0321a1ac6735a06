"""globalstep: distributed parameter-server training with the TensorFlow 1.x training API.

Import it as `import globalstep as gs`, or `import globalstep as tf` for a program written for
TensorFlow 1.x. This module is the namespace: it loads what is used, when it is used. TensorFlow's names
are those of `globalstep.tf1.names`, which is loaded with the first of them.
"""

from typing import Any

from globalstep.lazy import namespace
from globalstep.roles import ENTRIES


def _ps_in_process(name: str, transport: str) -> list[Any]:
    from globalstep.ps.local import transports_to

    return [*transports_to(name)]


def _ps_elsewhere(addresses: str, transport: str) -> list[Any]:
    from globalstep.worker.transport.grpc_transport import transports_to

    return [*transports_to(addresses, transport)]


def _serve_as_ps() -> None:
    from globalstep.deploy.server import Server

    Server().join()


ENTRIES.update(local=_ps_in_process, grpc=_ps_elsewhere, serve=_serve_as_ps)

__version__ = "0.2.0"
#: The release of TensorFlow whose names these are: programs choose by it between old and new ones.
VERSION = "1.15.0"
namespace(__name__, library="globalstep.tf1.names")
