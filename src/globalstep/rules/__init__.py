"""The update rules, by kind. Those that are alike share a file, which is imported when one of them is first asked for.

To add a rule: its class, and a line in the table below. To add one without touching
globalstep: a package with an entry point in the group "globalstep.rules" (see `rule.Rule`), installed on
the PS tasks. No code ever comes over the wire.
"""

from __future__ import annotations

import importlib
import threading
from importlib.metadata import entry_points
from typing import cast

from globalstep.errors import InvalidArgumentError
from globalstep.rules.rule import Array, Hypers, Rule
from globalstep.wire.declarations import OptimizerDecl

__all__ = ["ENTRY_POINT_GROUP", "Array", "Hypers", "Rule", "check_declaration", "get_rule", "merge_rows"]

ENTRY_POINT_GROUP = "globalstep.rules"

#: Kind -> module and class of the rules that are always there.
BUILT_IN = {
    "adadelta": "adadelta.Adadelta",
    "adagrad": "adagrad.Adagrad",
    "adagrad_da": "adagrad_da.AdagradDA",
    "adam": "adam.Adam",
    "adamw": "adam.AdamW",
    "centered_rmsprop": "rmsprop.CenteredRMSProp",
    "delayed_nesterov": "delayed_nesterov.DelayedNesterov",
    "ftrl": "ftrl.Ftrl",
    "gradient_descent": "gradient_descent.GradientDescent",
    "lamb": "lamb.Lamb",
    "lazy_adam": "adam.LazyAdam",
    "lion": "lion.Lion",
    "momentum": "momentum.Momentum",
    "moving_average": "moving_average.MovingAverage",
    "proximal_adagrad": "proximal.ProximalAdagrad",
    "proximal_gradient_descent": "proximal.ProximalGradientDescent",
    "rmsprop": "rmsprop.RMSProp",
    "root_adagrad": "adagrad.RootAdagrad",
    "root_centered_rmsprop": "rmsprop.RootCenteredRMSProp",
    "root_rmsprop": "rmsprop.RootRMSProp",
    "row_wise_adagrad": "row_wise_adagrad.RowWiseAdagrad",
    "zero_debias_moving_average": "moving_average.ZeroDebiasMovingAverage",
}

# Guards _loaded. get_rule imports under it: an import takes only the import system's own locks.
_lock = threading.Lock()
_loaded: dict[str, Rule] = {}


def get_rule(kind: str) -> Rule:
    """Give the rule of a kind: a built-in one, or one that an installed package offers. Thread-safe.

    Args:
        kind: Name on the wire, e.g. "adam".

    Returns:
        The rule; the same object every time.

    Raises:
        InvalidArgumentError: If no such rule is installed here; it names those that are.

    >>> get_rule("gradient_descent").hypers
    ('learning_rate',)
    """
    with _lock:
        if kind not in _loaded:
            _loaded[kind] = _load(kind)
        return _loaded[kind]


def _load(kind: str) -> Rule:
    if kind in BUILT_IN:
        module, _, name = BUILT_IN[kind].partition(".")
        return cast(Rule, getattr(importlib.import_module(f"{__name__}.{module}"), name)())
    offered = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if kind not in offered:
        raise InvalidArgumentError(
            f"Unknown update rule {kind!r}; known here: {sorted((*BUILT_IN, *offered))}. A rule of your "
            f"own must be installed on every PS task, with an entry point {kind!r} in the group "
            f"{ENTRY_POINT_GROUP!r}."
        )
    loaded = offered[kind].load()
    if not (isinstance(loaded, type) and issubclass(loaded, Rule)):
        raise InvalidArgumentError(
            f"Entry point {kind!r} of the group {ENTRY_POINT_GROUP!r} is {loaded!r}, which is not a subclass "
            "of globalstep.rules.Rule."
        )
    return loaded()


def check_declaration(decl: OptimizerDecl) -> Rule:
    """Give the rule of a declaration, after checking that the declaration suits it.

    Hyper-parameters that a declaration leaves out come with each push; `Rule.check_hypers` finds those
    that are then missing.

    Args:
        decl: The declaration, as it came over the wire.

    Returns:
        Its rule.

    Raises:
        InvalidArgumentError: For an unknown kind, a hyper-parameter that is not the rule's, or a wrong
            number of slots or scalars.
    """
    rule = get_rule(decl.kind)
    if not set(decl.hypers) <= set(rule.hypers):
        raise InvalidArgumentError(
            f"Optimizer {decl.name!r} of kind {decl.kind!r} declares hyper-parameters "
            f"{sorted(decl.hypers)}; the rule takes {sorted(rule.hypers)}."
        )
    for variable, slots in decl.slots.items():
        if len(slots) != len(rule.slots):
            raise InvalidArgumentError(
                f"Optimizer {decl.name!r} of kind {decl.kind!r} declares slots {list(slots)} for Variable "
                f"{variable!r}; the rule takes one each of {list(rule.slots)}."
            )
    if len(decl.scalars) != len(rule.scalars):
        raise InvalidArgumentError(
            f"Optimizer {decl.name!r} of kind {decl.kind!r} declares scalars {list(decl.scalars)}; the rule "
            f"takes one each of {list(rule.scalars)}."
        )
    return rule


def merge_rows(indices: Array, rows: Array) -> tuple[Array, Array]:
    """Sum the rows that have the same id; see `globalstep.wire.sparse_rows.merge_rows`.

    Args:
        indices: int64 [n] row ids.
        rows: [n, width] gradients.

    Returns:
        (ids, sums), no id twice.
    """
    from globalstep.wire import sparse_rows

    return sparse_rows.merge_rows(indices, rows)
