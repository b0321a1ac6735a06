"""TensorFlow's gradient optimizers: their names, arguments, defaults and slots.

The formulas are in `globalstep.rules`, one a file; the online and proximal ones' optimizers are in
`globalstep.tf1.optimizers.optimizers_online`, those that came after TensorFlow 1.x in
`globalstep.tf1.optimizers.optimizers_modern`.

Any hyper-parameter may be a number, a scalar node (a schedule, also composed, or a Variable), which the
PS evaluates at the authoritative step where it is a closed expression, or a function of no arguments,
which the worker calls for every push.

Layer: tf1. Source of names and defaults: TensorFlow 1.15 `python/training`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from globalstep.tf1.graph.mutations import Hyper
from globalstep.tf1.optimizers.optimizer import Optimizer, Slot
from globalstep.tf1.variables.variables import Variable


class GradientDescentOptimizer(Optimizer):
    """Gradient descent: `value -= learning_rate * gradient`.

    A sparse gradient changes only its rows; repeated rows are subtracted one after another.

    Args:
        learning_rate: The rate.
        use_locking: See Optimizer.
        name: See Optimizer.

    Raises:
        ValueError: If the rate is NaN.
    """

    kind: ClassVar[str] = "gradient_descent"

    def __init__(self, learning_rate: Hyper, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(use_locking, name, learning_rate=learning_rate)


class MomentumOptimizer(Optimizer):
    """Momentum: `m = momentum * m + gradient; value -= learning_rate * m`.

    A sparse gradient changes only its rows, in the slot too. Slot: "momentum".

    Args:
        learning_rate: The rate.
        momentum: How much of the last step is kept.
        use_locking: See Optimizer.
        name: See Optimizer.
        use_nesterov: Whether to step as if the gradient had been taken after the momentum's step.

    Raises:
        ValueError: If a parameter is NaN.
    """

    kind: ClassVar[str] = "momentum"

    def __init__(
        self,
        learning_rate: Hyper,
        momentum: Hyper,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(
            use_locking, name, learning_rate=learning_rate, momentum=momentum, use_nesterov=float(use_nesterov)
        )

    def slots(self) -> Sequence[Slot]:
        """See Optimizer."""
        return (Slot("momentum"),)


class AdagradOptimizer(Optimizer):
    """Adagrad: `a += gradient^2; value -= learning_rate * gradient / sqrt(a)`, without an epsilon.

    A sparse gradient changes only its rows, in the slot too. Slot: "accumulator".

    Args:
        learning_rate: The rate.
        initial_accumulator_value: What the accumulators start as; positive.
        use_locking: See Optimizer.
        name: See Optimizer.

    Raises:
        ValueError: If the initial value is not positive, or the rate is NaN.
    """

    kind: ClassVar[str] = "adagrad"

    def __init__(
        self,
        learning_rate: Hyper,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        if not initial_accumulator_value > 0.0:
            raise ValueError(f"initial_accumulator_value must be positive: {initial_accumulator_value}")
        super().__init__(use_locking, name, learning_rate=learning_rate)
        self._initial_accumulator_value = initial_accumulator_value

    def slots(self) -> Sequence[Slot]:
        """See Optimizer."""
        return (Slot("accumulator", self._initial_accumulator_value),)


class AdadeltaOptimizer(Optimizer):
    """Adadelta: steps scaled by the root mean square of the last steps over that of the gradients.

    A sparse gradient changes only its rows, in the slots too. Slots: "accum", "accum_update".

    Args:
        learning_rate: The rate; 1.0 is the paper's form.
        rho: Decay of both averages.
        epsilon: Added under the roots.
        use_locking: See Optimizer.
        name: See Optimizer.

    Raises:
        ValueError: If a parameter is NaN.
    """

    kind: ClassVar[str] = "adadelta"

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        rho: Hyper = 0.95,
        epsilon: Hyper = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(use_locking, name, learning_rate=learning_rate, rho=rho, epsilon=epsilon)

    def slots(self) -> Sequence[Slot]:
        """See Optimizer."""
        return Slot("accum"), Slot("accum_update")


class RMSPropOptimizer(Optimizer):
    """RMSProp: the gradient over a running root mean square of itself, with momentum.

    A sparse gradient changes only its rows, in the slots too, without catching up on the pushes that
    left them alone. Slots: "rms", which starts at 1, "mg" if centered, "momentum".

    Args:
        learning_rate: The rate.
        decay: Decay of the running averages.
        momentum: How much of the last step is kept.
        epsilon: Added under the root.
        use_locking: See Optimizer.
        centered: Whether to divide by the root of the variance instead of the mean square.
        name: See Optimizer.

    Raises:
        ValueError: If a parameter is NaN.
    """

    kind: ClassVar[str] = "rmsprop"

    def __init__(
        self,
        learning_rate: Hyper,
        decay: Hyper = 0.9,
        momentum: Hyper = 0.0,
        epsilon: Hyper = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(
            use_locking, name, learning_rate=learning_rate, decay=decay, momentum=momentum, epsilon=epsilon
        )
        self._centered = centered

    def rule(self) -> str:
        """See Optimizer."""
        return "centered_rmsprop" if self._centered else self.kind

    def slots(self) -> Sequence[Slot]:
        """See Optimizer."""
        centered = (Slot("mg"),) if self._centered else ()
        return Slot("rms", 1.0), *centered, Slot("momentum")


class AdamOptimizer(Optimizer):
    """Adam: steps by bias-corrected running moments of the gradient.

    A sparse gradient counts as zero in the other rows, as in TensorFlow: every row of the Variable and
    its slots moves with every push, which costs a pass over the whole table. `LazyAdamOptimizer` changes
    only the rows that have a gradient. Slots: "m", "v"; the powers of the betas are two scalar Variables.

    Args:
        learning_rate: The rate.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment ("epsilon hat" of the paper).
        use_locking: See Optimizer.
        name: See Optimizer.

    Raises:
        ValueError: If a parameter is NaN.

    Source: Kingma and Ba, "Adam" (2015).
    """

    kind: ClassVar[str] = "adam"

    def __init__(
        self,
        learning_rate: Hyper = 0.001,
        beta1: Hyper = 0.9,
        beta2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(use_locking, name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)

    def slots(self) -> Sequence[Slot]:
        """See Optimizer."""
        return Slot("m"), Slot("v")

    def scalars(self) -> Mapping[str, Hyper]:
        """See Optimizer."""
        return {"beta1_power": self._hypers["beta1"], "beta2_power": self._hypers["beta2"]}

    def _get_beta_accumulators(self) -> Sequence[Variable | None]:
        """Give both powers in the default graph, under the name by which programs of TensorFlow call it."""
        return [one for one in self.variables() if one.slot_name in self.scalars()] or [None, None]
