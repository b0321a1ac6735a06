"""An Estimator that is trained and evaluated again and again, in the role that TF_CONFIG gives this process."""

import sys

import numpy as np

import globalstep as tf

MODEL_DIR, HOW = sys.argv[1:]
ROWS = np.random.default_rng(0).normal(size=(640, 2)).astype(np.float32)
HOWS = {"data": [{}] * 3, "steps": [{"steps": 50}] * 3, "max_steps": [{"max_steps": last} for last in (50, 100, 150)]}


def rows(epochs):
    labels = ROWS @ np.array([1, -2], np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": ROWS}, labels)).repeat(epochs).batch(64)


model = tf.estimator.LinearRegressor([tf.feature_column.numeric_column("x", shape=(2,))], MODEL_DIR)
for limit in HOWS[HOW]:
    model.train(lambda: rows(None if HOW != "data" else 5), **limit)
    found = model.evaluate(lambda: rows(1), name=f"{model.config.task_type}_{model.config.task_id}")
print("ended at", found["global_step"], flush=True)
