"""Readiness of a session's model, by its ready_op; and what this task itself initializes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.chief.sessions.run_model import why_uninitialized
from globalstep.errors import FailedPreconditionError
from globalstep.tf1.graph.graph import GraphKeys
from globalstep.tf1.variables.variables import Variable, variables_of

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session


def initialize_own(session: Session) -> str:
    """Give the Variables on this task's own device their initial values, where they have none.

    The chief initializes what all tasks share; no other task can initialize these.

    Args:
        session: A session of the model.

    Returns:
        What they wait for, for people; "" for nothing.
    """
    own = [variable for variable in variables_of(session.graph) if variable.is_own]
    return _initialize(session, own, "what this task's own Variables are initialized from")


def initialize_rest(session: Session) -> str:
    """Give the Variables of a task's program their initial values that its run, which is ready, has none for.

    The chief has initialized what its program has; these are this program's alone.

    Args:
        session: A session of the model.

    Returns:
        What they wait for, for people; "" for nothing.
    """
    shared = session.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
    return _initialize(session, shared, "what the Variables of this task's program alone are initialized from")


def _initialize(session: Session, variables: Sequence[Variable], awaited: str) -> str:
    """Initialize the Variables that have no value; returns what that waits for, "" for nothing."""
    empty = [item for item, has in zip(variables, session.have_values(variables), strict=True) if not has]
    try:
        if empty:
            session.run([variable.initializer for variable in empty])
    except FailedPreconditionError as error:
        return f"{awaited}: {error}"
    return ""


def why_not_ready(ready_op: Any, session: Session, failure: str) -> str:
    """Run an operation that gives the names of what is missing.

    Args:
        ready_op: The operation; None for a model that always is ready.
        session: Where to run it.
        failure: What to say if it cannot be run, because something that it reads is not initialized.

    Returns:
        What is missing, for people; "" for nothing.
    """
    if ready_op is None:
        return ""
    try:
        missing = session.run(ready_op)
    except FailedPreconditionError as error:
        return f"{failure}: {error}"
    if missing is None or np.size(missing) == 0:
        return ""
    return why_uninitialized(
        session.cluster, [name.decode() if isinstance(name, bytes) else str(name) for name in np.ravel(missing)]
    )
