"""Groups of parameters: which optimizer trains which, by patterns of names.

Layer: worker. Pure.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from globalstep.errors import InvalidArgumentError
from globalstep.optimizers import torch_optimizers
from globalstep.optimizers.optimizer_rule import RuleSource

__all__ = ["grouped"]


def grouped(optimizer: Any, names: Sequence[str]) -> list[tuple[RuleSource, list[str]]]:
    """Give each of the optimizers, as given, with the names of its parameters.

    Args:
        optimizer: An optimizer, or a dict from patterns of names to optimizers.
        names: Of all parameters.

    Raises:
        InvalidArgumentError: If what was given is no optimizer, or a pattern or a parameter is left over.
    """
    given = optimizer if isinstance(optimizer, Mapping) else {"*": optimizer}
    left, groups = list(names), list[tuple[RuleSource, list[str]]]()
    for pattern, one in given.items():
        found = [name for name in left if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            raise InvalidArgumentError(
                f"optimizer: no parameter is left for {pattern!r}; the parameters are {', '.join(names)}. The "
                "first pattern that fits a name counts."
            )
        left = [name for name in left if name not in found]
        if not isinstance(one, RuleSource) or isinstance(one, type):
            raise InvalidArgumentError(_not_an_optimizer(one))
        groups.append((one, found))
    if left:
        raise InvalidArgumentError(
            f'optimizer: no pattern fits {", ".join(left)}. End with "*", which fits all that is left.'
        )
    return groups


def _not_an_optimizer(given: Any) -> str:
    kind = given if isinstance(given, type) else type(given)
    if kind.__module__.startswith("torch.optim.lr_scheduler"):
        return (
            f"optimizer is torch's schedule {kind.__name__}. Schedules stand in place of the rate, without "
            "scheduler.step(): gs.optim.SGD(gs.optim.StepLR(0.1, step_size=30)), say."
        )
    if kind.__module__.startswith("torch.optim"):
        here = set(torch_optimizers.__all__) - {"TorchOptimizer"}
        other = (
            f"Give gs.optim.{kind.__name__}(...), which has the same arguments without the parameters."
            if kind.__name__ in here
            else f"gs.optim has {', '.join(sorted(here))}."
        )
        return f"optimizer is torch.optim.{kind.__name__}, which would change the module in this process alone. {other}"
    if type(given).__module__.startswith("optax") or (isinstance(given, tuple) and hasattr(given, "update")):
        return "optimizer is one of optax; the parameter servers apply gs.optim's: gs.optim.Adam(1e-3), say."
    if isinstance(given, type):
        return f"optimizer is the class {given.__name__}: give an optimizer, {given.__name__}(...)."
    return (
        f"optimizer is {given!r}; it must be one of gs.optim, or of gs.train, or a dict of such by patterns of names."
    )
