"""Initializers: callables that give the node of a Variable's initial value.

Each is called as `initializer(shape, dtype=None, partition_info=None)` and gives a node of that shape.
Names, arguments and formulas are TensorFlow 1.x's; the random numbers are numpy's.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.tf1.graph.graph import Node, as_node, constant_array
from globalstep.tf1.graph.kernels import kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.constant_ops import constant, eye, fill, filled
from globalstep.tf1.ops.random_ops import random_normal, random_uniform, truncated_normal


class Initializer(Protocol):
    """Base class of initializers."""

    def __call__(self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        """Give the initial value.

        Args:
            shape: Static shape of the Variable, or of the part of it.
            dtype: Its dtype; default the initializer's own.
            partition_info: For a part of a partitioned Variable: an object with `full_shape`.

        Returns:
            A node of `shape`.
        """
        ...


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in TensorShape(shape))


def _floating(dtype: DTypeLike) -> DType:
    kind = as_dtype(dtype)
    if not kind.is_floating:
        raise TypeError(f"Expected floating point type, got {kind.name}.")
    return kind


class Zeros:
    """Give zeros."""

    def __init__(self, dtype: DTypeLike = "float32") -> None:
        self.dtype = as_dtype(dtype)

    def __call__(self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        """See Initializer."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        return filled("Fill", _sizes(shape), False if kind.is_bool else 0, kind, "zeros")


class Ones:
    """Give ones."""

    def __init__(self, dtype: DTypeLike = "float32") -> None:
        self.dtype = as_dtype(dtype)

    def __call__(self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        """See Initializer."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        return filled("Fill", _sizes(shape), 1, kind, "ones")


class Constant:
    """Give a constant: one number everywhere, or a list or array of values in order.

    Args:
        value: Number, list or array. Fewer values than the shape holds are filled up with the last one.
        dtype: Dtype where the Variable names none.
        verify_shape: Whether `value` must have exactly the Variable's shape.
    """

    def __init__(self, value: Any = 0, dtype: DTypeLike = "float32", verify_shape: bool = False) -> None:
        if not (np.isscalar(value) or isinstance(value, (list, tuple, np.ndarray))):
            raise TypeError(f"Invalid type for initial value: {type(value)} (expected Python scalar, list or array).")
        self.value = value
        self.dtype = as_dtype(dtype)
        self._verify_shape = verify_shape

    def __call__(
        self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None, verify_shape: bool | None = None
    ) -> Node:
        """See Initializer."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        verify = self._verify_shape if verify_shape is None else verify_shape
        if np.ndim(self.value) == 0 and not verify:
            return fill(list(_sizes(shape)), constant_array(self.value, kind), name="Const")
        return constant(self.value, kind, _sizes(shape), verify_shape=verify)


class RandomUniform:
    """Draw evenly from [minval, maxval); `maxval` defaults to 1 for floating dtypes."""

    def __init__(
        self, minval: Any = 0, maxval: Any = None, seed: int | None = None, dtype: DTypeLike = "float32"
    ) -> None:
        self.minval, self.maxval, self.seed, self.dtype = minval, maxval, seed, as_dtype(dtype)

    def __call__(self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        """See Initializer."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        return random_uniform(_sizes(shape), self.minval, self.maxval, kind, self.seed)


class RandomNormal:
    """Draw from a normal distribution."""

    def __init__(
        self, mean: Any = 0.0, stddev: Any = 1.0, seed: int | None = None, dtype: DTypeLike = "float32"
    ) -> None:
        self.mean, self.stddev, self.seed, self.dtype = mean, stddev, seed, _floating(dtype)

    def __call__(self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        """See Initializer."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        return random_normal(_sizes(shape), self.mean, self.stddev, kind, self.seed)


class TruncatedNormal:
    """Draw from a normal distribution, without what is more than two deviations from the mean."""

    def __init__(
        self, mean: Any = 0.0, stddev: Any = 1.0, seed: int | None = None, dtype: DTypeLike = "float32"
    ) -> None:
        self.mean, self.stddev, self.seed, self.dtype = mean, stddev, seed, _floating(dtype)

    def __call__(self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        """See Initializer."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        return truncated_normal(_sizes(shape), self.mean, self.stddev, kind, self.seed)


def _full_shape(shape: Any, partition_info: Any) -> tuple[int, ...]:
    return _sizes(shape if partition_info is None else partition_info.full_shape)


class UniformUnitScaling:
    """Draw evenly from +-sqrt(3 / number of inputs) * factor, which keeps the scale of the input."""

    def __init__(self, factor: float = 1.0, seed: int | None = None, dtype: DTypeLike = "float32") -> None:
        self.factor, self.seed, self.dtype = factor, seed, _floating(dtype)

    def __call__(self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        """See Initializer."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        inputs = max(1.0, float(np.prod(_full_shape(shape, partition_info)[:-1])))
        bound = math.sqrt(3 / inputs) * self.factor
        return random_uniform(_sizes(shape), -bound, bound, kind, self.seed)


def _fans(shape: tuple[int, ...]) -> tuple[float, float]:
    """Count the inputs and outputs of a unit whose weights have `shape`."""
    if len(shape) < 1:
        return 1, 1
    if len(shape) == 1:
        return shape[0], shape[0]
    field = float(np.prod(shape[:-2]))
    return shape[-2] * field, shape[-1] * field


class VarianceScaling:
    """Draw with a variance of scale / n, where n is a number of inputs or outputs.

    Args:
        scale: Positive factor.
        mode: n is the number of inputs ("fan_in"), of outputs ("fan_out"), or their mean ("fan_avg").
        distribution: "uniform", "truncated_normal" (also "normal"), or "untruncated_normal".
        seed: Seed of the operation.
        dtype: Dtype where the Variable names none.

    Raises:
        ValueError: For a bad argument.
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        if scale <= 0:
            raise ValueError("`scale` must be positive float.")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError("Invalid `mode` argument:", mode)
        if distribution.lower() not in ("normal", "uniform", "truncated_normal", "untruncated_normal"):
            raise ValueError("Invalid `distribution` argument:", distribution.lower())
        self.scale, self.mode, self.distribution = scale, mode, distribution.lower()
        self.seed, self.dtype = seed, _floating(dtype)

    def __call__(self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        """See Initializer."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        fan_in, fan_out = _fans(_full_shape(shape, partition_info))
        count = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, count)
        sizes = _sizes(shape)
        if self.distribution == "uniform":
            bound = math.sqrt(3 * variance)
            return random_uniform(sizes, -bound, bound, kind, self.seed)
        if self.distribution == "untruncated_normal":
            return random_normal(sizes, 0.0, math.sqrt(variance), kind, self.seed)
        # The standard deviation of a unit normal cut at two deviations, which the draw divides out.
        return truncated_normal(sizes, 0.0, math.sqrt(variance) / 0.87962566103423978, kind, self.seed)


class Orthogonal:
    """Give a matrix with orthonormal rows or columns, times `gain`."""

    def __init__(self, gain: float = 1.0, seed: int | None = None, dtype: DTypeLike = "float32") -> None:
        self.gain, self.seed, self.dtype = gain, seed, _floating(dtype)

    def __call__(self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        """See Initializer.

        Raises:
            ValueError: For fewer than two dimensions.
        """
        sizes = _sizes(shape)
        if len(sizes) < 2:
            raise ValueError("The tensor to initialize must be at least two-dimensional")
        kind = self.dtype if dtype is None else as_dtype(dtype)
        rows, columns = int(np.prod(sizes[:-1])), sizes[-1]
        normal = random_normal((max(rows, columns), min(rows, columns)), dtype=kind, seed=self.seed)
        return Node("Orthogonal", (normal,), dtype=kind, shape=sizes, attrs={"gain": self.gain})


@kernel_of("Orthogonal")
def _orthogonal(node: Node) -> Any:
    sizes = [int(size) for size in node.shape]

    def orthonormal(values: Any) -> Any:
        q, r = np.linalg.qr(values)
        q = q * np.sign(np.diag(r))
        is_wide = int(np.prod(sizes[:-1])) < sizes[-1]
        return (node.attrs["gain"] * (q.T if is_wide else q)).reshape(sizes).astype(node.dtype.as_numpy_dtype)

    return orthonormal


class Identity:
    """Give an identity matrix, times `gain`."""

    def __init__(self, gain: float = 1.0, dtype: DTypeLike = "float32") -> None:
        self.gain, self.dtype = gain, _floating(dtype)

    def __call__(self, shape: Any, dtype: DTypeLike | None = None, partition_info: Any = None) -> Node:
        """See Initializer.

        Raises:
            ValueError: For another number of dimensions than two.
        """
        full = _full_shape(shape, partition_info)
        if len(full) != 2:
            raise ValueError("Identity matrix initializer can only be used for 2D matrices.")
        kind = self.dtype if dtype is None else as_dtype(dtype)
        matrix = (
            eye(*full, dtype=kind)
            if self.gain == 1
            else as_node(np.eye(*full, dtype=kind.as_numpy_dtype) * np.asarray(self.gain, kind.as_numpy_dtype))
        )
        if partition_info is None:
            return matrix
        offset = partition_info.var_offset
        rows, columns = _sizes(shape)
        part = matrix.attrs["value"][offset[0] : offset[0] + rows, offset[1] : offset[1] + columns]
        return constant(part)


def glorot_uniform_initializer(seed: int | None = None, dtype: DTypeLike = "float32") -> VarianceScaling:
    """Draw evenly from +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010)."""
    return VarianceScaling(1.0, "fan_avg", "uniform", seed, dtype)


def glorot_normal_initializer(seed: int | None = None, dtype: DTypeLike = "float32") -> VarianceScaling:
    """Draw from a truncated normal of variance 2 / (inputs + outputs) (Glorot and Bengio 2010)."""
    return VarianceScaling(1.0, "fan_avg", "truncated_normal", seed, dtype)


def he_normal(seed: int | None = None, dtype: DTypeLike = "float32") -> VarianceScaling:
    """Draw from a truncated normal of variance 2 / inputs (He et al. 2015)."""
    return VarianceScaling(2.0, "fan_in", "truncated_normal", seed, dtype)


def he_uniform(seed: int | None = None, dtype: DTypeLike = "float32") -> VarianceScaling:
    """Draw evenly from +-sqrt(6 / inputs) (He et al. 2015)."""
    return VarianceScaling(2.0, "fan_in", "uniform", seed, dtype)


def lecun_normal(seed: int | None = None, dtype: DTypeLike = "float32") -> VarianceScaling:
    """Draw from a truncated normal of variance 1 / inputs (LeCun et al. 1998)."""
    return VarianceScaling(1.0, "fan_in", "truncated_normal", seed, dtype)


def lecun_uniform(seed: int | None = None, dtype: DTypeLike = "float32") -> VarianceScaling:
    """Draw evenly from +-sqrt(3 / inputs) (LeCun et al. 1998)."""
    return VarianceScaling(1.0, "fan_in", "uniform", seed, dtype)


zeros_initializer = Zeros
ones_initializer = Ones
constant_initializer = Constant
random_uniform_initializer = RandomUniform
random_normal_initializer = RandomNormal
truncated_normal_initializer = TruncatedNormal
uniform_unit_scaling_initializer = UniformUnitScaling
variance_scaling_initializer = VarianceScaling
orthogonal_initializer = Orthogonal
identity_initializer = Identity
