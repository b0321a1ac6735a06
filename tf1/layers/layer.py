"""`gs.layers.Layer`: what all layers are: an object that makes its Variables at its first call and shares them later.

Layer: tf1. Source: TensorFlow 1.15 `python/layers/base.py`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.tf1.graph.graph import GraphKeys, Node, add_to_collection, as_node, get_default_graph
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.layers.by_name import initializer_of
from globalstep.tf1.ops import conv_ops
from globalstep.tf1.ops.conditional_ops import cond
from globalstep.tf1.variables.named_variables import get_variable
from globalstep.tf1.variables.partitioned_variables import PartitionedVariable
from globalstep.tf1.variables.variable_scope import VariableScope, variable_scope


@dataclass
class InputSpec:
    """The requirements of a layer on its inputs.

    Attributes:
        dtype: Their dtype; None for any.
        shape: Their shape, with None for what may be any.
        ndim: Their rank.
        max_ndim: Their largest rank.
        min_ndim: Their smallest rank.
        axes: Axis -> its size.
    """

    dtype: Any = None
    shape: Any = None
    ndim: int | None = None
    max_ndim: int | None = None
    min_ndim: int | None = None
    axes: dict[int, int] | None = None

    def check(self, node: Node, layer: str) -> None:
        """Refuse inputs that do not fit.

        Raises:
            ValueError: If they do not.
        """
        rank = node.shape.ndims
        if rank is None:
            return
        start = f"Input 0 of layer {layer} is incompatible with the layer: "
        received = f"Full shape received: {node.shape.as_list()}"
        if self.ndim is not None and rank != self.ndim:
            raise ValueError(f"{start}expected ndim={self.ndim}, found ndim={rank}. {received}")
        if self.min_ndim is not None and rank < self.min_ndim:
            raise ValueError(f"{start}: expected min_ndim={self.min_ndim}, found ndim={rank}. {received}")
        if self.max_ndim is not None and rank > self.max_ndim:
            raise ValueError(f"{start}expected max_ndim={self.max_ndim}, found ndim={rank}")
        for axis, size in (self.axes or {}).items():
            actual = node.shape.as_list()[axis]
            if actual not in (None, size):
                raise ValueError(
                    f"{start}expected axis {axis} of input shape to have value {size} but received input with shape "
                    f"{node.shape.as_list()}"
                )


class Layer:
    """A part of a model that has Variables of its own.

    A subclass makes them in `build(input_shape)` by `add_weight`, and computes in `call(inputs)`.

    Args:
        trainable: Whether optimizers train its Variables by default.
        name: Scope of its Variables; default the class's name in small letters, made unique.
        dtype: Dtype of its Variables; default that of its inputs.
        activity_regularizer: Function of its result to a loss, which goes to REGULARIZATION_LOSSES.
        **kwargs: `_scope` and `_reuse`, as TensorFlow's own functions give them.

    Attributes:
        built: Whether it has its Variables.
        trainable: As given.
        input_spec: What it wants of its inputs, an InputSpec; None for anything.
        losses: What it added to REGULARIZATION_LOSSES.
        updates: What it added to UPDATE_OPS.

    >>> import globalstep as gs
    >>> layer = gs.layers.Dense(4, name="shared")
    >>> one, other = layer(gs.ones([2, 3])), layer(gs.zeros([5, 3]))
    >>> [variable.name for variable in layer.trainable_weights]
    ['shared/kernel:0', 'shared/bias:0']
    """

    def __init__(
        self,
        trainable: bool = True,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        activity_regularizer: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        scope, self._reuse = kwargs.pop("_scope", None), kwargs.pop("_reuse", None)
        for unknown in kwargs:
            raise TypeError("Keyword argument not understood:", unknown)
        self.trainable = trainable
        self.built = False
        self.input_spec: InputSpec | None = None
        self.losses: list[Node] = []
        self.updates: list[Any] = []
        self._dtype = None if dtype is None else as_dtype(dtype)
        self._activity_regularizer = activity_regularizer
        self._weights: list[Any] = []
        self._base_name = name or snake_case(type(self).__name__)
        self._name = name or _numbered(self._base_name)
        self._scope: VariableScope | None = None
        if scope is not None:
            self._open(scope)

    @property
    def name(self) -> str:
        """The name it was given, or one of its own."""
        return self._name

    @property
    def scope_name(self) -> str:
        """The scope of its Variables.

        Raises:
            ValueError: Before the first call.
        """
        if self._scope is None:
            raise ValueError(f'No name available for layer scope because the layer "{self._name}" has not been used.')
        return self._scope.name

    @property
    def dtype(self) -> DType | None:
        """Dtype of its Variables; None before the first call if none was given."""
        return self._dtype

    @property
    def weights(self) -> list[Any]:
        """Its Variables, the trained ones first."""
        return [*self.trainable_weights, *self.non_trainable_weights]

    @property
    def trainable_weights(self) -> list[Any]:
        """Its Variables that optimizers train by default."""
        return [variable for variable in self._weights if self.trainable and variable.trainable]

    @property
    def non_trainable_weights(self) -> list[Any]:
        """Its other Variables."""
        return [variable for variable in self._weights if not (self.trainable and variable.trainable)]

    # TensorFlow has these under two names.
    variables = weights
    trainable_variables = trainable_weights
    non_trainable_variables = non_trainable_weights

    def build(self, input_shape: TensorShape) -> None:
        """Make the Variables; a subclass overrides it.

        Args:
            input_shape: Static shape of the inputs of the first call.
        """
        self.built = True

    def call(self, inputs: Any, **kwargs: Any) -> Any:
        """Compute the result; a subclass overrides it.

        Args:
            inputs: What the layer was called with.
            **kwargs: The other arguments of the call.
        """
        return inputs

    def add_weight(
        self,
        name: str,
        shape: Any,
        dtype: DTypeLike | None = None,
        initializer: Any = None,
        regularizer: Callable[..., Any] | None = None,
        trainable: bool = True,
        constraint: Any = None,
        *,
        partitioned: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Make a Variable in the layer's scope, or take the one that exists under `reuse`.

        Args:
            name: Its name within the scope.
            shape: Its shape.
            dtype: Its dtype; default the layer's.
            initializer: As for `gs.get_variable`, or the name of one ("glorot_uniform").
            regularizer: As for `gs.get_variable`.
            trainable: Whether optimizers train it by default, if they do the layer.
            constraint: As for `gs.get_variable`.
            partitioned: Whether the scope's partitioner may cut it into parts.
            **kwargs: Further arguments of `gs.get_variable`.

        Returns:
            The Variable.
        """

        def regularized(variable: Any) -> Any:
            loss = None if regularizer is None else regularizer(variable)
            if loss is not None:
                self.losses.append(loss)
            return loss

        with self._entered() as entered:
            if not partitioned:
                entered.set_partitioner(None)
            variable = get_variable(
                name, shape, dtype or self._dtype, initializer_of(initializer),
                None if regularizer is None else regularized, trainable and self.trainable,
                constraint=constraint, **kwargs,
            )  # fmt: skip
        self._weights += list(variable) if isinstance(variable, PartitionedVariable) else [variable]
        return variable

    add_variable = add_weight

    def add_loss(self, losses: Any, inputs: Any = None) -> None:
        """Add one loss, or a list of them, to REGULARIZATION_LOSSES."""
        for loss in losses if isinstance(losses, (list, tuple)) else [losses]:
            self.losses.append(loss)
            add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)

    def add_update(self, updates: Any, inputs: Any = None) -> None:
        """Add one op, or a list of them, to UPDATE_OPS."""
        for update in updates if isinstance(updates, (list, tuple)) else [updates]:
            self.updates.append(update)
            add_to_collection(GraphKeys.UPDATE_OPS, update)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the result, and make the Variables at the first call.

        Args:
            inputs: Node or array; a layer of your own may take a list of them.
            *args: Further arguments of `call`.
            **kwargs: Further arguments of `call`; `scope` for the scope of the first call.

        Returns:
            What `call` gives.
        """
        scope = kwargs.pop("scope", None)
        if self._scope is None:
            self._open(scope)
        several = isinstance(inputs, (list, tuple)) and any(isinstance(item, Node) for item in inputs)
        nodes = [as_node(item) for item in inputs] if several else as_node(inputs)
        first = nodes[0] if isinstance(nodes, list) else nodes
        with self._entered() as entered, get_default_graph().name_scope(entered.original_name_scope):
            if self.input_spec is not None:
                self.input_spec.check(first, self._name)
            if not self.built:
                self._dtype = self._dtype or first.dtype
                self.build([node.shape for node in nodes] if isinstance(nodes, list) else nodes.shape)  # type: ignore[arg-type]
                self.built = True
            result = self.call(nodes, *args, **kwargs)
            if self._activity_regularizer is not None:
                self.add_loss(self._activity_regularizer(result))
        return result

    apply = __call__

    def count_params(self) -> int:
        """Give how many numbers its Variables hold.

        Raises:
            ValueError: Before the first call.
        """
        if not self.built:
            raise ValueError(f"You tried to call `count_params` on {self._name}, but the layer isn't built.")
        return sum(int(np.prod(variable.shape.as_list())) for variable in self._weights)

    def _open(self, scope: str | VariableScope | None) -> None:
        if isinstance(scope, VariableScope):
            self._scope = scope
            return
        if scope is None and self._reuse:
            scope = self._base_name
        with variable_scope(scope, default_name=self._base_name) as opened:
            self._scope = opened

    @contextlib.contextmanager
    def _entered(self) -> Iterator[VariableScope]:
        if self._scope is None:
            self._open(None)
        assert self._scope is not None
        reuse = True if self.built else self._reuse
        with variable_scope(self._scope, reuse=reuse, auxiliary_name_scope=False) as entered:
            yield entered


def snake_case(name: str) -> str:
    """Give the scope name for a class's name.

    >>> snake_case("MaxPooling2D"), snake_case("BatchNormalization")
    ('max_pooling2d', 'batch_normalization')
    """
    parted = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    snake = re.sub(r"([a-z])([A-Z])", r"\1_\2", parted).lower()
    return f"private{snake}" if snake.startswith("_") else snake


def _numbered(base: str) -> str:
    """Give "dense_1", "dense_2", ...: what layers without a name are called, which is not their scope."""
    counts: dict[str, int] = get_default_graph().extras.setdefault(__name__, {})
    counts[base] = counts.get(base, 0) + 1
    return f"{base}_{counts[base]}"


def weight_options(initializer: Any, regularizer: Any, constraint: Any) -> dict[str, Any]:
    """Give what `add_weight` takes of one of a layer's Variables."""
    return {"initializer": initializer, "regularizer": regularizer, "constraint": constraint}


def made_by(layer: Layer, inputs: Any, **options: Any) -> Node:
    """Give the node that a layer makes."""
    made: Node = layer.apply(inputs, **options)
    return made


def chosen(choice: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Choose between two functions' results: now for a bool, in the run for a node."""
    if isinstance(choice, (bool, int, np.bool_)):
        return yes() if choice else no()
    return cond(choice, yes, no)


def known_rank(node: Node) -> int:
    """Give the rank of a node.

    Raises:
        ValueError: If it is not known.
    """
    rank = node.shape.ndims
    if rank is None:
        raise ValueError(f"The rank of {node.op_name!r} must be known; it has the shape {node.shape}.")
    return rank


def last_size(shape: Any, layer: str) -> int:
    """Give the size of the last dimension.

    Raises:
        ValueError: If it is not known.
    """
    known = TensorShape(shape)
    sizes = known.as_list() if known.ndims else [None]
    if sizes[-1] is None:
        raise ValueError(f"The last dimension of the inputs to `{layer}` should be defined. Found `None`.")
    return int(sizes[-1])


def pair(values: int | Sequence[int]) -> tuple[int, int]:
    """Give two numbers for one or two."""
    first, second = (values, values) if isinstance(values, (int, np.integer)) else values
    return int(first), int(second)


def triple(values: int | Sequence[int]) -> tuple[int, int, int]:
    """Give three numbers for one or three."""
    first, second, third = (values,) * 3 if isinstance(values, (int, np.integer)) else values
    return int(first), int(second), int(third)


def is_channels_first(data_format: str) -> bool:
    """Say whether the channels of a layer's inputs come right after the batch.

    Raises:
        ValueError: For any but "channels_first" and "channels_last".
    """
    if data_format not in ("channels_first", "channels_last"):
        raise ValueError(
            'The `data_format` argument must be one of "channels_first", "channels_last". Received: ' + str(data_format)
        )
    return data_format == "channels_first"


def channels_of(shape: TensorShape, first: bool, layer: str) -> int:
    """Give the number of channels of inputs, which come first or last.

    Raises:
        ValueError: If it is not known.
    """
    sizes = shape.as_list() if shape.ndims else None
    channels = None if sizes is None else sizes[1 if first else -1]
    if channels is None:
        raise ValueError(f"The channel dimension of the inputs to `{layer}` should be defined. Found `None`.")
    return int(channels)


def with_channels_last(first: bool, inputs: Node, compute: Callable[[Node], Node]) -> Node:
    """Compute with the channels in the last dimension; the result has them where the inputs have them."""
    if not first:
        return compute(inputs)
    return conv_ops.to_channels_first(compute(conv_ops.to_channels_last(inputs)))
