"""The optimizers of a shard, and what they have of their own: slots and scalars. Declarations are checked here, whole.

An update rule's kernel trusts its arrays: that a slot is as large as its Variable is seen to here,
before anything changes, whether the declaration comes from the wire, from a log or from this process. What is declared
of a name stays: a later declaration may add Variables to an optimizer, and nothing else. Hyper-parameters are evaluated
here, for each push.

Layer: ps. Single thread: the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from globalstep.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from globalstep.ps.ledger.ledger import HyperValues
from globalstep.ps.store.finite import ignoring_float_errors
from globalstep.rules import check_declaration
from globalstep.rules.rule import Rule
from globalstep.wire.declarations import OptimizerDecl, OptimizerUse, VariableDecl
from globalstep.wire.expressions import check_expression, evaluate, names_in
from globalstep.wire.names import check_name, shown

if TYPE_CHECKING:
    from globalstep.ps.store.store import VariableStore

#: Optimizers of a shard with the Variables that they train and the parts of their expressions, all together.
LIMIT_DECLARED = 2_000_000
#: So many characters of names count like one more of these.
_NAME_CHARACTERS = 128
#: The dtype of an optimizer's scalar state.
_SCALAR_DTYPE = "float32"

#: Gives a Variable's declaration; None where it is not this shard's, or not declared yet.
Find = Callable[[str], VariableDecl | None]


class _Owner(NamedTuple):
    """The owner of a slot or a scalar."""

    optimizer: str
    #: Of a slot: its Variable; "" of a scalar.
    variable: str
    #: Which of the rule's slots or scalars it is.
    role: str

    def __str__(self) -> str:
        of = f" of Variable {shown(self.variable)}" if self.variable else ""
        return f"{self.role!r}{of} of optimizer {shown(self.optimizer)}"


class _Optimizer(NamedTuple):
    decl: OptimizerDecl
    rule: Rule


@dataclass(slots=True)
class Growth:
    """The optimizers and owners that a declaration adds to a table."""

    #: Those that are new or have more Variables, as they will be.
    optimizers: dict[str, _Optimizer] = field(default_factory=dict)
    owners: dict[str, _Owner] = field(default_factory=dict)
    #: (Variable, optimizer) pairs.
    trained: list[tuple[str, str]] = field(default_factory=list)
    #: How much of LIMIT_DECLARED it takes.
    size: int = 0


class OptimizerTable:
    """The optimizers that are declared, by name."""

    def __init__(self) -> None:
        self._optimizers: dict[str, _Optimizer] = {}
        #: Slot or scalar -> whose it is.
        self._owners: dict[str, _Owner] = {}
        #: Variable -> the optimizers that train it.
        self._trained_by: dict[str, list[str]] = {}
        self._size = 0

    @property
    def declarations(self) -> list[OptimizerDecl]:
        """The declared optimizers, in order."""
        return [optimizer.decl for optimizer in self._optimizers.values()]

    def get(self, name: str) -> tuple[OptimizerDecl, Rule]:
        """An optimizer's declaration and rule.

        Raises:
            NotFoundError: If there is none of that name.
        """
        entry = self._optimizers.get(name)
        if entry is None:
            names = ", ".join(sorted(self._optimizers)[:8]) + (", ..." if len(self._optimizers) > 8 else "")
            raise NotFoundError(f"No optimizer {shown(name)} is declared; known: {names or 'none'}")
        return entry

    def trained_by(self, variable: str) -> Sequence[str]:
        """Give the optimizers that train a Variable."""
        return self._trained_by.get(variable, ())

    def grown_by(self, growth: Growth) -> list[OptimizerDecl]:
        """Give the declarations as they will be after `adopt`."""
        return [optimizer.decl for optimizer in (self._optimizers | growth.optimizers).values()]

    def adopt(self, growth: Growth) -> None:
        """Take in what `examine` has passed."""
        self._optimizers.update(growth.optimizers)
        self._owners.update(growth.owners)
        for variable, optimizer in growth.trained:
            self._trained_by.setdefault(variable, []).append(optimizer)
        self._size += growth.size

    def examine(self, declared: Iterable[OptimizerDecl], fresh: Iterable[VariableDecl], find: Find) -> Growth:
        """Check declarations against each other, against what is declared already, and against their Variables.

        Args:
            declared: The optimizers.
            fresh: Variables that are new.
            find: Gives Variables that are known, or new.

        Returns:
            What they add. Nothing is changed.

        Raises:
            AlreadyExistsError: If something is declared otherwise already, or is another's.
            InvalidArgumentError: If a declaration does not suit its rule, or its Variables and slots do not fit.
            ResourceExhaustedError: If there are too many.
        """
        growth = Growth()
        for decl in declared:
            self._add(decl, growth)
        if self._size + growth.size > LIMIT_DECLARED:
            raise ResourceExhaustedError(
                f"The optimizers declared have {self._size + growth.size} Variables and parts of expressions; "
                f"{LIMIT_DECLARED} are the most on one PS task."
            )
        declared_now = {decl.name for decl in fresh}
        trained_now = {variable for variable, _ in growth.trained}
        for name, owner in growth.owners.items():
            self._check_owned(name, owner, find, growth)
            self._check_free(name, owner, find(name), name in declared_now, name in trained_now)
        for variable, optimizer in growth.trained:
            self._check_of_its_own(variable, optimizer)
            _check_trained(find(variable), optimizer)
        for new in fresh:
            trained = self._owners.get(new.name)
            if trained is not None:
                self._check_owned(new.name, trained, find, growth)
            for optimizer in self.trained_by(new.name):
                _check_trained(new, optimizer)
                for slot in self._optimizers[optimizer].decl.slots[new.name]:
                    self._check_owned(slot, self._owners[slot], find, growth)
        return growth

    def _add(self, decl: OptimizerDecl, growth: Growth) -> None:
        rule = check_declaration(decl)
        check_name(decl.name, "an optimizer")
        for name in (*decl.slots, *decl.scalars, *(slot for slots in decl.slots.values() for slot in slots)):
            check_name(name, "a Variable")
        parts = 0
        for name, expr in decl.hypers.items():
            parts += check_expression(expr, f"hyper-parameter {name!r} of optimizer {shown(decl.name)}")
            for used in names_in(expr):
                check_name(used, "a step or a Variable")
        before = growth.optimizers.get(decl.name) or self._optimizers.get(decl.name)
        added = dict(decl.slots)
        if before is None:
            growth.size += 1 + parts
            for role, scalar in zip(rule.scalars, decl.scalars, strict=True):
                self._own(scalar, _Owner(decl.name, "", role), growth)
        else:
            _check_same(before.decl, decl)
            added = {name: slots for name, slots in decl.slots.items() if name not in before.decl.slots}
            decl = replace(before.decl, slots={**before.decl.slots, **added})
            rule = before.rule
        for variable, slots in added.items():
            growth.trained.append((variable, decl.name))
            growth.size += 1 + len(slots) + (len(variable) + sum(map(len, slots))) // _NAME_CHARACTERS
            for role, slot in zip(rule.slots, slots, strict=True):
                if slot == variable:
                    raise InvalidArgumentError(
                        f"Optimizer {shown(decl.name)} declares Variable {shown(variable)} as its own slot {role!r}."
                    )
                self._own(slot, _Owner(decl.name, variable, role), growth)
        if before is None or added:
            growth.optimizers[decl.name] = _Optimizer(decl, rule)

    def _own(self, name: str, owner: _Owner, growth: Growth) -> None:
        other = growth.owners.get(name) or self._owners.get(name)
        if other is not None:
            raise AlreadyExistsError(
                f"Variable {shown(name)} is declared as {owner}, but this run has it as {other}; no two share one."
            )
        growth.owners[name] = owner

    def _check_free(
        self, name: str, owner: _Owner, decl: VariableDecl | None, is_fresh: bool, is_trained: bool
    ) -> None:
        """Refuse as a slot or a scalar what is a Variable in its own right: its optimizer would read and write it."""
        trainer = next(map(shown, self.trained_by(name)), "the same declaration" if is_trained else "")
        if trainer:
            what = f"{trainer} trains it; what is trained is no optimizer's own"
        elif decl is None or is_fresh or (decl.optimizer, decl.primary) == (owner.optimizer, owner.variable):
            return
        else:
            what = f"it is {'of ' + shown(decl.optimizer) if decl.optimizer else 'a Variable of its own'} in this run"
        raise AlreadyExistsError(
            f"Variable {shown(name)} is declared as {owner}, but {what}. Give the slot or scalar another name."
        )

    def _check_of_its_own(self, name: str, optimizer: str) -> None:
        """Refuse to train what is another's slot or scalar."""
        owner = self._owners.get(name)
        if owner is not None:
            raise AlreadyExistsError(
                f"Optimizer {shown(optimizer)} is declared for Variable {shown(name)}, which this run has as {owner}; "
                "the state of an optimizer cannot be trained. Name a Variable of the model."
            )

    def _check_owned(self, name: str, owner: _Owner, find: Find, growth: Growth) -> None:
        """Refuse a slot or a scalar that is not as its rule wants it; what is not known yet is looked at when it is."""
        decl = find(name)
        if decl is None:
            return
        if owner.variable:
            variable = find(owner.variable)
            if variable is not None or decl.is_step:
                entry = growth.optimizers.get(owner.optimizer) or self._optimizers[owner.optimizer]
                check_slot(decl, owner.optimizer, variable, owner.variable, entry.rule.by_rows)
        elif decl.is_step or decl.dtype != _SCALAR_DTYPE or math.prod(decl.shape) != 1:
            raise InvalidArgumentError(
                f"Variable {shown(name)} is {_described(decl)}; as {owner} it must be {_SCALAR_DTYPE}, of one element."
            )


def check_slot(
    slot: VariableDecl, optimizer: str, variable: VariableDecl | None, name: str, by_rows: bool = False
) -> None:
    """Refuse a slot that an update rule could not work on together with its Variable.

    Args:
        slot: The slot.
        optimizer: Whose it is.
        variable: The Variable that it is a slot of; None where it is not known.
        name: The Variable's name.
        by_rows: Whether the rule's slots have one element a row.

    Raises:
        InvalidArgumentError: If dtype or shape differ, or it is a step.
    """
    if variable is not None and by_rows and len(variable.shape) < 2:
        raise InvalidArgumentError(
            f"Optimizer {shown(optimizer)} keeps a number for each row: it is for tables, and Variable {shown(name)} "
            f"is {_described(variable)}. Give that another optimizer."
        )
    shape = None if variable is None else (variable.shape[0], 1) if by_rows else variable.shape
    if slot.is_step or (variable is not None and (slot.dtype, slot.shape) != (variable.dtype, shape)):
        wanted = "no step" if variable is None else f"{variable.dtype} {list(shape or ())}, as its Variable"
        raise InvalidArgumentError(
            f"Slot {shown(slot.name)} of Variable {shown(name)} is {_described(slot)}; optimizer {shown(optimizer)} "
            f"needs it to be {wanted}."
        )


def _check_trained(decl: VariableDecl | None, optimizer: str) -> None:
    if decl is not None and (decl.is_step or not decl.dtype.startswith("float")):
        raise InvalidArgumentError(
            f"Optimizer {shown(optimizer)} is declared for Variable {shown(decl.name)}, which is {_described(decl)}; "
            "optimizers update floating point only."
        )


def _check_same(old: OptimizerDecl, new: OptimizerDecl) -> None:
    """Refuse another declaration of a known optimizer; more Variables are no other."""
    if (old.kind, old.hypers) != (new.kind, new.hypers):
        raise _differs(new, f"as {new.kind} with {dict(new.hypers)}", f"as {old.kind} with {dict(old.hypers)}")
    if old.scalars != new.scalars:
        raise _differs(new, f"with scalars {list(new.scalars)}", f"with {list(old.scalars)}")
    for variable, slots in new.slots.items():
        if old.slots.get(variable, slots) != slots:
            here = f"with slots {list(slots)} for Variable {variable!r}"
            raise _differs(new, here, f"with {list(old.slots[variable])}")


def _differs(decl: OptimizerDecl, here: str, there: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"Optimizer {decl.name!r} is declared {here}, but this run has it {there}; what is declared stays as it is."
    )


def _described(decl: VariableDecl) -> str:
    return f"{'the step ' if decl.is_step else ''}{decl.dtype} {list(decl.shape)}"


# ---- The numbers of a push: evaluated once, on the sequencer, for all shards ---------------------


def check_covered(needed: Collection[tuple[str, bool]], uses: Collection[HyperValues], store: VariableStore) -> None:
    """Refuse numbers that changes cannot be made with: found before anything is changed.

    Args:
        needed: PushParts.optimizers.
        uses: The numbers that come with the decision.
        store: Of the shard.

    Raises:
        InvalidArgumentError: If an optimizer gets none, or not all of its own.
    """
    for name, after_increment in needed:
        _, rule = store.optimizer(name)
        values: Mapping[str, float] = {}
        for item in uses:
            if item.optimizer == name and item.after_increment == after_increment:
                values = item.values
        if not rule.needs <= values.keys():
            missing = rule.needs - values.keys()
            raise InvalidArgumentError(
                f"The push applies gradients by optimizer {name!r} and brings no {sorted(missing)} for it: its `uses` "
                f"must name the optimizer, with after_increment={after_increment}."
            )


def evaluate_use(use: OptimizerUse, steps: Mapping[str, int], store: VariableStore) -> HyperValues:
    """Evaluate an optimizer's hyper-parameters, and add its scalar state as it is before the push.

    Args:
        use: What the push uses, with the numbers that its worker computed itself.
        steps: Values that steps have in expressions.
        store: Of the sequencer: its scalar Variables.

    Raises:
        InvalidArgumentError: If a hyper-parameter has no value, or one that the rule cannot work with.
    """
    decl, rule = store.optimizer(use.optimizer)
    values: dict[str, float] = {}
    for name in rule.hypers:
        if name in use.overrides:
            values[name] = use.overrides[name]
            continue
        expr = decl.hypers.get(name)
        if expr is None:
            raise InvalidArgumentError(
                f"Optimizer {use.optimizer!r} ({decl.kind}) got no value for {name!r} with this push, and none is "
                "declared."
            )
        if expr.op == "const":
            values[name] = expr.value
            continue
        operands = {n: float(steps[n]) if n in steps else store.scalar(n) for n in set(names_in(expr))}
        values[name] = evaluate(expr, operands)
    for scalar, variable in zip(rule.scalars, decl.scalars, strict=True):
        values[scalar] = store.scalar(variable)
    rule.check_hypers(values)
    return HyperValues(use.optimizer, use.after_increment, values)


def advance_scalars(decl: OptimizerDecl, rule: Rule, values: Mapping[str, float], store: VariableStore) -> None:
    """Move an optimizer's scalar state on, after a push that finishes it.

    Args:
        decl: The optimizer.
        rule: Its rule.
        values: As `evaluate_use` gave them.
        store: Of the sequencer.
    """
    moved = ignoring_float_errors.call(_advanced, rule, values)
    variables = dict(zip(rule.scalars, decl.scalars, strict=True))
    store.set_scalars({variables[name]: value for name, value in moved.items()})


def _advanced(rule: Rule, values: Mapping[str, float]) -> dict[str, np.float32]:
    return rule.advance_scalars({name: np.float32(values[name]) for name in rule.scalars}, values)
