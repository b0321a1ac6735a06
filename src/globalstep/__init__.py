"""globalstep: distributed parameter-server training with the TensorFlow 1.x training API.

Import it as `import globalstep as gs`, or `import globalstep as tf` for a program written for
TensorFlow 1.x. This module is the namespace: it loads what is used, when it is used. TensorFlow's names
are those of `globalstep.tf1.names`, which is loaded with the first of them.

Layer: namespace.
"""

from typing import Any

from globalstep.lazy import namespace
from globalstep.roles import ENTRIES

_NAMES = {
    "globalstep.chief.client": "Client Pushed connect",
    "globalstep.chief.training.callbacks": "Callback",
    "globalstep.chief.training.evaluation": "Evaluate",
    "globalstep.worker.frameworks.step_options": "LocalSteps WorkUnits",
    "globalstep.chief.training.fit": "fit",
    "globalstep.chief.training.loggers": "CSVLogger MLflowLogger WandbLogger",
    "globalstep.chief.training.saved_model": "load",
    "globalstep.chief.training.trainer": "FitResult Trainer",
    "globalstep.errors": "GlobalStepError OpError",
    "globalstep.cluster.run_policy": "RunPolicy",
    "globalstep.wire.wire_options": "WireOptions",
    "globalstep.framework_names": "jax torch",
    "globalstep.tf1.frameworks.py_loss": "py_loss",
    "globalstep.config": "ConfigProto",
}


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
namespace(__name__, _NAMES, ["errors", "optim"], library="globalstep.tf1.names")
