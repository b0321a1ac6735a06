"""Reader of TF_CONFIG; `from_tf_config` says what it is.

Layer: shared. Threads: functions are pure.
"""

from __future__ import annotations

import json
from typing import cast

from globalstep.cluster.cluster import CHIEF_JOBS, ClusterSpec, TaskConfig, is_address


def read_tf_config(text: str) -> TaskConfig:
    """Return what TF_CONFIG says that this process is.

    Raises:
        ValueError: If it is malformed or contradicts itself; the text says where.
    """
    try:
        config: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"TF_CONFIG is not JSON: {error.msg} at line {error.lineno} column {error.colno}: "
            f"{text[max(error.pos - 20, 0) : error.pos + 20]!r}"
        ) from None
    except RecursionError:
        raise ValueError(f"TF_CONFIG is nested too deeply: {text[:20]!r}...") from None
    fields = _object("TF_CONFIG", config)
    if "cluster" in fields and "sparseCluster" in fields:
        raise ValueError("TF_CONFIG has both 'cluster' and 'sparseCluster'; give one of them.")
    key = "sparseCluster" if "sparseCluster" in fields else "cluster"
    jobs = _object(f"TF_CONFIG's {key!r}", fields.get(key) or {})
    environment = fields.get("environment", "")
    if not isinstance(environment, str):
        raise ValueError(f"TF_CONFIG's 'environment' must be a string, not {environment!r}.")
    cluster = ClusterSpec({name: _addresses(key, name, tasks) for name, tasks in jobs.items() if tasks})
    if len([name for name in CHIEF_JOBS if name in cluster.jobs]) > 1:
        raise ValueError("TF_CONFIG's cluster names both a 'chief' and a 'master' job; they are the same role.")
    if not cluster:
        return TaskConfig(environment=environment)
    if not (task := fields.get("task")):
        raise ValueError(
            'TF_CONFIG has a cluster but no \'task\': add "task": {"type": ..., "index": ...} to say which '
            f"of {cluster.jobs} this process is."
        )
    fields = _object("TF_CONFIG's 'task'", task)
    job = fields.get("type")
    if not isinstance(job, str) or not job:
        raise ValueError(f"TF_CONFIG's task 'type' must name a job of {cluster.jobs}, not {job!r}.")
    index = _index("TF_CONFIG's task 'index'", fields.get("index", 0))
    if job not in cluster.jobs:
        if job == "evaluator":
            return TaskConfig(cluster, job, index, environment)
        raise ValueError(f"TF_CONFIG's task is of job {job!r}, but its cluster has only {cluster.jobs}.")
    if index not in cluster.task_indices(job):
        raise ValueError(
            f"TF_CONFIG's task is {job} {index}, but of job {job!r} its cluster has only tasks "
            f"{cluster.task_indices(job)}."
        )
    return TaskConfig(cluster, job, index, environment)


def _addresses(key: str, job: str, tasks: object) -> dict[int, str]:
    where = f"TF_CONFIG's {key!r} job {job!r}"
    if isinstance(tasks, list):
        items: list[tuple[object, object]] = list(enumerate(cast("list[object]", tasks)))
    elif isinstance(tasks, dict):
        items = list(cast("dict[object, object]", tasks).items())
    else:
        raise ValueError(f"{where} must be a list of addresses or a map from index to address, not {tasks!r}.")
    addresses: dict[int, str] = {}
    for key_, address in items:
        index = _index(f"{where}: task index", key_)
        if not isinstance(address, str) or not is_address(address):
            raise ValueError(f'{where}: the address of task {index} must be "host:port", not {address!r}.')
        addresses[index] = address
    return addresses


def _object(where: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a JSON object, not {value!r}.")
    return cast("dict[str, object]", value)


def _index(where: str, value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{where} must be a whole number from 0, not {value!r}.")
    return value
