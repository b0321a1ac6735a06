"""The cases of the golden data: what scripts/make_golden.py runs in TensorFlow, and the tests here.

Imports neither: names are the same on both sides, so each side looks them up in its own `train` module.
"""

from dataclasses import dataclass, field

import numpy as np

STEPS = 10
SHAPE = (6, 3)
#: Decayed rates are halved every DECAY_STEPS steps, smoothly.
DECAY_STEPS = 4
DECAY_RATE = 0.5


@dataclass(frozen=True)
class OptimizerCase:
    """An optimizer with its arguments, a kind of gradient, and a kind of rate."""

    optimizer: str
    number: int
    arguments: dict = field(default_factory=dict)
    slots: tuple = ()
    scalars: tuple = ()
    sparse: bool = False
    decayed: bool = False

    @property
    def name(self):
        kind = "sparse" if self.sparse else "dense"
        rate = "decayed" if self.decayed else "fixed"
        return f"{self.optimizer}-{self.number}-{kind}-{rate}"


_MOMENTS = {"slots": ("m", "v"), "scalars": ("beta1_power", "beta2_power")}
_FTRL = {"slots": ("accum", "linear")}
_DA = {"slots": ("gradient_accumulator", "gradient_squared_accumulator")}

# Optimizer, names of its state, two or more sets of arguments.
_OPTIMIZERS = (
    ("GradientDescent", {}, [{"learning_rate": 0.1}, {"learning_rate": 1.5}]),
    (
        "Momentum",
        {"slots": ("momentum",)},
        [{"learning_rate": 0.1, "momentum": 0.9}, {"learning_rate": 0.05, "momentum": 0.5, "use_nesterov": True}],
    ),
    (
        "Adagrad",
        {"slots": ("accumulator",)},
        [{"learning_rate": 0.1}, {"learning_rate": 0.5, "initial_accumulator_value": 1.0}],
    ),
    (
        "Adadelta",
        {"slots": ("accum", "accum_update")},
        [{"learning_rate": 0.001}, {"learning_rate": 1.0, "rho": 0.8, "epsilon": 1e-3}],
    ),
    (
        "RMSProp",
        {"slots": ("rms", "momentum")},
        [{"learning_rate": 0.01}, {"learning_rate": 0.1, "decay": 0.7, "momentum": 0.8, "epsilon": 1e-3}],
    ),
    (
        "RMSProp",
        {"slots": ("rms", "mg", "momentum")},
        [
            {"learning_rate": 0.01, "centered": True},
            {"learning_rate": 0.1, "decay": 0.7, "momentum": 0.8, "epsilon": 1e-3, "centered": True},
        ],
    ),
    ("Adam", _MOMENTS, [{"learning_rate": 0.001}, {"learning_rate": 0.1, "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}]),
    (
        "Ftrl",
        _FTRL,
        [
            {"learning_rate": 0.1},
            {
                "learning_rate": 0.5,
                "learning_rate_power": -0.7,
                "initial_accumulator_value": 0.3,
                "l1_regularization_strength": 0.05,
                "l2_regularization_strength": 0.02,
            },
            {"learning_rate": 0.3, "l1_regularization_strength": 0.01, "l2_shrinkage_regularization_strength": 0.1},
        ],
    ),
    (
        "AdagradDA",
        _DA,
        [
            {"learning_rate": 0.1},
            {
                "learning_rate": 0.5,
                "initial_gradient_squared_accumulator_value": 0.4,
                "l1_regularization_strength": 0.05,
                "l2_regularization_strength": 0.02,
            },
        ],
    ),
    (
        "ProximalGradientDescent",
        {},
        [
            {"learning_rate": 0.1},
            {"learning_rate": 0.2, "l1_regularization_strength": 0.05, "l2_regularization_strength": 0.3},
        ],
    ),
    (
        "ProximalAdagrad",
        {"slots": ("accumulator",)},
        [
            {"learning_rate": 0.1},
            {
                "learning_rate": 0.4,
                "initial_accumulator_value": 0.5,
                "l1_regularization_strength": 0.05,
                "l2_regularization_strength": 0.3,
            },
        ],
    ),
)


def optimizer_cases():
    """Every optimizer of `tf.compat.v1.train`, each set of arguments, dense and sparse, fixed and decayed."""
    counts: dict[str, int] = {}
    for optimizer, state, sets in _OPTIMIZERS:
        for arguments in sets:
            number = counts[optimizer] = counts.get(optimizer, 0) + 1
            for sparse in (False, True):
                for decayed in (False, True):
                    yield OptimizerCase(optimizer, number, arguments, sparse=sparse, decayed=decayed, **state)


def keras_cases():
    """The later optimizers, against Keras: dense, values only. What Keras calls the same is the same."""
    yield OptimizerCase("AdamW", 1, {"learning_rate": 0.01, "weight_decay": 0.004, "epsilon": 1e-7})
    yield OptimizerCase(
        "AdamW", 2, {"learning_rate": 0.1, "weight_decay": 0.1, "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}
    )
    yield OptimizerCase("Lion", 1, {"learning_rate": 0.01})
    yield OptimizerCase("Lion", 2, {"learning_rate": 0.1, "beta1": 0.5, "beta2": 0.7, "weight_decay": 0.1})
    yield OptimizerCase("Lamb", 1, {"learning_rate": 0.01, "epsilon": 1e-7})
    yield OptimizerCase("Lamb", 2, {"learning_rate": 0.1, "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3})


def initial_values():
    return np.random.default_rng(7).normal(size=SHAPE).astype(np.float32)


def dense_gradients():
    """[STEPS, *SHAPE]; the last column's are mostly 0, as of a feature that is rarely there."""
    grads = np.random.default_rng(8).normal(size=(STEPS, *SHAPE)).astype(np.float32)
    grads[1::2, :, 2] = 0.0
    return grads


def sparse_gradients():
    """(int64 [STEPS, 5] row ids with repeats, [STEPS, 5, width] rows)."""
    rng = np.random.default_rng(9)
    indices = rng.integers(0, SHAPE[0] - 1, size=(STEPS, 5))  # the last row is never touched
    indices[:, 1] = indices[:, 0]
    return indices, rng.normal(size=(STEPS, 5, SHAPE[1])).astype(np.float32)


#: Function of `train`, its arguments after the step (for piecewise_constant: all but the first).
SCHEDULES = (
    ("exponential_decay", {"learning_rate": 0.1, "decay_steps": 7, "decay_rate": 0.9}),
    ("exponential_decay", {"learning_rate": 0.1, "decay_steps": 7, "decay_rate": 0.9, "staircase": True}),
    ("exponential_decay", {"learning_rate": 0.1, "decay_steps": 10, "decay_rate": 2.0}),
    ("natural_exp_decay", {"learning_rate": 0.1, "decay_steps": 7, "decay_rate": 0.5}),
    ("natural_exp_decay", {"learning_rate": 0.1, "decay_steps": 7, "decay_rate": 0.5, "staircase": True}),
    ("inverse_time_decay", {"learning_rate": 0.1, "decay_steps": 7, "decay_rate": 0.5}),
    ("inverse_time_decay", {"learning_rate": 0.1, "decay_steps": 7, "decay_rate": 0.5, "staircase": True}),
    ("polynomial_decay", {"learning_rate": 0.1, "decay_steps": 50}),
    ("polynomial_decay", {"learning_rate": 0.1, "decay_steps": 50, "end_learning_rate": 0.01, "power": 0.5}),
    (
        "polynomial_decay",
        {"learning_rate": 0.1, "decay_steps": 20, "end_learning_rate": 0.01, "power": 2.0, "cycle": True},
    ),
    ("piecewise_constant", {"boundaries": [10, 30], "values": [1.0, 0.5, 0.1]}),
    ("cosine_decay", {"learning_rate": 0.1, "decay_steps": 50}),
    ("cosine_decay", {"learning_rate": 0.1, "decay_steps": 50, "alpha": 0.2}),
    ("cosine_decay_restarts", {"learning_rate": 0.1, "first_decay_steps": 12}),
    (
        "cosine_decay_restarts",
        {"learning_rate": 0.1, "first_decay_steps": 12, "t_mul": 1.0, "m_mul": 0.8, "alpha": 0.1},
    ),
    ("cosine_decay_restarts", {"learning_rate": 0.1, "first_decay_steps": 12, "t_mul": 1.5, "m_mul": 0.9}),
    ("linear_cosine_decay", {"learning_rate": 0.1, "decay_steps": 50}),
    ("linear_cosine_decay", {"learning_rate": 0.1, "decay_steps": 50, "num_periods": 2.0, "alpha": 0.1, "beta": 0.01}),
)
SCHEDULE_STEPS = (0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 19, 20, 21, 30, 31, 37, 49, 50, 51, 84, 100, 1000)


def clip_inputs():
    rng = np.random.default_rng(11)
    return [rng.normal(size=shape).astype(np.float32) for shape in ((4, 3), (5,), (2, 2, 2))]


#: Function, arguments after the first; each is run on `clip_inputs()[0]`.
CLIPS = (
    ("clip_by_value", {"clip_value_min": -0.5, "clip_value_max": 0.3}),
    ("clip_by_norm", {"clip_norm": 1.0}),
    ("clip_by_norm", {"clip_norm": 100.0}),
    ("clip_by_norm", {"clip_norm": 0.5, "axes": [0]}),
    ("clip_by_norm", {"clip_norm": 0.5, "axes": [1]}),
    ("clip_by_average_norm", {"clip_norm": 0.1}),
    ("clip_by_average_norm", {"clip_norm": 10.0}),
)
#: Arguments after the list; each is run on `clip_inputs()` with None put in at 1.
GLOBAL_CLIPS = ({"clip_norm": 1.0}, {"clip_norm": 100.0}, {"clip_norm": 1.0, "use_norm": 2.0})

#: Arguments of ExponentialMovingAverage.
AVERAGES = ({"decay": 0.9}, {"decay": 0.9999}, {"decay": 0.999, "num_updates": True})


def followed_values():
    """[STEPS, 4]: what the averaged Variable or value is, step by step."""
    return np.random.default_rng(12).normal(size=(STEPS, 4)).astype(np.float32)
