"""Optimizers of online and sparse linear learning: Ftrl, Adagrad with dual averaging, and proximal ones.

Layer: tf1. Source of names and defaults: TensorFlow 1.15 `python/training`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from globalstep.tf1.graph.graph import as_node
from globalstep.tf1.graph.mutations import Hyper
from globalstep.tf1.ops.math_ops import add
from globalstep.tf1.optimizers.optimizer import Optimizer, Slot, check_hyper
from globalstep.tf1.variables.training_util import assert_global_step


class FtrlOptimizer(Optimizer):
    """Ftrl-proximal, for sparse linear models with L1 and L2.

    A sparse gradient changes only its rows, in the slots too. Slots: "accum", "linear".

    Args:
        learning_rate: The rate; must be positive, which for a node the PS checks at each push.
        learning_rate_power: How the rate falls with the accumulated squares; 0 or less.
        initial_accumulator_value: What the accumulators start as; 0 or more.
        l1_regularization_strength: 0 or more.
        l2_regularization_strength: 0 or more.
        use_locking: See Optimizer.
        name: See Optimizer.
        accum_name: Last part of the name of the "accum" slots; default `name`.
        linear_name: Last part of the name of the "linear" slots; default `name`.
        l2_shrinkage_regularization_strength: 0 or more; an L2 penalty on the loss, where the other is
            one on the step.

    Raises:
        ValueError: If a number is out of its range or NaN.

    Source: McMahan et al., "Ad Click Prediction" (2013).
    """

    kind: ClassVar[str] = "ftrl"

    def __init__(
        self,
        learning_rate: Hyper,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: float = 0.0,
    ) -> None:
        super().__init__(use_locking, name)
        for parameter, value in (
            ("initial_accumulator_value", initial_accumulator_value),
            ("l1_regularization_strength", l1_regularization_strength),
            ("l2_regularization_strength", l2_regularization_strength),
            ("l2_shrinkage_regularization_strength", l2_shrinkage_regularization_strength),
        ):
            if not value >= 0.0:
                raise ValueError(f"{parameter} {value:f} needs to be positive or zero")
        if not learning_rate_power <= 0.0:
            raise ValueError(f"learning_rate_power {learning_rate_power:f} needs to be negative or zero")
        self._learning_rate = check_hyper(name, "learning_rate", learning_rate)
        self._learning_rate_power = learning_rate_power
        self._initial_accumulator_value = initial_accumulator_value
        self._l1 = l1_regularization_strength
        self._l2 = l2_regularization_strength
        self._l2_shrinkage = l2_shrinkage_regularization_strength
        self._accum_name = accum_name or name
        self._linear_name = linear_name or name

    def hypers(self) -> Mapping[str, Hyper]:
        """See Optimizer."""
        return {
            "learning_rate": self._learning_rate,
            "learning_rate_power": self._learning_rate_power,
            "l1_regularization_strength": self._l1,
            "l2_regularization_strength": self._l2,
            "l2_shrinkage_regularization_strength": self._l2_shrinkage,
        }

    def slots(self) -> Sequence[Slot]:
        """See Optimizer."""
        return (
            Slot("accum", self._initial_accumulator_value, self._accum_name),
            Slot("linear", 0.0, self._linear_name),
        )


class AdagradDAOptimizer(Optimizer):
    """Adagrad with dual averaging, which keeps the weights of a linear model at exactly 0.

    Values are computed anew from the accumulated gradients: what a Variable held before is lost at its
    first update. A sparse gradient changes only its rows. Slots: "gradient_accumulator",
    "gradient_squared_accumulator".

    Args:
        learning_rate: The rate.
        global_step: The step, which counts the gradients that went into the accumulators.
        initial_gradient_squared_accumulator_value: What the squares start as; positive.
        l1_regularization_strength: Strength of L1.
        l2_regularization_strength: Strength of L2.
        use_locking: See Optimizer.
        name: See Optimizer.

    Raises:
        TypeError: If `global_step` is no integer scalar.
        ValueError: If the initial value is not positive, or a parameter is NaN.

    Source: Duchi, Hazan, Singer, "Adaptive Subgradient Methods" (2011).
    """

    kind: ClassVar[str] = "adagrad_da"

    def __init__(
        self,
        learning_rate: Hyper,
        global_step: Any,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: Hyper = 0.0,
        l2_regularization_strength: Hyper = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        if not initial_gradient_squared_accumulator_value > 0.0:
            raise ValueError(
                "initial_gradient_squared_accumulator_value must be positive: "
                f"{initial_gradient_squared_accumulator_value}"
            )
        super().__init__(use_locking, name)
        assert_global_step(global_step)
        self._learning_rate = check_hyper(name, "learning_rate", learning_rate)
        self._global_step = as_node(global_step)
        self._initial_squares = initial_gradient_squared_accumulator_value
        self._l1 = check_hyper(name, "l1_regularization_strength", l1_regularization_strength)
        self._l2 = check_hyper(name, "l2_regularization_strength", l2_regularization_strength)

    def hypers(self) -> Mapping[str, Hyper]:
        """See Optimizer."""
        return {
            "learning_rate": self._learning_rate,
            # The step is that before the push, whose own gradient is in the accumulators already.
            "global_step": add(self._global_step, 1),
            "l1_regularization_strength": self._l1,
            "l2_regularization_strength": self._l2,
        }

    def slots(self) -> Sequence[Slot]:
        """See Optimizer."""
        return Slot("gradient_accumulator"), Slot("gradient_squared_accumulator", self._initial_squares)


class ProximalGradientDescentOptimizer(Optimizer):
    """Gradient descent, each step followed by shrinkage by L1 and L2.

    A sparse gradient changes only its rows.

    Args:
        learning_rate: The rate.
        l1_regularization_strength: Strength of L1.
        l2_regularization_strength: Strength of L2.
        use_locking: See Optimizer.
        name: See Optimizer.

    Raises:
        ValueError: If a parameter is NaN.

    Source: Duchi and Singer, "Efficient Learning using Forward-Backward Splitting" (2009).
    """

    kind: ClassVar[str] = "proximal_gradient_descent"

    def __init__(
        self,
        learning_rate: Hyper,
        l1_regularization_strength: Hyper = 0.0,
        l2_regularization_strength: Hyper = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        super().__init__(
            use_locking,
            name,
            learning_rate=learning_rate,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
        )


class ProximalAdagradOptimizer(ProximalGradientDescentOptimizer):
    """Adagrad, each step followed by shrinkage by L1 and L2.

    A sparse gradient changes only its rows, in the slot too. Slot: "accumulator".

    Args:
        learning_rate: The rate.
        initial_accumulator_value: What the accumulators start as; positive.
        l1_regularization_strength: 0 or more.
        l2_regularization_strength: 0 or more.
        use_locking: See Optimizer.
        name: See Optimizer.

    Raises:
        ValueError: If the initial value is not positive, or a parameter is NaN.

    Source: Duchi and Singer, "Efficient Learning using Forward-Backward Splitting" (2009).
    """

    kind: ClassVar[str] = "proximal_adagrad"

    def __init__(
        self,
        learning_rate: Hyper,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: Hyper = 0.0,
        l2_regularization_strength: Hyper = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        if not initial_accumulator_value > 0.0:
            raise ValueError(f"initial_accumulator_value must be positive: {initial_accumulator_value}")
        super().__init__(learning_rate, l1_regularization_strength, l2_regularization_strength, use_locking, name)
        self._initial_accumulator_value = initial_accumulator_value

    def slots(self) -> Sequence[Slot]:
        """See Optimizer."""
        return (Slot("accumulator", self._initial_accumulator_value),)
