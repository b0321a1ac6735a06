"""Gradients of gradients beside differences."""

import numpy as np
from evaluate import evaluate

from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.ops.constant_ops import placeholder


def check_second_gradients(build, nodes, values):
    """Compare both gradients of a function's gradient with differences along a line.

    By the weights of the result it is how the result changes along the line; by the inputs, how the gradient does.
    """
    result = build(*nodes)
    random = np.random.default_rng(9)
    at = dict(zip(nodes, values, strict=True))
    weight = placeholder("float64", np.shape(evaluate(result, at)))
    along = [random.normal(size=np.shape(value)) for value in values]
    feeds = {weight: random.normal(size=weight.shape.as_list())}
    first = gradients(result, nodes, [weight])
    by_weight, *by_input = gradients(first, [weight, *nodes], along)

    def moved(fetch):
        lines = [
            {**feeds, **{n: v + s * a for n, v, a in zip(nodes, values, along, strict=True)}} for s in (1e-6, -1e-6)
        ]
        return [(one - other) / 2e-6 for one, other in zip(*(evaluate(fetch, line) for line in lines), strict=True)]

    np.testing.assert_allclose(evaluate(by_weight, {**feeds, **at}), moved([result])[0], rtol=1e-5, atol=1e-6)
    for made, expected in zip(by_input, moved(first), strict=True):
        found = np.zeros_like(expected) if made is None else evaluate(made, {**feeds, **at})
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
