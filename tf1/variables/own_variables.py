"""Variables of one task: their device names a worker's task, and they live in that worker's process.

TensorFlow keeps such a Variable in the server of its task; programs of the A3C kind give each worker a net of its own
so, often by the same names in every worker. Here a Variable that names the task of the very process that uses it lives
there, too. It is not shared: a Variable that names another task, and one of the cluster's first task, which others
may mean as well, is one Variable for all, on the PS. So is one that an optimizer trains, or that counts steps.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from globalstep.cluster.cluster import CHIEF_JOBS
from globalstep.tf1.graph.device import DeviceSpec
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.variables.variables import variables_of
from globalstep.wire.declarations import OpKind

_log = logging.getLogger("globalstep")


def task_with_own(task: str, session_tasks: Sequence[str] = ()) -> str:
    """Give a task's name if Variables on its device are its own; "" where they are everybody's.

    Args:
        task: Its name; "" where not known.
        session_tasks: Names of all tasks that run sessions, as far as known.

    >>> task_with_own("/job:worker/task:1"), task_with_own("/job:worker/task:0")
    ('/job:worker/task:1', '')
    >>> task_with_own("/job:worker/task:0", ["/job:worker/task:0", "/job:chief/task:0"])
    '/job:worker/task:0'
    """
    device = DeviceSpec.from_string(task)
    if device.job in (None, "ps") or device.task is None:
        return ""  # what is on a PS task is everybody's
    chiefs = [name for name in session_tasks if DeviceSpec.from_string(name).job in CHIEF_JOBS]
    first = device.task == 0 and (device.job in CHIEF_JOBS or not chiefs)
    return "" if first else task


def claim_own_variables(graph: Graph, task: str) -> None:
    """Take note that the Variables of a graph that lie on a task's device live in this process.

    Args:
        graph: This process's.
        task: This process's, as task_with_own gives it; "" for none.
    """
    if not task:
        return
    mine = DeviceSpec.from_string(task)
    candidates = [
        variable
        for variable in variables_of(graph)
        if not variable.is_local and variable.primary is None and variable.device
    ]
    placed = [(variable, DeviceSpec.from_string(variable.device)) for variable in candidates]
    own = [variable for variable, device in placed if (device.job, device.task) == (mine.job, mine.task)]
    if not own:
        return
    shared = {variable for variable in own if variable.counts_as_step}
    for node in graph.nodes:
        if isinstance(node, Mutation):
            shared.update(part.variable for part in node.parts if part.kind is OpKind.APPLY)
            shared.update(scalar for spec in node.uses if spec is not None for scalar in spec.scalars)
    trained = [variable.op_name for variable in own if variable in shared]
    if trained:
        _log.warning(
            "%s lies on the device %s, and this program trains it: it is on the PS, and every task that has a Variable "
            "of that name shares it. A net of this task's own gets values by assign(), or names of its own.",
            ", ".join(trained[:3]) + (f" and {len(trained) - 3} more" if len(trained) > 3 else ""),
            task,
        )
    for variable in own:
        variable.is_own = variable.is_local = variable not in shared
