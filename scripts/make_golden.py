"""Make tests/golden/*.npz from an installed TensorFlow: what its training library computes, step by step.

    python -m venv /some/where && /some/where/bin/pip install tensorflow-cpu==2.21.0
    /some/where/bin/python scripts/make_golden.py

The data is committed and the tests need no TensorFlow. The cases are in tests/golden/golden_cases.py.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
sys.path.insert(0, str(GOLDEN))
import golden_cases as cases  # noqa: E402

v1 = tf.compat.v1


def run_optimizer(case: cases.OptimizerCase) -> dict[str, np.ndarray]:
    """Give every value and slot after each step, [STEPS, ...]."""
    with v1.Graph().as_default(), v1.Session() as sess:
        variable = v1.Variable(cases.initial_values(), name="w")
        step = v1.train.create_global_step()
        arguments: dict[str, Any] = dict(case.arguments)
        if case.decayed:
            arguments["learning_rate"] = v1.train.exponential_decay(
                arguments["learning_rate"], step, cases.DECAY_STEPS, cases.DECAY_RATE
            )
        if case.optimizer == "AdagradDA":
            arguments["global_step"] = step
        optimizer = getattr(v1.train, f"{case.optimizer}Optimizer")(**arguments)
        if case.sparse:
            ids, rows = cases.sparse_gradients()
            fed = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None, cases.SHAPE[1]])
            grad: Any = tf.IndexedSlices(fed[1], fed[0], tf.constant(cases.SHAPE))
            feeds = [dict(zip(fed, given, strict=True)) for given in zip(ids, rows, strict=True)]
        else:
            grad = v1.placeholder(tf.float32, cases.SHAPE)
            feeds = [{grad: given} for given in cases.dense_gradients()]
        train_op = optimizer.apply_gradients([(grad, variable)], global_step=step)
        state = {"values": variable, **{name: optimizer.get_slot(variable, name) for name in case.slots}}
        for scalar in case.scalars:
            state[scalar] = next(v for v in optimizer.variables() if v.op.name == scalar)
        assert sorted(case.slots) == optimizer.get_slot_names()
        sess.run(v1.global_variables_initializer())
        history = []
        for feed in feeds:
            sess.run(train_op, feed)
            history.append(sess.run(state))
    return {name: np.stack([entry[name] for entry in history]) for name in state}


def run_keras(case: cases.OptimizerCase) -> np.ndarray:
    """Give the values after each step of a Keras optimizer."""
    renamed = {"beta1": "beta_1", "beta2": "beta_2"}
    optimizer = getattr(tf.keras.optimizers, case.optimizer)(
        **{renamed.get(name, name): value for name, value in case.arguments.items()}
    )
    variable = tf.Variable(cases.initial_values())
    history = []
    for grad in cases.dense_gradients():
        optimizer.apply_gradients([(tf.constant(grad), variable)])
        history.append(variable.numpy())
    return np.stack(history)


def run_schedules() -> dict[str, np.ndarray]:
    """Give each schedule's value at each of SCHEDULE_STEPS, with the step as an int64 Variable."""
    arrays = {}
    for number, (function, arguments) in enumerate(cases.SCHEDULES):
        with v1.Graph().as_default(), v1.Session() as sess:
            step = v1.Variable(0, dtype=tf.int64)
            if function == "piecewise_constant":
                rate = v1.train.piecewise_constant(step, **arguments)
            else:
                rate = getattr(v1.train, function)(global_step=step, **arguments)
            values = []
            for at in cases.SCHEDULE_STEPS:
                step.load(at, sess)
                values.append(sess.run(rate))
        arrays[str(number)] = np.array(values)
    return arrays


def run_clipping() -> dict[str, np.ndarray]:
    """Give the clipped arrays, and global norms."""
    arrays: dict[str, Any] = {}
    inputs = cases.clip_inputs()
    with v1.Graph().as_default(), v1.Session() as sess:
        for number, (function, arguments) in enumerate(cases.CLIPS):
            arrays[f"{number}"] = sess.run(getattr(v1, function)(inputs[0], **arguments))
        arrays["global_norm"] = sess.run(tf.linalg.global_norm(inputs))
        with_none = [inputs[0], None, *inputs[1:]]
        for number, arguments in enumerate(cases.GLOBAL_CLIPS):
            nodes = [None if array is None else tf.constant(array) for array in with_none]
            # A norm that is given must be a tensor there.
            arguments = {name: tf.constant(value) for name, value in arguments.items()}
            clipped, norm = tf.clip_by_global_norm(nodes, **arguments)
            arrays[f"global-{number}-norm"] = sess.run(tf.convert_to_tensor(norm))
            for index, node in enumerate(clipped):
                if node is not None:
                    arrays[f"global-{number}-{index}"] = sess.run(node)
        infinite = [np.array([1.0, np.inf], np.float32), np.ones(2, np.float32)]
        clipped, norm = tf.clip_by_global_norm(list(map(tf.constant, infinite)), 1.0)
        arrays["infinite-norm"], (arrays["infinite-0"], arrays["infinite-1"]) = sess.run((norm, clipped))
    return arrays


def run_averages() -> dict[str, np.ndarray]:
    """Give shadows step by step: of a Variable, of a value, of a value without bias, and of both functions."""
    from tensorflow.python.training import moving_averages

    arrays = {}
    values = cases.followed_values()
    for number, arguments in enumerate(cases.AVERAGES):
        with v1.Graph().as_default(), v1.Session() as sess:
            variable = v1.Variable(values[0], name="w")
            node = v1.placeholder(tf.float32, [4])
            step = v1.train.create_global_step()
            counted = {**arguments, "num_updates": step} if "num_updates" in arguments else arguments
            plain = v1.train.ExponentialMovingAverage(**counted)
            debiased = v1.train.ExponentialMovingAverage(**counted, zero_debias=True, name="Debiased")
            with v1.control_dependencies([v1.assign(variable, node), v1.assign_add(step, 1)]):
                updates = [plain.apply([variable, node]), debiased.apply([node])]
            shadows = {"variable": plain.average(variable), "value": plain.average(node),
                       "debiased": debiased.average(node)}  # fmt: skip
            sess.run(v1.global_variables_initializer())
            history = []
            for value in values:
                sess.run(updates, {node: value})
                history.append(sess.run(shadows))
        for name in shadows:
            arrays[f"{number}-{name}"] = np.stack([entry[name] for entry in history])
    with v1.Graph().as_default(), v1.Session() as sess:
        node, weight = v1.placeholder(tf.float32, [4]), v1.placeholder(tf.float32, [])
        average = v1.Variable(np.zeros(4, np.float32))
        made = {
            "assigned": moving_averages.assign_moving_average(average, node, 0.8),
            "weighted": moving_averages.weighted_moving_average(node, 0.8, weight),
        }
        sess.run(v1.global_variables_initializer())
        history = [sess.run(made, {node: value, weight: 1.0 + i}) for i, value in enumerate(values)]
    for name in made:
        arrays[name] = np.stack([entry[name] for entry in history])
    return arrays


def main() -> None:
    """Write the four files."""
    keras = {case.name: run_keras(case) for case in cases.keras_cases()}
    v1.disable_v2_behavior()
    optimizers = {
        f"{case.name}/{name}": history
        for case in cases.optimizer_cases()
        for name, history in run_optimizer(case).items()
    }
    files = {
        "optimizers": {**optimizers, **keras},
        "schedules": run_schedules(),
        "clipping": run_clipping(),
        "averages": run_averages(),
    }
    for name, arrays in files.items():
        arrays["tensorflow_version"] = np.array(tf.__version__)
        np.savez_compressed(GOLDEN / f"{name}.npz", **arrays)
        print(name, len(arrays) - 1, "arrays")


if __name__ == "__main__":
    main()
