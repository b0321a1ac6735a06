"""The parts of tf.keras that are here, by the formulas of TensorFlow 1.15."""

import importlib

import numpy as np
import pytest
from evaluate import evaluate

import globalstep as gs

T = np.array([[0, 1, 1], [1, 0, 0]], np.float32)
P = np.array([[0.1, 0.8, 1.0], [0.6, 0.3, 0.5]], np.float32)
CLIPPED = np.clip(P, 1e-7, 1 - 1e-7)
TERMS = -(T * np.log(CLIPPED + 1e-7) + (1 - T) * np.log(1 - CLIPPED + 1e-7))
ROWS = -(T * np.log(P / P.sum(1, keepdims=True))).sum(1)
LOGITS = np.array([[0.0, 40.0, -90.0]], np.float32)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda k: k.backend.binary_crossentropy(T, P), TERMS),
        (lambda k: k.losses.binary_crossentropy(T, P), TERMS.mean(1)),
        (lambda k: k.losses.BinaryCrossentropy()(T.astype(int), P), TERMS.mean()),
        (lambda k: k.losses.BinaryCrossentropy()(T[0], P[0][:, None]), TERMS[0].mean()),
        (lambda k: k.losses.BinaryCrossentropy(reduction="none")(T, P, [1.0, 3.0]), TERMS.mean(1) * [1, 3]),
        # What a sigmoid gave is judged by its logit, which stays finite.
        (lambda k: k.backend.binary_crossentropy(T[:1], gs.sigmoid(LOGITS)), [[np.log(2), 0, 90]]),
        (lambda k: k.backend.binary_crossentropy(T[:1], LOGITS, from_logits=True), [[np.log(2), 0, 90]]),
        (lambda k: k.losses.categorical_crossentropy(T, P), ROWS),
        (lambda k: k.losses.CategoricalCrossentropy()(T, P), ROWS.mean()),
        (lambda k: k.losses.CategoricalCrossentropy(label_smoothing=0.3)(T[:1], gs.nn.softmax(LOGITS)), 108),
        (lambda k: k.backend.mean(P, 1, True), P.mean(1, keepdims=True)),
        (lambda k: k.layers.Lambda(lambda x, by: x[0] * by, arguments={"by": 2})([gs.constant(T), P]), 2 * T),
    ],
)
def test_values(build, expected):
    np.testing.assert_allclose(evaluate(build(gs.keras)), expected, rtol=1e-5, atol=1e-6)


def test_normalization_of_each_example():
    layer = gs.keras.layers.LayerNormalization(axis=1)
    normal = layer(P)
    assert [weight.name for weight in layer.weights] == [f"layer_normalization/{name}:0" for name in ("gamma", "beta")]
    with gs.Session() as session:
        session.run([gs.global_variables_initializer()])
        session.run([layer.gamma.assign([1.0, 2.0, 3.0]), layer.beta.assign([0.0, 0.0, 1.0])])
        found = session.run(normal)
    plain = (P - P.mean(1, keepdims=True)) / np.sqrt(P.var(1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(found, plain * [1, 2, 3] + [0, 0, 1], rtol=1e-5)


def test_what_is_not_there_says_what_is():
    assert importlib.import_module("globalstep.keras.layers").Dense is gs.layers.Dense
    with pytest.raises(
        AttributeError, match=r"'globalstep.keras' has no attribute 'Sequential': build it of gs.layers"
    ):
        _ = gs.keras.Sequential
