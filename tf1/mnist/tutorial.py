"""The model of TensorFlow's MNIST tutorial, `tensorflow.examples.tutorials.mnist.mnist`."""

from __future__ import annotations

import math
from typing import Any

from globalstep.tf1.graph.graph import get_default_graph
from globalstep.tf1.losses import sparse_softmax_cross_entropy
from globalstep.tf1.ops.constant_ops import zeros
from globalstep.tf1.ops.math_ops import add, cast
from globalstep.tf1.ops.nn_ops import in_top_k, relu
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.ops.random_ops import truncated_normal
from globalstep.tf1.ops.reduction_ops import reduce_sum
from globalstep.tf1.ops.summary_ops import scalar
from globalstep.tf1.optimizers.optimizers import GradientDescentOptimizer
from globalstep.tf1.variables.variables import Variable

__all__ = ["IMAGE_PIXELS", "IMAGE_SIZE", "NUM_CLASSES", "evaluation", "inference", "loss", "training"]

NUM_CLASSES = 10
IMAGE_SIZE = 28
IMAGE_PIXELS = IMAGE_SIZE * IMAGE_SIZE


def inference(images: Any, hidden1_units: int, hidden2_units: int) -> Any:
    """Give the logits of images, by way of two hidden layers.

    Args:
        images: float32 [batch, 784].
        hidden1_units: Size of the first hidden layer.
        hidden2_units: Size of the second one.

    Returns:
        float32 [batch, 10].
    """
    hidden1 = relu(_layer("hidden1", images, IMAGE_PIXELS, hidden1_units))
    hidden2 = relu(_layer("hidden2", hidden1, hidden1_units, hidden2_units))
    return _layer("softmax_linear", hidden2, hidden2_units, NUM_CLASSES)


def loss(logits: Any, labels: Any) -> Any:
    """Give the mean cross entropy of logits and labels.

    Args:
        logits: float32 [batch, 10].
        labels: Integers [batch].
    """
    return sparse_softmax_cross_entropy(labels=cast(labels, "int64"), logits=logits)


def training(loss: Any, learning_rate: float) -> Any:
    """Give the operation that makes a step of gradient descent and counts it.

    Args:
        loss: See the function of that name.
        learning_rate: Of gradient descent.
    """
    scalar("loss", loss)
    step = Variable(0, name="global_step", trainable=False)
    return GradientDescentOptimizer(learning_rate).minimize(loss, global_step=step)


def evaluation(logits: Any, labels: Any) -> Any:
    """Give how many of the labels have the highest logit.

    Args:
        logits: float32 [batch, 10].
        labels: Integers [batch].
    """
    return reduce_sum(cast(in_top_k(logits, labels, 1), "int32"))


def _layer(name: str, inputs: Any, input_size: int, size: int) -> Any:
    with get_default_graph().name_scope(name):
        deviation = 1.0 / math.sqrt(float(input_size))
        weights = Variable(truncated_normal([input_size, size], stddev=deviation), name="weights")
        biases = Variable(zeros([size]), name="biases")
        return add(matmul(inputs, weights), biases)
