"""What follows from what is declared: which kernels will be wanted, and errors for names that no client declared.

Layer: ps. Threads: functions of a store, under its shard's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from globalstep.ps.store.store import VariableStore
from globalstep.wire.declarations import Increment, OptimizerDecl, OptimizerUse, VariableDecl
from globalstep.wire.names import shown

__all__ = ["kernels", "undeclared"]


def kernels(
    variables: Sequence[VariableDecl], optimizers: Sequence[OptimizerDecl], store: VariableStore
) -> set[tuple[str, str]]:
    """Give the kinds of rules, with dtypes, that a declaration will have work to do; to be prepared before."""
    dtypes = {decl.name: decl.dtype for decl in variables}
    found: set[tuple[str, str]] = set()
    for decl in variables:
        found.update((store.optimizer(name)[0].kind, decl.dtype) for name in store.trained_by(decl.name))
    for optimizer in optimizers:
        for name in optimizer.slots:
            held = store.declaration(name)
            dtype = dtypes.get(name) if held is None else held.dtype
            if dtype is not None:
                found.add((optimizer.kind, dtype))
    return found


def undeclared(increments: Iterable[Increment], uses: Iterable[OptimizerUse], store: VariableStore) -> str:
    """Say what of a push's decision the chief's program has not declared; "" where all is.

    Args:
        increments: By how much steps are to move on: by 1, or as declared.
        uses: Optimizers, with numbers that the worker computed: not in the place of declared expressions.
        store: Of the sequencer.
    """
    for item in increments:
        step = store.declaration(item.step)
        if item.by != 1 and (step is None or item.by not in step.increments):
            return f"move step {shown(item.step)} on by {item.by}, which is not declared"
    for use in uses:
        taken = use.overrides.keys() & store.optimizer(use.optimizer)[0].hypers if use.overrides else ()
        if taken:
            return f"give {sorted(taken)} of optimizer {shown(use.optimizer)}, for which an expression is declared"
    return ""
