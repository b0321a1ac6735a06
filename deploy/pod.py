"""`python -m globalstep.deploy.pod`: starts a task's program in a pod of the plain Kubernetes manifests.

It writes TF_CONFIG from how many tasks there are, so that an overlay says that once: in its sizes.yaml.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence

from globalstep.errors import FailedPreconditionError

#: As in deploy/kubernetes/base.
_PORT = 2222


def tf_config(job: str, environ: Mapping[str, str]) -> str:
    """Write TF_CONFIG for a task.

    Args:
        job: "chief" or "worker".
        environ: GLOBALSTEP_RUN, PS_TASKS and WORKERS; of a worker INDEX too.

    Returns:
        The JSON. Only PS tasks serve; the others' addresses are names.

    Raises:
        FailedPreconditionError: If one of them is missing, or no number where it must be one.

    >>> tf_config("chief", {"GLOBALSTEP_RUN": "cats", "PS_TASKS": "1", "WORKERS": "0"})
    '{"cluster": {"ps": ["globalstep-ps-cats-0.globalstep-ps-cats:2222"], "chief": ["globalstep-chief-cats:2222"], \
"worker": []}, "task": {"type": "chief", "index": 0}}'
    """
    run = environ.get("GLOBALSTEP_RUN", "")
    if not run:
        raise FailedPreconditionError("GLOBALSTEP_RUN is not set: the run's name, as in deploy/kubernetes/base.")
    ps = f"globalstep-ps-{run}"
    cluster = {
        "ps": [f"{ps}-{i}.{ps}:{_PORT}" for i in range(_number(environ, "PS_TASKS"))],
        "chief": [f"globalstep-chief-{run}:{_PORT}"],
        "worker": [f"globalstep-worker-{run}-{i}:{_PORT}" for i in range(_number(environ, "WORKERS"))],
    }
    index = 0 if job == "chief" else _number(environ, "INDEX")
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise FailedPreconditionError(f"{name} is {text!r}; it must be a number: see sizes.yaml of the overlay.")
    return int(text)


def main(argv: Sequence[str]) -> int:
    """Become the program, with TF_CONFIG set; returns only where that cannot be, with the exit code."""
    if len(argv) < 2 or argv[0] not in ("chief", "worker"):
        print("usage: python -m globalstep.deploy.pod chief|worker PROGRAM [ARGUMENT ...]", file=sys.stderr)
        return 2
    try:
        os.environ["TF_CONFIG"] = tf_config(argv[0], os.environ)
        os.execvp(argv[1], [*argv[1:]])
    except (FailedPreconditionError, OSError) as error:
        print(f"{argv[1]} is not started: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
