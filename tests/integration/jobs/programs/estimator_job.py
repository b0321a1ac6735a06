"""A wide and deep model that `tf.estimator.train_and_evaluate` trains in the role that TF_CONFIG gives this process."""

import sys

import numpy as np

import globalstep as tf

MODEL_DIR, LAST_STEP = sys.argv[1], int(sys.argv[2])
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(500, 3)).astype(np.float32)
KINDS = np.array(["a", "b", "c"])[RANDOM.integers(0, 3, 500)]
LABELS = ((ROWS.sum(axis=1) + (KINDS == "b")) > 0).astype(np.int64)
NUMBERS = tf.feature_column.numeric_column("x", shape=(3,))
KIND = tf.feature_column.categorical_column_with_vocabulary_list("kind", ["a", "b", "c"])


def rows(epochs):
    data = tf.data.Dataset.from_tensor_slices(({"x": ROWS, "kind": KINDS}, LABELS))
    return data.shuffle(500).repeat(epochs).batch(25)


def serving():
    inputs = {"x": tf.placeholder(tf.float32, [None, 3]), "kind": tf.placeholder(tf.string, [None])}
    return tf.estimator.export.ServingInputReceiver(inputs, inputs)


config = tf.estimator.RunConfig(MODEL_DIR, save_checkpoints_steps=50, experimental_max_worker_delay_secs=0)
model = tf.estimator.DNNLinearCombinedClassifier(
    linear_feature_columns=[KIND],
    dnn_feature_columns=[NUMBERS, tf.feature_column.embedding_column(KIND, 2)],
    dnn_hidden_units=[8],
    config=config,
)
tf.estimator.train_and_evaluate(
    model,
    tf.estimator.TrainSpec(lambda: rows(None), max_steps=LAST_STEP),
    tf.estimator.EvalSpec(
        lambda: rows(1),
        steps=None,
        start_delay_secs=0,
        throttle_secs=0,
        exporters=tf.estimator.FinalExporter("final", serving),
    ),
)
print("ENDED", config.task_type, flush=True)
