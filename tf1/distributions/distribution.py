"""Base class of distributions: shapes, samples, and statistics made from one another.

Layer: tf1. Source of names, shapes and defaults: TensorFlow 1.15 `tf.distributions.Distribution`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from globalstep.dtypes import DType
from globalstep.tf1.distributions.divergence import kl_divergence
from globalstep.tf1.graph.graph import Node, name_scope
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import broadcast_dynamic_shape, broadcast_static_shape, reshape, size
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.building import as_shape_node, sizes_of
from globalstep.tf1.ops.constant_ops import constant, convert_to_tensor
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.math_ops import exp, log, sqrt, square


class ReparameterizationType:
    """Kinds of distributions: whether gradients go through samples to the parameters.

    Args:
        rep_type: What it is called.
    """

    def __init__(self, rep_type: str) -> None:
        self._rep_type = rep_type

    def __repr__(self) -> str:
        return f"<Reparameterization Type: {self._rep_type}>"


#: Samples are a differentiable function of the parameters.
FULLY_REPARAMETERIZED = ReparameterizationType("FULLY_REPARAMETERIZED")
#: Samples carry no gradient.
NOT_REPARAMETERIZED = ReparameterizationType("NOT_REPARAMETERIZED")


def arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give the arguments of a constructor, of the `locals()` at its beginning."""
    return {key: value for key, value in values.items() if key not in ("self", "__class__")}


class _Described:
    """The description of a distribution: its dtype, name, arguments, and the shapes of its batch and of a sample.

    Args:
        extent: Nodes whose shapes, broadcast together, are the batch's, followed by `inner_axes` more.
        dtype: Dtype of samples.
        name: Name scope of all its nodes, with its final "/".
        parameters: The arguments that it was made of.
    """

    #: How many of the last axes of its parameters are none of the batch.
    inner_axes = 0
    #: How many of those a sample has.
    event_rank = 0
    #: Whether gradients go through samples.
    reparameterization_type = NOT_REPARAMETERIZED

    def __init__(self, extent: Sequence[Node], dtype: DType, name: str, parameters: Mapping[str, Any]) -> None:
        self.dtype = dtype
        self.name = name
        self.parameters = arguments(parameters)
        self._extent = list(extent)
        self._extent_shape()  # Refuses what does not broadcast.

    @property
    def allow_nan_stats(self) -> bool:
        """Whether a statistic that is not defined is NaN; else the run fails."""
        return bool(self.parameters.get("allow_nan_stats", True))

    @property
    def validate_args(self) -> bool:
        """Whether runs check the parameters."""
        return bool(self.parameters.get("validate_args", False))

    @property
    def batch_shape(self) -> TensorShape:
        """The shape of the batch, as far as it is known."""
        whole = self._extent_shape()
        return whole if whole.dims is None else TensorShape(whole.as_list()[: len(whole.as_list()) - self.inner_axes])

    @property
    def event_shape(self) -> TensorShape:
        """The shape of one sample, as far as it is known."""
        whole = self._extent_shape()
        if not self.event_rank:
            return TensorShape([])
        return TensorShape([None] if whole.dims is None else whole.as_list()[-1:])

    def batch_shape_tensor(self, name: str = "batch_shape_tensor") -> Node:
        """Give the shape of the batch as an int32 node."""
        with self._scope(name):
            static = self.batch_shape
            if static.is_fully_defined():
                return as_shape_node(static)
            whole = self._extent_shape_node()
            return whole[: size(whole) - self.inner_axes] if self.inner_axes else whole

    def event_shape_tensor(self, name: str = "event_shape_tensor") -> Node:
        """Give the shape of one sample as an int32 node."""
        with self._scope(name):
            static = self.event_shape
            return as_shape_node(static) if static.is_fully_defined() else self._extent_shape_node()[-1:]

    def copy(self, **override_parameters_kwargs: Any) -> Any:
        """Give another distribution of this kind, with some arguments in the place of this one's."""
        return type(self)(**{**self.parameters, **override_parameters_kwargs})

    @contextlib.contextmanager
    def _scope(self, name: str) -> Iterator[None]:
        with name_scope(self.name), name_scope(name):
            yield

    def _extent_shape(self) -> TensorShape:
        shape = TensorShape([])
        for node in self._extent:
            shape = broadcast_static_shape(shape, node.shape)
        return shape

    def _extent_shape_node(self) -> Node:
        shape = constant([], "int32")
        for node in self._extent:
            shape = broadcast_dynamic_shape(shape, shape_of(node))
        return shape

    def __repr__(self) -> str:
        return (
            f"<tf.distributions.{type(self).__name__} {self.name!r} batch_shape={self.batch_shape} "
            f"event_shape={self.event_shape} dtype={self.dtype.name}>"
        )


class Distribution(_Described):
    """A batch of probability distributions; the base of all of them.

    A distribution of its own has what it knows in methods with an underscore: `_draw(shape, seed)`, `_log_prob(value)`
    or `_prob(value)`, `_entropy()`, `_mean()`, `_variance()` or `_stddev()`, `_mode()`, ... What it has not raises
    NotImplementedError.

    Args:
        extent: Nodes whose shapes, broadcast together, are the batch's, followed by `inner_axes` more.
        dtype: Dtype of samples.
        name: Name scope of all its nodes, with its final "/".
        parameters: The arguments that it was made of.
    """

    def sample(self, sample_shape: Any = (), seed: int | None = None, name: str = "sample") -> Node:
        """Draw samples.

        Args:
            sample_shape: How many: an int, ints, or an integer node.
            seed: Seed of this draw; see `gs.set_random_seed`.
            name: Name scope of the nodes.

        Returns:
            A node of shape sample_shape + batch_shape + event_shape.
        """
        with self._scope(name):
            lead = as_shape_node(sample_shape)
            if lead.shape.ndims == 0:
                lead = reshape(lead, [1])
            static = TensorShape(sizes_of(lead)).concatenate(self.batch_shape).concatenate(self.event_shape)
            shape: Any = as_shape_node(static) if static.is_fully_defined() else None
            if shape is None:
                shape = concat([lead, self.batch_shape_tensor(), self.event_shape_tensor()], 0)
            drawn: Node = self._known("_draw", "sample")(shape, seed)
            drawn.set_shape(static)
            return drawn

    def log_prob(self, value: Any, name: str = "log_prob") -> Node:
        """Give the logarithm of the density, or of the probability, of values.

        Args:
            value: Node or array that broadcasts with batch_shape + event_shape.
            name: Name scope of the nodes.

        Returns:
            A node without the axes of an event.
        """
        with self._scope(name):
            return self._of_value("log_prob", value, lambda v: log(self._known("_prob", "log_prob")(v)))

    def prob(self, value: Any, name: str = "prob") -> Node:
        """Give the density, or the probability, of values; see `log_prob`."""
        with self._scope(name):
            return self._of_value("prob", value, lambda v: exp(self._known("_log_prob", "prob")(v)))

    def cdf(self, value: Any, name: str = "cdf") -> Node:
        """Give the probability of a sample of `value` or less."""
        with self._scope(name):
            return self._of_value("cdf", value, lambda v: exp(self._known("_log_cdf", "cdf")(v)))

    def log_cdf(self, value: Any, name: str = "log_cdf") -> Node:
        """Give the logarithm of `cdf`."""
        with self._scope(name):
            return self._of_value("log_cdf", value, lambda v: log(self._known("_cdf", "log_cdf")(v)))

    def survival_function(self, value: Any, name: str = "survival_function") -> Node:
        """Give the probability of a sample above `value`."""
        with self._scope(name):
            return self._of_value("survival_function", value, lambda v: 1.0 - self.cdf(v))

    def log_survival_function(self, value: Any, name: str = "log_survival_function") -> Node:
        """Give the logarithm of `survival_function`."""
        with self._scope(name):
            return self._of_value("log_survival_function", value, lambda v: log(self.survival_function(v)))

    def quantile(self, value: Any, name: str = "quantile") -> Node:
        """Give the number that a sample is below with probability `value`."""
        with self._scope(name):
            return self._of_value("quantile", value, self._known("_quantile", "quantile"))

    def entropy(self, name: str = "entropy") -> Node:
        """Give the Shannon entropy, in nats, one for each of the batch."""
        with self._scope(name):
            return self._statistic("entropy")

    def mean(self, name: str = "mean") -> Node:
        """Give the mean."""
        with self._scope(name):
            return self._statistic("mean")

    def mode(self, name: str = "mode") -> Node:
        """Give the most probable sample."""
        with self._scope(name):
            return self._statistic("mode")

    def variance(self, name: str = "variance") -> Node:
        """Give the variance."""
        with self._scope(name):
            return square(self._statistic("stddev")) if hasattr(self, "_stddev") else self._statistic("variance")

    def stddev(self, name: str = "stddev") -> Node:
        """Give the standard deviation."""
        with self._scope(name):
            return self._statistic("stddev") if hasattr(self, "_stddev") else sqrt(self._statistic("variance"))

    def covariance(self, name: str = "covariance") -> Node:
        """Give the matrix of covariances of an event that is a vector."""
        with self._scope(name):
            return self._statistic("covariance")

    def cross_entropy(self, other: Distribution, name: str = "cross_entropy") -> Node:
        """Give the cross entropy with `other`: this one's entropy and its divergence from `other`."""
        with self._scope(name):
            return kl_divergence(self, other, allow_nan_stats=self.allow_nan_stats) + self.entropy()

    def kl_divergence(self, other: Distribution, name: str = "kl_divergence") -> Node:
        """Give the Kullback-Leibler divergence KL(self || other)."""
        with self._scope(name):
            return kl_divergence(self, other, allow_nan_stats=self.allow_nan_stats)

    def _known(self, method: str, what: str) -> Any:
        """Give a method of the distribution by name.

        Raises:
            NotImplementedError: If it has none, with TensorFlow's text.
        """
        function = getattr(self, method, None)
        if function is None:
            text = f"{what} is not implemented: {type(self).__name__}"
            raise NotImplementedError(text)  # It stays abstract.
        return function

    def _statistic(self, what: str) -> Node:
        statistic: Node = self._known(f"_{what}", what)()
        return statistic

    def _of_value(self, what: str, value: Any, otherwise: Any) -> Node:
        """Give what the distribution knows of a value; if it has no method for that, what `otherwise` gives."""
        node = convert_to_tensor(value, self.dtype, name="value")
        result: Node = getattr(self, f"_{what}", otherwise)(node)
        return result
