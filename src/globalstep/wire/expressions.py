"""Closed expressions over steps and scalar Variables: what a learning-rate schedule is on the wire.

An expression is evaluated where the authoritative step is, in float64 at the exact integer step. It
has a fixed set of operations and no loops, so evaluating one from an untrusted client is safe.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from globalstep.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Expr:
    """A node of an expression tree.

    Attributes:
        op: "const" (uses `value`), "name" (a step or scalar Variable, uses `name`), or a key of
            `OPERATIONS`.
        args: Operands, as many as the operation takes.
        value: The number of a "const".
        name: The step or Variable of a "name".
    """

    op: str
    args: tuple[Expr, ...] = ()
    value: float = 0.0
    name: str = ""


def constant(value: float) -> Expr:
    """A number."""
    return Expr("const", value=float(value))


def step(name: str) -> Expr:
    """The value of a step, as it is before the push that asks."""
    return Expr("name", name=name)


def variable(name: str) -> Expr:
    """The value of a scalar Variable that lives on the sequencer."""
    return Expr("name", name=name)


def _pow(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan


def _exp(a: float) -> float:
    try:
        return math.exp(a)
    except OverflowError:
        return math.inf


def _div(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _rounded(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda a: function(a) if math.isfinite(a) else a


# Operation -> (number of operands, function). "where" takes (condition, if nonzero, otherwise).
OPERATIONS: Mapping[str, tuple[int, Callable[..., float]]] = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "div": (2, _div),
    "pow": (2, _pow),
    "min": (2, min),
    "max": (2, max),
    "neg": (1, lambda a: -a),
    "floor": (1, _rounded(math.floor)),
    "ceil": (1, _rounded(math.ceil)),
    "exp": (1, _exp),
    "log": (1, lambda a: math.log(a) if a > 0 else (-math.inf if a == 0 else math.nan)),
    "sqrt": (1, lambda a: math.sqrt(a) if a >= 0 else math.nan),
    "cos": (1, lambda a: math.cos(a) if math.isfinite(a) else math.nan),
    "sin": (1, lambda a: math.sin(a) if math.isfinite(a) else math.nan),
    "abs": (1, abs),
    "less": (2, lambda a, b: float(a < b)),
    "less_equal": (2, lambda a, b: float(a <= b)),
    "equal": (2, lambda a, b: float(a == b)),
    "where": (3, lambda c, a, b: a if c else b),
}

#: An expression larger or deeper than this is refused: schedules need a few dozen nodes.
MAX_NODES = 10_000
MAX_DEPTH = 100


def check_expression(expr: Expr, what: str) -> int:
    """Refuse an expression that could not be evaluated, whatever its names stand for.

    Returns:
        How many parts it has.

    Raises:
        InvalidArgumentError: For an unknown operation, a wrong number of operands, or too many or too deep parts.

    >>> check_expression(Expr("neg", (constant(1),)), "a rate")
    2
    """
    count, level = 0, [expr]
    for _ in range(MAX_DEPTH):
        count += len(level)
        if count > MAX_NODES:
            break
        for node in level:
            operands = 0 if node.op in ("const", "name") else OPERATIONS.get(node.op, (-1,))[0]
            if operands != len(node.args):
                raise InvalidArgumentError(
                    f"The {what} has the operation {node.op[:80]!r} of {len(node.args)} operands."
                )
        level = [arg for node in level for arg in node.args]
        if not level:
            return count
    raise InvalidArgumentError(f"The {what} has more than {MAX_NODES} parts, or is deeper than {MAX_DEPTH}.")


def evaluate(expr: Expr, names: Mapping[str, float]) -> float:
    """Give the value of an expression.

    Raises:
        InvalidArgumentError: For an unknown operation or name, or a wrong number of operands.

    >>> evaluate(Expr("pow", (constant(2), step("global_step"))), {"global_step": 10})
    1024.0
    """
    if expr.op == "const":
        return expr.value
    if expr.op == "name":
        if expr.name not in names:
            raise InvalidArgumentError(
                f"A hyper-parameter depends on {expr.name!r}, which is no step or scalar Variable on the "
                f"sequencer; known: {sorted(names)}"
            )
        return float(names[expr.name])
    known = OPERATIONS.get(expr.op)
    if known is None or len(expr.args) != known[0]:
        raise InvalidArgumentError(f"Unknown operation {expr.op!r} with {len(expr.args)} operands.")
    if expr.op == "where":
        return evaluate(expr.args[1] if evaluate(expr.args[0], names) else expr.args[2], names)
    return float(known[1](*(evaluate(arg, names) for arg in expr.args)))


def names_in(expr: Expr) -> Iterator[str]:
    """The steps and scalar Variables that an expression depends on, with repeats."""
    if expr.op == "name":
        yield expr.name
    for arg in expr.args:
        yield from names_in(arg)
