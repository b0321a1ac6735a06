"""Random values. Each node draws from a generator of its own, seeded by the graph and the operation.

With a graph seed (`set_random_seed`) or an operation seed, the sequence that a node draws, run after run,
is the same in every process that builds the same graph and runs it equally often. The numbers are
numpy's, not TensorFlow's: the distributions agree, the draws do not.

Layer: tf1. Threads: a node's generator is locked while it draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.tf1.graph.graph import Node, as_node, get_default_graph
from globalstep.tf1.graph.kernels import kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.building import as_shape_node, broadcast_sizes, sizes_of
from globalstep.tf1.ops.indexing_ops import gather
from globalstep.tf1.ops.math_ops import add, multiply

# What TensorFlow uses for the half of the pair that the program does not give.
_DEFAULT_GRAPH_SEED = 87654321


def set_random_seed(seed: int | None) -> None:
    """Seed the random nodes made from now on in the default graph.

    Args:
        seed: Any int. Every node without a seed of its own gets one from it and from its place in the
            graph.
    """
    get_default_graph().seed = seed


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """Give the pair of seeds that a random node made now would have.

    Args:
        op_seed: The seed of the operation, or None.

    Returns:
        Graph seed and operation seed; two Nones if neither is set: then every run differs.
    """
    graph = get_default_graph()
    if graph.seed is not None:
        return graph.seed, len(graph.nodes) if op_seed is None else op_seed
    return (None, None) if op_seed is None else (_DEFAULT_GRAPH_SEED, op_seed)


class Generator:
    """A seeded generator that several threads may draw from."""

    def __init__(self, seed: int | None) -> None:
        graph_seed, op_seed = get_seed(seed)
        entropy = None if op_seed is None else [abs(int(graph_seed or 0)), abs(int(op_seed))]
        self._random = np.random.default_rng(entropy)
        # Guards _random, whose draws must not interleave; a leaf: nothing else is taken under it.
        self._lock = threading.Lock()

    def draw(self, how: Callable[[np.random.Generator], Any]) -> Any:
        """Give what `how` draws."""
        with self._lock:
            return how(self._random)


def _random_node(
    op_type: str,
    shape: Any,
    seed: int | None,
    dtype: DTypeLike,
    name: str | None,
    *inputs: Node,
    lead: Any = (),
    last: Any = (),
) -> Node:
    """Make a node of random values; `lead` and `last` are around `shape` in theirs."""
    attrs, kind = {"seed": seed, "generator": Generator(seed), "stops_gradient": True}, as_dtype(dtype)
    sizes = as_shape_node(shape)
    return Node(
        op_type, (sizes, *inputs), name=name, dtype=kind, stateful=True, attrs=attrs,
        shape=TensorShape(lead).concatenate(sizes_of(sizes)).concatenate(last),
    )  # fmt: skip


def _drawn_as(dtype: Any) -> Any:
    """The dtype to draw in: numpy draws float32 and float64."""
    return np.float64 if dtype is np.float64 else np.float32


def _truncated_normal(g: np.random.Generator, size: tuple[int, ...], dtype: Any) -> Any:
    values = g.standard_normal(size, dtype=_drawn_as(dtype)).reshape(-1)
    far = np.flatnonzero(np.abs(values) > 2)
    while far.size:
        values[far] = g.standard_normal(far.size, dtype=_drawn_as(dtype))
        far = far[np.abs(values[far]) > 2]
    return values.reshape(size)


def _multinomial(g: np.random.Generator, size: tuple[int, ...], dtype: Any, values: Any) -> Any:
    noise = g.gumbel(size=(values.shape[0], *size, values.shape[1]))
    return np.argmax(values[:, None, :] + noise, axis=-1)


#: How each kind of node draws: by a function of generator, size, numpy's dtype and the values of the other inputs.
_DRAWN: dict[str, Callable[..., Any]] = {
    "Multinomial": _multinomial,
    "RandomGamma": lambda g, size, dtype, a, rate: g.gamma(
        a, 1 / rate, (*size, *np.broadcast_shapes(np.shape(a), np.shape(rate)))
    ),
    "RandomPoisson": lambda g, size, dtype, mean: g.poisson(mean, (*size, *np.shape(mean))),
    "RandomShuffle": lambda g, size, dtype: g.permutation(size[0]),
    "RandomStandardNormal": lambda g, size, dtype: g.standard_normal(size, dtype=_drawn_as(dtype)),
    "RandomUniform": lambda g, size, dtype, a, b: g.random(size, dtype=_drawn_as(dtype)) * (b - a) + a,
    "RandomUniformInt": lambda g, size, dtype, a, b: g.integers(a, b, size, dtype=dtype),
    "TruncatedNormal": _truncated_normal,
}


@kernel_of(*_DRAWN)
def _drawing(node: Node) -> Any:
    how, generator, dtype = _DRAWN[node.op_type], node.attrs["generator"], node.dtype.as_numpy_dtype

    def draw(wanted: Any, *values: Any) -> Any:
        size = tuple(int(n) for n in np.asarray(wanted).reshape(-1))
        return np.asarray(generator.draw(lambda g: how(g, size, dtype, *values)), dtype=dtype)

    return draw


def random_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Node:
    """Draw from a normal distribution.

    Args:
        shape: Ints, an integer node, or a list of both.
        mean: The mean: number or node.
        stddev: The standard deviation: number or node.
        dtype: A floating dtype.
        seed: Seed of this operation; see `set_random_seed`.
        name: Name of the node.

    Returns:
        A node.
    """
    normal = _random_node("RandomStandardNormal", shape, seed, dtype, name or "random_normal")
    return _scaled(normal, mean, stddev)


def _scaled(unit: Node, mean: Any, stddev: Any) -> Node:
    scaled = unit if isinstance(stddev, (int, float)) and stddev == 1 else multiply(unit, stddev)
    return scaled if isinstance(mean, (int, float)) and mean == 0 else add(scaled, mean)


def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Node:
    """Draw from a normal distribution, drawing anew what is more than two deviations from the mean.

    The arguments are those of `random_normal`.
    """
    return _scaled(_random_node("TruncatedNormal", shape, seed, dtype, name or "truncated_normal"), mean, stddev)


def random_uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Node:
    """Draw evenly from [minval, maxval).

    Args:
        shape: Ints, an integer node, or a list of both.
        minval: The lower bound: number or node.
        maxval: The upper bound, not reached; default 1 for floating dtypes.
        dtype: A floating or integer dtype.
        seed: Seed of this operation; see `set_random_seed`.
        name: Name of the node.

    Returns:
        A node.

    Raises:
        ValueError: For an integer dtype without `maxval`.
    """
    kind = as_dtype(dtype)
    if maxval is None:
        if kind.is_integer:
            raise ValueError(f"Must specify maxval for integer dtype {kind.name}")
        maxval = 1
    low, high = (as_node(v, None if isinstance(v, Node) else kind) for v in (minval, maxval))
    op_type = "RandomUniformInt" if kind.is_integer else "RandomUniform"
    return _random_node(op_type, shape, seed, kind, name or "random_uniform", low, high)


def random_gamma(
    shape: Any,
    alpha: Any,
    beta: Any = None,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Node:
    """Draw from gamma distributions: values of shape `shape` + shape of `alpha`; `beta` is 1 / scale."""
    a = as_node(alpha, None if isinstance(alpha, Node) else dtype)
    b = as_node(1.0 if beta is None else beta, None if isinstance(beta, Node) else dtype)
    last = broadcast_sizes(a.shape, b.shape)
    return _random_node("RandomGamma", shape, seed, dtype, name or "random_gamma", a, b, last=last)


def random_poisson(
    lam: Any, shape: Any, dtype: DTypeLike = "float32", seed: int | None = None, name: str | None = None
) -> Node:
    """Draw from Poisson distributions: values of shape `shape` + shape of `lam`."""
    rate = as_node(lam)
    return _random_node("RandomPoisson", shape, seed, dtype, name or "random_poisson", rate, last=rate.shape)


def multinomial(
    logits: Any, num_samples: Any, seed: int | None = None, name: str | None = None, output_dtype: Any = "int64"
) -> Node:
    """Draw class numbers with probabilities softmax(logits).

    Args:
        logits: Node or array [batch, classes].
        num_samples: How many to draw for each row.
        seed: Seed of this operation; see `set_random_seed`.
        name: Name of the node.
        output_dtype: int32 or int64 (default).

    Returns:
        A node [batch, num_samples].
    """
    scores = as_node(logits)
    rows = scores.shape.as_list()[:1] if scores.shape.dims is not None else [None]
    return _random_node("Multinomial", [num_samples], seed, output_dtype, name or "Multinomial", scores, lead=rows)


def categorical(
    logits: Any, num_samples: Any, dtype: Any = None, seed: int | None = None, name: str | None = None
) -> Node:
    """Draw class numbers; see `multinomial`."""
    return multinomial(logits, num_samples, seed, name, dtype or "int64")


def random_shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Node:
    """Give the rows of `value` in random order."""
    node = as_node(value)
    return gather(node, _random_node("RandomShuffle", shape_of(node)[:1], seed, "int64", name or "RandomShuffle"))
