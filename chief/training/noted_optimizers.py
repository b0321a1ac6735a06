"""What a run's optimizers are, as its directory notes it: a run that goes on with other ones says so.

Layer: chief.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from globalstep.wire.declarations import OptimizerDecl
from globalstep.wire.expressions import Expr

__all__ = ["log_changes", "noted_optimizers"]

_log = logging.getLogger("globalstep")

Noted = Mapping[str, Mapping[str, str]]


def noted_optimizers(optimizers: Iterable[OptimizerDecl]) -> Noted:
    """Give each optimizer's rule and hyper-parameters as texts, by its name."""
    return {one.name: {"rule": one.kind} | {key: _text(value) for key, value in one.hypers.items()}
            for one in optimizers}  # fmt: skip


def log_changes(run_dir: str, step: int, before: Noted, now: Noted) -> None:
    """Say what is another one than before in a run that goes on.

    Args:
        run_dir: The run's directory.
        step: From which it goes on.
        before: As the directory has it; empty where it does not say.
        now: As the program has it.
    """
    changes = [
        f"{key} of {name}: {now[name].get(key, 'none')} now, {before[name].get(key, 'none')} before"
        for name in now
        if name in before
        for key in {**now[name], **before[name]}
        if now[name].get(key) != before[name].get(key)
    ]
    if before and set(now) != set(before):
        changes.append(f"optimizers: {', '.join(now)} now, {', '.join(before)} before")
    if changes:
        _log.warning("The run in %s goes on from step %d with something else: %s.", run_dir, step, "; ".join(changes))


def _text(value: Expr) -> str:
    if value.op == "const":
        return f"{value.value:g}"
    return value.name if value.op == "name" else f"{value.op}({', '.join(map(_text, value.args))})"
