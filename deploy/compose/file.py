"""The file of docker compose for a training job, as text.

Layer: deploy. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ComposeJob", "compose_file", "project_name"]

_PORT = 2222
#: Of the TCP connections beside gRPC.
_TCP_PORT = 2223
#: Where the folder of the script is in a container, and the run's volume, which is the current folder too.
_SCRIPTS = "/app/job"
_RUN = "/run/globalstep"

_HEAD = """\
# {made}
# Settings, here or in a file .env beside this one: GLOBALSTEP_IMAGE, GLOBALSTEP_SCRIPTS, GLOBALSTEP_RUN_TOKEN,
# GLOBALSTEP_RUN{more}.
# Two runs on one machine need project names of their own: --project-name {project}
x-task: &task
  image: ${{GLOBALSTEP_IMAGE:-globalstep}}
  # A task that fails or is killed is started again; one that has ended with 0 is not.
  restart: on-failure
  stop_grace_period: 30s
  working_dir: {run}
  volumes:
    - run:{run}
    - ${{GLOBALSTEP_SCRIPTS:-{scripts}}}:{inside}:ro
services:
"""
_TASK = """\
  {name}:
    <<: *task
    command: {command}
    environment:
      # The network below belongs to this job alone.
      GLOBALSTEP_INSECURE: "1"
      # Made by `globalstep compose up`, anew each time; without it, every process in that network may call.
      GLOBALSTEP_RUN_TOKEN: "${{GLOBALSTEP_RUN_TOKEN:-}}"
      # The run's name: a task of another run learns that these are not its PS tasks.
      GLOBALSTEP_RUN: "${{GLOBALSTEP_RUN:-{run}}}"
      TF_CONFIG: '{config}'
"""
_TENSORBOARD = f"""\
  tensorboard:
    image: ${{GLOBALSTEP_IMAGE:-globalstep}}
    restart: unless-stopped
    command: ["tensorboard", "--logdir={_RUN}", "--host=0.0.0.0", "--port=6006"]
    healthcheck:
      # That of the image asks a task.
      test: ["CMD", "python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:6006/').read()"]
    volumes:
      - run:{_RUN}:ro
    ports:
      - "127.0.0.1:${{TENSORBOARD_PORT:-6006}}:6006"
"""
_TAIL = """\
volumes:
  run:
"""


@dataclass(frozen=True)
class ComposeJob:
    """A job for docker compose.

    Attributes:
        script: File name of the training script.
        scripts: Its folder on this machine, which containers see as a volume.
        args: The script's arguments.
        ps: Number of PS tasks.
        workers: Number of workers; without `chief` the first of them is the chief.
        chief: Whether there is a chief besides the workers.
        tensorboard: Whether there is a TensorBoard, on port 6006 of this machine.
        run: The run's name, which is the project's for docker compose; by default the script's.
    """

    script: str
    scripts: str
    args: Sequence[str] = ()
    ps: int = 1
    workers: int = 1
    chief: bool = False
    tensorboard: bool = False
    run: str = ""

    @property
    def project(self) -> str:
        """The name of the project: containers, network and volume bear it, so that no other run's are met."""
        return project_name(self.run or self.script.rpartition(".")[0] or self.script)

    @property
    def tasks(self) -> dict[str, int]:
        """Job name of the cluster -> number of tasks; there always is one chief."""
        workers = self.workers if self.chief else self.workers - 1
        return {"ps": self.ps, "chief": 1, **({"worker": workers} if workers else {})}


def compose_file(job: ComposeJob, made: str = "Written by globalstep compose.") -> str:
    """Write the file: a service for each task, so that each has a name that others find it by.

    Args:
        job: The job.
        made: What the first line says.

    >>> print(compose_file(ComposeJob("train.py", "/data/scripts", workers=2)).count("TF_CONFIG"))
    3
    """
    cluster = {name: [f"{name}-{i}:{_PORT}" for i in range(count)] for name, count in job.tasks.items()}
    more = ", TENSORBOARD_PORT" if job.tensorboard else ""
    text = _HEAD.format(made=made, more=more, run=_RUN, scripts=job.scripts, inside=_SCRIPTS, project=job.project)
    for name, count in job.tasks.items():
        command = (
            ["python", "-m", "globalstep.ps", f"--tcp-port={_TCP_PORT}"]
            if name == "ps"
            else ["python", f"{_SCRIPTS}/{job.script}", *job.args]
        )
        for index in range(count):
            config = json.dumps({"cluster": cluster, "task": {"type": name, "index": index}})
            text += _TASK.format(
                name=f"{name}-{index}", command=_escaped(json.dumps(command)), config=config, run=job.project
            )
    return text + (_TENSORBOARD if job.tensorboard else "") + _TAIL


def project_name(run: str) -> str:
    """Give a run's name as docker compose takes it for a project: small letters, digits, - and _.

    >>> project_name("My Run.7")
    'myrun7'
    """
    return re.sub(r"[^-_a-z0-9]", "", run.lower()).lstrip("-_") or "globalstep"


def _escaped(text: str) -> str:
    """Keep compose from taking what follows a dollar sign for one of its settings."""
    return text.replace("$", "$$")
