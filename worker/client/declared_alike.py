"""Checks that a program declares its Variables and optimizers as its run has them.

All programs of a run build the same model. One that builds another is refused before its first push: its gradients
would be those of another model, and where shapes happen to broadcast no error would show it. What only one side has is
no difference: an evaluator builds less than the run has, and a worker may hold Variables of its own.

Layer: worker. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from globalstep.cluster.program import ProgramVariable
from globalstep.wire.declarations import OptimizerDecl
from globalstep.wire.expressions import Expr
from globalstep.worker.protocol.splitting import whole_name

if TYPE_CHECKING:
    from globalstep.worker.client.run_view import RunSide

#: Kinds of optimizers that follow Variables, and train none.
_AVERAGES = frozenset({"moving_average", "zero_debias_moving_average"})


def check_variables(variables: Iterable[ProgramVariable], run: RunSide) -> None:
    """Compare a program's Variables with those of the same name that the run has.

    Raises:
        InvalidArgumentError: If one has another shape or dtype, or is trainable in one of the two only.
    """
    for variable in variables:
        held = run.variables.get(variable.name)
        if held is None:
            continue
        if not variable.fits(held.shape) or variable.dtype != held.dtype:
            shape = "of any shape" if variable.shape is None else list(variable.shape)
            mine, theirs = f"{variable.dtype} {shape}", f"{held.dtype} {list(held.shape)}"
            raise run.differ(f"Variable {variable.name!r}", mine, theirs)
        if variable.trainable != held.trainable:
            words = {True: "trainable", False: "not trainable"}
            raise run.differ(f"Variable {variable.name!r}", words[bool(variable.trainable)], words[held.trainable])


def check_optimizers(mine: Iterable[OptimizerDecl], run: RunSide) -> None:
    """Compare a program's optimizers with those of the same name that the run has.

    Raises:
        InvalidArgumentError: If one has another rule, another hyper-parameter or other slots, trains a Variable of the
            run that the run's does not train, or trains Variables of other names in place of the run's; or if none of
            the run's optimizers that train a Variable is among them, but another one is.
    """
    mine = list(mine)
    theirs = {decl.name: decl for decl in run.optimizers}
    here_by, there_by = _trained_by(mine), _trained_by(theirs.values())
    for decl in mine:
        held = theirs.get(decl.name)
        if held is None:
            # The program may have one more for a Variable, but not one in place of the run's.
            for name in decl.slots if decl.kind not in _AVERAGES else ():
                others = there_by.get(whole_name(name), {})
                if others and not others.keys() & here_by[whole_name(name)].keys():
                    raise run.differ(
                        f"Variable {name!r}", f"trained by {_named(here_by[whole_name(name)])}",
                        f"trained by {_named(others)}",
                    )  # fmt: skip
            continue
        what = f"Optimizer {decl.name!r}"
        if decl.kind != held.kind:
            raise run.differ(what, decl.kind, held.kind)
        for name in sorted({*decl.hypers, *held.hypers}):
            here, there = decl.hypers.get(name), held.hypers.get(name)
            if here != there:
                raise run.differ(f"{name} of optimizer {decl.name!r}", _said(here), _said(there))
        trained = {whole_name(name): tuple(map(whole_name, slots)) for name, slots in held.slots.items()}
        more = sorted({*map(whole_name, decl.slots)} - trained.keys() - run.variables.keys())
        less = sorted(trained.keys() - {*map(whole_name, decl.slots)})
        if more and less:
            raise run.differ(f"What {decl.name!r} trains", f"{more[0]!r}", f"{less[0]!r}")
        for name, slots in decl.slots.items():
            if name not in run.variables:
                continue
            if name not in trained:
                raise run.differ(
                    f"Variable {name!r}", f"trained by {decl.name!r}", f"one that {decl.name!r} does not train"
                )
            if slots != trained[name]:
                raise run.differ(
                    f"Optimizer {decl.name!r} of Variable {name!r}", f"with slots {list(slots)}",
                    f"with slots {list(trained[name])}",
                )  # fmt: skip


def _trained_by(optimizers: Iterable[OptimizerDecl]) -> dict[str, dict[str, str]]:
    """Give the names and kinds of the optimizers that train each Variable; moving averages train none."""
    kinds: dict[str, dict[str, str]] = {}
    for decl in optimizers:
        for name in decl.slots if decl.kind not in _AVERAGES else ():
            kinds.setdefault(whole_name(name), {})[decl.name] = decl.kind
    return kinds


def _named(optimizers: Mapping[str, str]) -> str:
    return ", ".join(f"{name!r} ({kind})" for name, kind in optimizers.items())


def _said(hyper: Expr | None) -> str:
    if hyper is None:
        return "computed by the worker for each push"
    return repr(hyper.value) if hyper.op == "const" else str(hyper)
