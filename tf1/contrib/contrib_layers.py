"""Layers as `tf.contrib.layers` and `tf.contrib.slim` have them: rectified unless told otherwise.

Each of those with weights is a layer of `gs.layers` whose Variables have other names, and takes part in `arg_scope`.

Layer: tf1. Source: TensorFlow 1.15 `contrib/layers/python/layers/layers.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from globalstep.tf1.contrib.arg_scope import add_arg_scope
from globalstep.tf1.contrib.contrib_initializers import xavier_initializer
from globalstep.tf1.contrib.model_variables import model_variable, renamed_getter
from globalstep.tf1.contrib.named_outputs import collect_named_outputs
from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import GraphKeys, Node, as_node, get_collection_ref
from globalstep.tf1.layers import convolution_layers, core_layers, pooling_layers
from globalstep.tf1.layers.layer import known_rank, last_size, snake_case
from globalstep.tf1.ops import math_ops, nn_ops
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.indexing_ops import one_hot
from globalstep.tf1.ops.init_ops import zeros_initializer
from globalstep.tf1.ops.reduction_ops import reduce_max, reduce_sum
from globalstep.tf1.variables.partitioned_variables import PartitionedVariable
from globalstep.tf1.variables.variable_scope import variable_scope

#: The names that contrib's layers give to their Variables, and the initializers that they take by default.
WEIGHTS = renamed_getter({"kernel": "weights", "bias": "biases"})
XAVIER = xavier_initializer()
ZEROS = zeros_initializer()
_CONVOLUTIONS: dict[int, Any] = {
    3: convolution_layers.Conv1D,
    4: convolution_layers.Conv2D,
    5: convolution_layers.Conv3D,
}


@add_arg_scope
def fully_connected(
    inputs: Any,
    num_outputs: int,
    activation_fn: Callable[..., Any] | None = nn_ops.relu,
    normalizer_fn: Callable[..., Any] | None = None,
    normalizer_params: dict[str, Any] | None = None,
    weights_initializer: Any = XAVIER,
    weights_regularizer: Any = None,
    biases_initializer: Any = ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Node:
    """Give activation_fn(inputs @ weights + biases), or with the normalizer in place of the biases.

    Args:
        inputs: Floating node [..., n]; n must be known.
        num_outputs: Size of the last dimension of the result.
        activation_fn: Function of the result; None for none.
        normalizer_fn: Function of inputs @ weights, such as `batch_norm`; there are no biases then.
        normalizer_params: Its arguments.
        weights_initializer: Initializer of "weights" [n, num_outputs].
        weights_regularizer: Function of the weights to a loss, which goes to REGULARIZATION_LOSSES.
        biases_initializer: Initializer of "biases" [num_outputs]; None for no biases.
        biases_regularizer: The same for the biases.
        reuse: As for `gs.layers.dense`; with a scope.
        variables_collections: Collections that the Variables are added to, or "weights" and "biases" -> collections.
        outputs_collections: Collections that the result is added to.
        trainable: Whether optimizers train the Variables by default.
        scope: Scope of the Variables; default "fully_connected", made unique.

    Returns:
        A node [..., num_outputs].

    Raises:
        ValueError: If the last dimension of `inputs` is not known, or `num_outputs` is no int.
    """
    if not isinstance(num_outputs, int):
        raise ValueError(f"num_outputs type should be one of [int], got {type(num_outputs)}.")
    with variable_scope(scope, "fully_connected", [inputs], reuse=reuse, custom_getter=WEIGHTS) as entered:
        layer = core_layers.Dense(
            num_outputs, None, not normalizer_fn and biases_initializer is not None, weights_initializer,
            biases_initializer, weights_regularizer, biases_regularizer, trainable=trainable, name=entered.name,
            _scope=entered, _reuse=reuse,
        )  # fmt: skip
        result = layer.apply(inputs)
        collect_variables(layer, variables_collections)
        result = finished(result, normalizer_fn, normalizer_params, activation_fn)
        return collected(outputs_collections, result)


@add_arg_scope
def convolution(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Any = 1,
    activation_fn: Callable[..., Any] | None = nn_ops.relu,
    normalizer_fn: Callable[..., Any] | None = None,
    normalizer_params: dict[str, Any] | None = None,
    weights_initializer: Any = XAVIER,
    weights_regularizer: Any = None,
    biases_initializer: Any = ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
    conv_dims: int | None = None,
) -> Node:
    """Convolve sequences [batch, length, channels], images [batch, height, width, channels] or volumes.

    Args:
        inputs: Floating node; the number of channels must be known.
        num_outputs: How many filters.
        kernel_size: Sizes of the filters, or one int for all.
        stride: Steps along each dimension, or one int for all.
        padding: "SAME" or "VALID".
        data_format: None or one that ends with "C"; one that begins with "NC" for channels that come after the batch.
        rate: Steps between the elements of a filter, or one int for all dimensions.
        activation_fn: As for `fully_connected`.
        normalizer_fn: As for `fully_connected`.
        normalizer_params: As for `fully_connected`.
        weights_initializer: Initializer of "weights" [*kernel_size, channels, num_outputs].
        weights_regularizer: As for `fully_connected`.
        biases_initializer: As for `fully_connected`.
        biases_regularizer: As for `fully_connected`.
        reuse: As for `fully_connected`.
        variables_collections: As for `fully_connected`.
        outputs_collections: As for `fully_connected`.
        trainable: As for `fully_connected`.
        scope: Scope of the Variables; default "Conv", made unique.
        conv_dims: How many dimensions are convolved; default what the inputs have.

    Returns:
        A node like `inputs`, with num_outputs channels.

    Raises:
        ValueError: For inputs of another rank or another data format.
    """
    order = layer_format(data_format, (None, "NWC", "NCW", "NHWC", "NCHW", "NDHWC", "NCDHW"))
    with variable_scope(scope, "Conv", [inputs], reuse=reuse, custom_getter=WEIGHTS) as entered:
        images = as_node(inputs)
        rank = known_rank(images)
        if conv_dims is not None and conv_dims + 2 != rank:
            raise ValueError(f"Convolution expects input with rank {conv_dims + 2}, got {rank}")
        if rank not in _CONVOLUTIONS:
            raise ValueError("Convolution not supported for input with rank", rank)
        layer = _CONVOLUTIONS[rank](
            num_outputs, kernel_size, stride, padding, order, rate,
            use_bias=not normalizer_fn and biases_initializer is not None, kernel_initializer=weights_initializer,
            bias_initializer=biases_initializer, kernel_regularizer=weights_regularizer,
            bias_regularizer=biases_regularizer, trainable=trainable, name=entered.name, _scope=entered, _reuse=reuse,
        )  # fmt: skip
        result = layer.apply(images)
        collect_variables(layer, variables_collections)
        result = finished(result, normalizer_fn, normalizer_params, activation_fn)
        return collected(outputs_collections, result)


def convolution_of(dimensions: int, name: str, doc: str) -> Callable[..., Node]:
    """Make the function that is `convolution` of so many dimensions."""
    of_any: Callable[..., Node] = inspect.unwrap(convolution)

    @add_arg_scope
    @named(name, doc)
    def convolved(
        inputs: Any,
        num_outputs: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: str = "SAME",
        data_format: str | None = None,
        rate: Any = 1,
        activation_fn: Callable[..., Any] | None = nn_ops.relu,
        normalizer_fn: Callable[..., Any] | None = None,
        normalizer_params: dict[str, Any] | None = None,
        weights_initializer: Any = XAVIER,
        weights_regularizer: Any = None,
        biases_initializer: Any = ZEROS,
        biases_regularizer: Any = None,
        reuse: Any = None,
        variables_collections: Any = None,
        outputs_collections: Any = None,
        trainable: bool = True,
        scope: Any = None,
    ) -> Node:
        return of_any(
            inputs, num_outputs, kernel_size, stride, padding, data_format, rate, activation_fn, normalizer_fn,
            normalizer_params, weights_initializer, weights_regularizer, biases_initializer, biases_regularizer,
            reuse, variables_collections, outputs_collections, trainable, scope, conv_dims=dimensions,
        )  # fmt: skip

    return convolved


convolution1d = convolution_of(
    1,
    "convolution1d",
    "Convolve sequences: `convolution` of `inputs` [batch, length, channels], `num_outputs` and `kernel_size`.",
)
convolution2d = convolution_of(
    2,
    "convolution2d",
    "Convolve images: `convolution` of `inputs` [batch, height, width, channels], `num_outputs`, `kernel_size`.",
)


def pooling_of(
    layer: type[pooling_layers.MaxPooling2D], name_scope: str, formats: tuple[str, str], doc: str
) -> Callable[..., Node]:
    """Make the function that pools as a class of `gs.layers` does."""

    @add_arg_scope
    @named(snake_case(name_scope), doc)
    def pooled(
        inputs: Any,
        kernel_size: Any,
        stride: Any = 2,
        padding: str = "VALID",
        data_format: str = formats[0],
        outputs_collections: Any = None,
        scope: str | None = None,
    ) -> Node:
        order = layer_format(data_format, formats)
        images = as_node(inputs)
        with images.graph.name_scope(scope or name_scope):
            return collected(outputs_collections, layer(kernel_size, stride, padding, order).call(images))

    return pooled


max_pool2d = pooling_of(
    pooling_layers.MaxPooling2D,
    "MaxPool2D",
    ("NHWC", "NCHW"),
    """Give the largest value of each window.

    Args:
        inputs: Floating node [batch, height, width, channels].
        kernel_size: Height and width of the windows, or one int for both.
        stride: Steps along height and width, or one int for both.
        padding: "VALID" or "SAME".
        data_format: "NHWC", or "NCHW" for channels that come right after the batch.
        outputs_collections: Collections that the result is added to.
        scope: Name scope of the node; default "MaxPool2D".
    """,
)
avg_pool2d = pooling_of(
    pooling_layers.AveragePooling2D,
    "AvgPool2D",
    ("NHWC", "NCHW"),
    "Give the mean of each window of `inputs`; `kernel_size` and the others are those of `max_pool2d`.",
)


@add_arg_scope
def dropout(
    inputs: Any,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: Any = None,
    seed: int | None = None,
) -> Node:
    """Set random elements to 0 while training; see `gs.nn.dropout`.

    Args:
        inputs: Floating node.
        keep_prob: Probability that an element stays.
        noise_shape: As for `gs.nn.dropout`.
        is_training: Bool or boolean node; otherwise the result is `inputs`.
        outputs_collections: Collections that the result is added to.
        scope: Name scope of the nodes; default "Dropout".
        seed: Seed of this operation.
    """
    with variable_scope(scope, "Dropout", [inputs]) as entered:
        rate = math_ops.subtract(1.0, keep_prob) if isinstance(keep_prob, Node) else 1 - keep_prob
        layer = core_layers.Dropout(rate, noise_shape, seed, name=entered.name, _scope=entered)
        return collected(outputs_collections, layer.apply(inputs, training=is_training))


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: str | None = None) -> Node:
    """Keep the first dimension and make the others one.

    Args:
        inputs: Node [batch, ...].
        outputs_collections: Collections that the result is added to.
        scope: Name scope of the node; default "Flatten".
    """
    node = as_node(inputs)
    with node.graph.name_scope(scope or "Flatten"):
        return collected(outputs_collections, core_layers.Flatten().call(node))


@add_arg_scope
def bias_add(
    inputs: Any,
    activation_fn: Callable[..., Any] | None = None,
    initializer: Any = ZEROS,
    regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Node:
    """Add a vector to the last dimension.

    Args:
        inputs: Floating node [..., n]; n must be known.
        activation_fn: Function of the result; default none.
        initializer: Initializer of "biases" [n].
        regularizer: As for `gs.get_variable`.
        reuse: As for `fully_connected`.
        variables_collections: As for `fully_connected`.
        outputs_collections: As for `fully_connected`.
        trainable: As for `fully_connected`.
        data_format: "NHWC".
        scope: Scope of the Variable; default "BiasAdd", made unique.
    """
    layer_format(data_format, ("NHWC",))
    with variable_scope(scope, "BiasAdd", [inputs], reuse=reuse):
        node = as_node(inputs)
        size = [last_size(node.shape, "bias_add")]
        keys = collections_of(variables_collections, "biases")
        biases = model_variable("biases", size, node.dtype, initializer, regularizer, trainable, keys)
        return collected(outputs_collections, core_layers.activated(node, biases, activation_fn))


@add_arg_scope
def softmax(logits: Any, scope: str | None = None) -> Node:
    """Give the softmax of `logits` over the last dimension, in the scope "softmax"."""
    with variable_scope(scope, "softmax", [logits]):
        return nn_ops.softmax(logits)


@add_arg_scope
def one_hot_encoding(
    labels: Any,
    num_classes: int,
    on_value: float = 1.0,
    off_value: float = 0.0,
    outputs_collections: Any = None,
    scope: str | None = None,
) -> Node:
    """Give a row of `num_classes` numbers for each label.

    Args:
        labels: Integer node.
        num_classes: How many classes.
        on_value: The number at the label's place.
        off_value: The other numbers.
        outputs_collections: Collections that the result is added to.
        scope: Name scope of the nodes; default "OneHotEncoding".
    """
    node = as_node(labels)
    with node.graph.name_scope(scope or "OneHotEncoding"):
        return collected(outputs_collections, one_hot(node, num_classes, on_value, off_value))


@add_arg_scope
def unit_norm(inputs: Any, dim: int, epsilon: float = 1e-7, scope: str | None = None) -> Node:
    """Divide by the 2-norm along one dimension.

    Args:
        inputs: Floating node.
        dim: The dimension, counted from 0.
        epsilon: What is added to the sum of squares.
        scope: Scope; default "UnitNorm".

    Raises:
        ValueError: If there is no such dimension.
    """
    with variable_scope(scope, "UnitNorm", [inputs]):
        node = as_node(inputs)
        if not 0 <= dim < known_rank(node):
            raise ValueError("dim must be positive but smaller than the input rank.")
        squares = reduce_sum(math_ops.square(node), dim, keepdims=True)
        return math_ops.divide(node, math_ops.sqrt(math_ops.add(squares, epsilon)))


@add_arg_scope
def maxout(inputs: Any, num_units: int, axis: int = -1, scope: str | None = None) -> Node:
    """Give the largest of each group of features.

    Args:
        inputs: Node whose features, along `axis`, are a multiple of `num_units`.
        num_units: How many groups, and so features of the result.
        axis: The axis of the features.
        scope: Scope; default "MaxOut".

    Raises:
        ValueError: If the features are no multiple of `num_units`.
    """
    with variable_scope(scope, "MaxOut", [inputs]):
        node = as_node(inputs)
        sizes = node.shape.as_list()
        place = axis % len(sizes)
        features = sizes[place]
        if features is None or features % num_units:
            raise ValueError(f"number of features({features}) is not a multiple of num_units({num_units})")
        lead = [-1 if size is None else size for size in sizes]
        grouped = reshape(node, [*lead[:place], num_units, features // num_units, *lead[place + 1 :]])
        return reduce_max(grouped, place + 1)


def repeat(inputs: Any, repetitions: int, layer: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    """Apply a layer several times.

    Args:
        inputs: Node.
        repetitions: How often.
        layer: The layer; its scopes are "<scope>_1", "<scope>_2", ... within `scope`.
        *args: Its arguments.
        **kwargs: Its arguments; `scope`, default "Repeat" with the layer's name within.

    >>> import globalstep as gs
    >>> slim = gs.contrib.slim
    >>> y = slim.repeat(gs.ones([1, 3]), 2, slim.fully_connected, 4, scope="fc")
    >>> [variable.op_name for variable in gs.global_variables()]
    ['fc/fc_1/weights', 'fc/fc_1/biases', 'fc/fc_2/weights', 'fc/fc_2/biases']
    """
    scope = kwargs.pop("scope", None)
    with variable_scope(scope, "Repeat", [inputs]):
        name = scope or _name_of(layer, "repeat")
        result = as_node(inputs)
        for number in range(1, repetitions + 1):
            result = layer(result, *args, scope=f"{name}_{number}", **kwargs)
        return result


def stack(inputs: Any, layer: Callable[..., Any], stack_args: Sequence[Any], **kwargs: Any) -> Node:
    """Apply a layer several times, each time with arguments of its own.

    Args:
        inputs: Node.
        layer: The layer; its scopes are "<scope>_1", "<scope>_2", ... within `scope`.
        stack_args: The arguments of each time: one, or a list of them.
        **kwargs: Arguments for all times; `scope`, default "Stack" with the layer's name within.

    Raises:
        ValueError: If `stack_args` is no list.
    """
    scope = kwargs.pop("scope", None)
    if not isinstance(stack_args, (list, tuple)):
        raise ValueError("stack_args need to be a list or tuple")
    with variable_scope(scope, "Stack", [inputs]):
        name = scope or _name_of(layer, "stack")
        result = as_node(inputs)
        for number, entry in enumerate(stack_args, 1):
            args = entry if isinstance(entry, (list, tuple)) else [entry]
            result = layer(result, *args, scope=f"{name}_{number}", **kwargs)
        return result


def legacy_fully_connected(
    x: Any,
    num_output_units: int,
    activation_fn: Callable[..., Any] | None = None,
    weight_init: Any = XAVIER,
    bias_init: Any = ZEROS,
    name: str | None = None,
    weight_collections: Sequence[str] = (GraphKeys.WEIGHTS,),
    bias_collections: Sequence[str] = (GraphKeys.BIASES,),
    output_collections: Sequence[str] = (GraphKeys.ACTIVATIONS,),
    trainable: bool = True,
    weight_regularizer: Any = None,
    bias_regularizer: Any = None,
) -> Node:
    """Give `fully_connected` of `x` and `num_output_units` under its oldest name, with Variables "weights" and "bias".

    The other arguments are those of `fully_connected`, by their older names.
    """
    with variable_scope(name, "fully_connected", [x], custom_getter=renamed_getter({"kernel": "weights"})) as entered:
        layer = core_layers.Dense(
            num_output_units, activation_fn, bias_init is not None, weight_init, bias_init, weight_regularizer,
            bias_regularizer, trainable=trainable, name=entered.name, _scope=entered,
        )  # fmt: skip
        result = layer.apply(x)
        collect_variables(layer, {"weights": weight_collections, "biases": bias_collections})
        return collected(output_collections, result)


def _with(function: Callable[..., Node], name: str, activation_fn: Callable[..., Any] | None) -> Callable[..., Node]:
    """Give a layer with another activation."""
    what = "no activation" if activation_fn is None else f"the activation `gs.nn.{activation_fn.__name__}`"
    doc = f"Give `{function.__name__}` of `inputs` and `num_outputs` with {what}."

    @named(name, doc)
    def layer(inputs: Any, num_outputs: int, *args: Any, **kwargs: Any) -> Node:
        return function(inputs, num_outputs, *args, **{"activation_fn": activation_fn, **kwargs})

    return layer


relu = _with(fully_connected, "relu", nn_ops.relu)
relu6 = _with(fully_connected, "relu6", nn_ops.relu6)
elu = _with(fully_connected, "elu", nn_ops.elu)
linear = _with(fully_connected, "linear", None)
legacy_relu = _with(legacy_fully_connected, "legacy_relu", nn_ops.relu)


def _name_of(layer: Any, default: str) -> str:
    named = layer if hasattr(layer, "__name__") else getattr(layer, "func", None)
    return getattr(named, "__name__", default)


def finished(
    result: Node,
    normalizer_fn: Callable[..., Any] | None,
    normalizer_params: dict[str, Any] | None,
    activation_fn: Callable[..., Any] | None,
) -> Node:
    """Give what a layer computed after its normalizer and its activation."""
    if normalizer_fn is not None:
        result = normalizer_fn(result, **(normalizer_params or {}))
    return result if activation_fn is None else activation_fn(result)


def collected(collections: Any, result: Node) -> Node:
    """Give a result that is added to collections, under the name of the present name scope."""
    return collect_named_outputs(collections, result.graph.get_name_scope(), result)


def collections_of(collections: Any, name: str) -> Any:
    """Give the collections of one of a layer's Variables, of all or by name."""
    return collections.get(name) if isinstance(collections, dict) else collections


def collect_variables(layer: Any, collections: Any) -> None:
    """Add a layer's kernel and bias to collections, of all or by name."""
    for variable, name in ((layer.kernel, "weights"), (layer.bias, "biases")):
        if variable is not None:
            collect_variable(variable, collections_of(collections, name))


def collect_variable(variable: Any, collections: Any) -> None:
    """Add a Variable, or the parts of one, to collections that it is not in."""
    parts = list(variable) if isinstance(variable, PartitionedVariable) else [variable]
    for key in [collections] if isinstance(collections, str) else collections or ():
        members = get_collection_ref(key)
        members += [part for part in parts if part not in members]


def layer_format(data_format: str | None, allowed: Sequence[str | None]) -> str:
    """Give an order of dimensions as the layers of `gs.layers` call it.

    Raises:
        ValueError: If it is none of those that are allowed.
    """
    if data_format not in allowed:
        names = ", ".join(name for name in allowed if name is not None)
        raise ValueError(f"data_format has to be one of {names}. Received: {data_format}")
    return "channels_first" if data_format is not None and data_format.startswith("NC") else "channels_last"


# TensorFlow has these under two names.
conv1d = convolution1d
conv2d = convolution2d
