"""Kernels of the registry as jax traces them: numpy's functions, with jax's arrays in place of numpy's.

A kernel is not written twice: what jax traces is a copy of its function, for which `np` and all helpers in `tf1/` that
it calls are such copies too (`traced`). A function of numpy is that of `jax.numpy` where an argument is an array of
jax, and numpy's own elsewhere, so what is computed of shapes stays known. `_INSTEAD` has what is called in place of
helpers that write into arrays, are quick in numpy's way alone, or ask for values; what these must be is collected in
`HELD`. `COMPILED` names the kinds of nodes whose values the tests compare with numpy's.

Layer: tf1. Imports jax: only where jax is asked for is it imported.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from globalstep.tf1.execution import products
from globalstep.tf1.graph import indexed_slices
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.kernels import saving_function_of
from globalstep.tf1.ops import cross_entropy_ops, joining_ops, math_ops, primitives, reduction_ops, sliding_windows
from globalstep.tf1.rnn import fused, fused_lstm

Function = Callable[..., Any]

_NAMES = """
Abs Acos Acosh Add AddN AddRows All Any ArgMax ArgMin Asin Asinh Atan Atan2 Atanh AvgPool BatchMatMul BiasAdd
BroadcastLike BroadcastTo Cast Ceil ClipByAverageNorm ClipByNorm ClipByValue ClipScale ConcatRows ConcatV2 Conv2D
Conv2DBackpropFilter Conv2DBackpropInput Cos Cosh Cumprod Cumsum DepthToSpace DepthwiseConv2dNative Div DivNoNan
Dropout DropoutGrad Einsum Elu EnsureShape Equal EuclideanNorm Exp ExpandDims Expm1 Fill Floor FloorDiv FloorMod
GatherV2 GlobalNorm Greater GreaterEqual Identity IsFinite IsInf IsNan L2Loss LaidOver LeakyRelu Less LessEqual Log
Log1p LogIfPositive LogSigmoid LogSoftmax LogSumExp LogicalAnd LogicalNot LogicalOr LogicalXor MarkClasses Masked
MatMul MatrixTranspose Max MaxPool MaxPoolGrad Maximum Mean Min Minimum Mul Neg NotEqual OneHot OnesLike Pack PackSome
PadV2 PlaceholderWithDefault Pow Prod Range Rank RealDiv Reciprocal RecurrentSequence RecurrentSequenceGrad Relu Relu6
ReluGrad Reshape ReshapeLike ReverseV2 Rint RootOfSquares Round RowIds Rows Rsqrt ScatterRows Select Shape Sigmoid
SigmoidCrossEntropyGrad SigmoidCrossEntropyWithLogits SigmoidGrad Sign Sin Sinh Size Slice Softmax
SoftmaxCrossEntropyGrad SoftmaxCrossEntropyLabelsGrad SoftmaxCrossEntropyWithLogits SoftmaxGrad Softplus Softsign
SpaceToDepth SparseSoftmaxCrossEntropyGrad SparseSoftmaxCrossEntropyWithLogits Split Spread Sqrt Square
SquaredDifference Squeeze StandardDeviation StopGradient StridedSlice Sub Sum SumLike TakeAlong Tan Tanh TanhGrad
Tensordot Tile TileGrad Transpose TupleItem Unpack Unpad Variance Windows Xdivy Xlogy ZerosLike
"""
COMPILED = frozenset(_NAMES.split())

#: Op type -> the inputs whose values a kernel must know while it is traced.
_KNOWN: dict[str, Sequence[int]] = {
    **dict.fromkeys(("BroadcastTo", "OneHot", "PadV2", "Reshape", "Tile", "Unpad"), (1,)),
    **dict.fromkeys(("Conv2DBackpropInput", "TileGrad"), (2,)),
    "Fill": (0,),
    "Range": (0, 1, 2),
    "Slice": (1, 2),
    "StridedSlice": range(1, 99),
}

#: Of what is being traced: whether numpy's kernels take the values.
HELD: ContextVar[list[Any]] = ContextVar("HELD")


def known_inputs(node: Node) -> list[Node]:
    """Return the inputs whose values must be known while jax traces a node."""
    of, first = (node.attrs["of"], len(node.attrs["present"])) if node.op_type == "PutBack" else (node, 0)
    return [source for at, source in enumerate(node.inputs[first:]) if at in _KNOWN.get(of.op_type, ())]


def is_compiled(node: Node) -> bool:
    """Say whether jax can trace the function of a node."""
    if node.op_type == "Saved":
        return is_compiled(node.attrs["of"])
    if node.op_type == "PutBack":
        of = node.attrs["of"]
        return is_compiled(of) and all(of.inputs[at].dtype.is_floating for at in node.attrs["places"])
    return node.op_type in COMPILED and (not node.op_type.startswith("RecurrentSequence") or _is_plain_lstm(node))


def value_of(node: Node, given: Sequence[Any], saving: bool = False) -> Any:
    """Return a node's value, of the values of its inputs, while jax traces it; where `saving`, with what is saved."""
    if saving or node.op_type == "Saved":
        both = traced(saving_function_of(node if saving else node.attrs["of"]), {})(*given)
        return both if saving else both[1]
    if not any(isinstance(one, jax.Array) for one in jax.tree.leaves(given)):
        return node.fn(*given)  # type: ignore[misc]
    return _function(node)(*given)


def _function(node: Node) -> Function:
    return _put_back(node) if node.op_type == "PutBack" else traced(node.fn, {})


# ---- Copies of functions --------------------------------------------------------------------------


def traced(value: Any, copies: dict[Any, Any]) -> Any:
    """Return what a copied function has in the place of what its original names: of functions copies, modules alike.

    Args:
        value: A function, module, or anything else.
        copies: Of functions, so far.
    """
    if isinstance(value, ModuleType):
        return _Module(value)
    if isinstance(value, functools.partial):
        return functools.partial(traced(value.func, copies), *value.args, **value.keywords)
    if isinstance(value, MethodType) and value.__func__.__code__ in _INSTEAD:
        return functools.partial(_INSTEAD[value.__func__.__code__], value.__self__)
    if isinstance(value, np.ufunc) or (callable(value) and getattr(value, "__module__", None) == "numpy"):
        return value if isinstance(value, type) else _of_numpy(value)
    value = value.__wrapped__ if hasattr(value, "cache_info") else value
    if not isinstance(value, FunctionType) or not value.__module__.startswith("globalstep.tf1."):
        return value
    if value.__code__ in _INSTEAD:
        return functools.partial(_INSTEAD[value.__code__], **value.__kwdefaults__ or {})
    if value not in copies:
        names: dict[str, Any] = {}
        cells = tuple(CellType() for _ in value.__closure__ or ())
        copy = copies[value] = FunctionType(value.__code__, names, value.__name__, value.__defaults__, cells)
        copy.__kwdefaults__ = value.__kwdefaults__
        own = value.__globals__
        names.update({name: traced(own[name], copies) for name in _names(value.__code__) if name in own})
        for cell, of_value in zip(cells, value.__closure__ or (), strict=True):
            cell.cell_contents = traced(of_value.cell_contents, copies)
    return copies[value]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


class _Module:
    """A module, whose functions are copies."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return traced(getattr(self._module, name), {})


def _of_numpy(function: Any) -> Function:
    of_jax = getattr(jnp, function.__name__, function)

    def call(*args: Any, **how: Any) -> Any:
        is_traced = any(isinstance(one, jax.Array) for one in jax.tree.leaves((args, how)))
        return (of_jax if is_traced else function)(*args, **how)

    return call


# ---- In place of helpers --------------------------------------------------------------------------


def _hold(taken: Any) -> None:
    HELD.get().append(taken)


def _take_rows(params: Any, indices: Any, axis: int = 0) -> Any:
    _hold(jnp.all((indices >= 0) & (indices < params.shape[axis])))
    return jnp.take(params, indices, axis, mode="clip")


def _scatter_rows(rows: Any, ids: Any, shape: tuple[int, ...]) -> Any:
    return jnp.zeros(shape, rows.dtype).at[ids.reshape(-1)].add(rows.reshape(-1, *shape[1:]))


def _check_classes(scores: Any, labels: Any) -> None:
    _hold(jnp.all((labels >= 0) & (labels < scores.shape[-1])))


def _sparse_parts(scores: Any, labels: Any) -> tuple[Any, Any, Any]:
    shifted = scores - jnp.max(scores, axis=-1, keepdims=True)
    powers = jnp.exp(shifted)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    chosen = jnp.take_along_axis(shifted, labels[..., None], -1, mode="clip")
    return (jnp.log(total) - chosen)[..., 0], powers, total


def _sparse_back(g: Any, scores: Any, labels: Any, found: Any) -> Any:
    powers, total = found
    here = labels[..., None] == jnp.arange(scores.shape[-1], dtype=labels.dtype)
    return powers * (g[..., None] / total) - jnp.where(here, g[..., None], jnp.zeros((), g.dtype))


def _quotient_or_zero(x: Any, y: Any) -> Any:
    return jnp.where(y == 0, jnp.zeros((), x.dtype), x / jnp.where(y == 0, jnp.ones_like(y), y))


def _summation_of(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> Any:
    return reduction_ops._summation_of(shape, axes)._replace(subscripts=None)


def _spread_out(g: Any, shape: Any, dtype: Any, axes: tuple[int, ...] | None, mean: bool) -> Any:
    how = _summation_of(shape, axes)
    g = g.reshape(how.kept)
    return jnp.broadcast_to(g / how.terms if mean and how.terms else g, shape).astype(dtype)


def _pack_some(whole: Any, *parts: Any, axis: int, present: Sequence[int]) -> Any:
    given, none = dict(zip(present, parts, strict=True)), jnp.zeros_like(parts[0])
    return jnp.stack([given.get(at, none) for at in range(whole.shape[axis])], axis=axis)


def _put_back(node: Node) -> Function:
    """What takes arrays apart, or joins them, is linear in them: the way back is its transpose."""
    of, present, several, places = (node.attrs[name] for name in ("of", "present", "several", "places"))
    forward = _function(of)

    def put(*values: Any) -> Any:
        grads, inputs = values[: len(present)], list(values[len(present) :])

        def again(*moved: Any) -> Any:
            given = dict(zip(places, moved, strict=True))
            made = forward(*(given.get(at, value) for at, value in enumerate(inputs)))
            return tuple(made[at] for at in present) if several else made

        back = jax.vjp(again, *(inputs[at] for at in places))[1](tuple(grads) if several else grads[0])
        return back if node.attrs.get("tuple") else back[0]

    return put


# ---- In place of those over images ----------------------------------------------------------------


def _convolve(x: Any, w: Any, fit: Any) -> Any:
    how = fit.strides, (fit.rows, fit.columns)
    return lax.conv_general_dilated(x, w, *how, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _to_images(g: Any, w: Any, shape: tuple[int, ...], fit: Any) -> Any:
    return jax.linear_transpose(lambda x: _convolve(x, w, fit), jax.ShapeDtypeStruct(shape, g.dtype))(g)[0]


def _to_kernels(x: Any, g: Any, size: Any, fit: Any) -> Any:
    like = jax.ShapeDtypeStruct((*size, x.shape[-1], g.shape[-1]), g.dtype)
    return jax.linear_transpose(lambda w: _convolve(x, w, fit), like)(g)[0]


def _padded(x: Any, fit: Any, fill: float) -> Any:
    return jnp.pad(x, [(0, 0), fit.rows, fit.columns, (0, 0)], constant_values=np.asarray(fill, x.dtype))


def _places(x: Any, size: Sequence[int], strides: Sequence[int]) -> list[Any]:
    """Give an array for each place in a window: what lies there, for all windows."""
    counts = [(n - k) // s + 1 for n, k, s in zip(x.shape[1:-1], size, strides, strict=True)]
    return [
        x[(slice(None), *(slice(at, at + (n - 1) * s + 1, s) for at, n, s in zip(place, counts, strides, strict=True)))]
        for place in itertools.product(*map(range, size))
    ]


def _patches(x: Any, size: Sequence[int], strides: Sequence[int]) -> Any:
    parts = jnp.stack(_places(x, size, strides), axis=-2)
    return parts.reshape(*parts.shape[:-2], *size, x.shape[-1])


def _overlay(windows: Any, size: Sequence[int], strides: Sequence[int], shape: tuple[int, ...]) -> Any:
    like = jax.ShapeDtypeStruct(shape, windows.dtype)
    return jax.linear_transpose(lambda x: _patches(x, size, strides), like)(windows)[0]


def _largest_of_windows(x: Any, size: Sequence[int], fit: Any) -> Any:
    return functools.reduce(jnp.maximum, _places(_padded(x, fit, -np.inf), size, fit.strides))


def _share_of_windows(g: Any, x: Any, largest: Any, size: Sequence[int], fit: Any) -> Any:
    chosen = [(part == largest).astype(g.dtype) for part in _places(_padded(x, fit, -np.inf), size, fit.strides)]
    each = g / sum(chosen)
    back = jax.linear_transpose(lambda images: _places(_padded(images, fit, 0), size, fit.strides), x)
    return back([one * each for one in chosen])[0]


# ---- In place of an LSTM's run --------------------------------------------------------------------


def _is_plain_lstm(node: Node) -> bool:
    sequence = node.inputs[0].attrs["of"] if node.op_type == "RecurrentSequenceGrad" else node
    cell = sequence.attrs["sequence"]
    return isinstance(cell, fused_lstm.LSTMOptions) and cell == fused_lstm.LSTMOptions(cell.units, cell.forget_bias)


def _mask_of(lengths: Any, steps: int) -> Any:
    return (jnp.arange(steps)[:, None] < lengths.reshape(1, -1))[:, :, None]


class _TracedLstm:
    """One run over a sequence: see `globalstep.tf1.rnn.fused.SequenceRun`. The weights' gradients are found at once."""

    def __init__(self, options: Any, x: Any, mask: Any, states: Sequence[Any], weights: Sequence[Any]) -> None:
        self._x, self._kernel = x.reshape(-1, x.shape[2]), weights[0]
        self._shape, size = x.shape, x.shape[2]
        inner = self._kernel[size:]

        def steps(inputs: Any, c: Any, h: Any) -> Any:
            states, outputs = [h], []
            for at, part in enumerate(inputs):
                i, j, f, o = jnp.split(part + h @ inner, 4, axis=1)
                new = jax.nn.sigmoid(f + options.forget_bias) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
                made = jax.nn.sigmoid(o) * jnp.tanh(new)
                keep: Function = (lambda a, b: a) if mask is None else functools.partial(jnp.where, mask[at])
                c, h = keep(new, c), keep(made, h)
                outputs.append(keep(made, jnp.zeros_like(made)))
                states.append(h)
            return (jnp.stack(outputs), c, h), jnp.stack(states[:-1])

        inputs = (self._x @ self._kernel[:size] + weights[1]).reshape(*x.shape[:2], -1)
        made, self._through, self._before = jax.vjp(steps, inputs, *states, has_aux=True)
        self.outputs, *self.states = made

    def backward(self, outputs: Any, states: Sequence[Any]) -> Sequence[Any]:
        given = zip((outputs, *states), (self.outputs, *self.states), strict=True)
        gates, *of_states = self._through(tuple(jnp.zeros_like(y) if g is None else g for g, y in given))
        rows, before = gates.reshape(-1, gates.shape[2]), self._before.reshape(-1, self._before.shape[2])
        of_kernel = jnp.concatenate([self._x.T @ rows, before.T @ rows])
        of_x = (rows @ self._kernel[: self._shape[2]].T).reshape(self._shape)
        return of_x, *of_states, of_kernel, rows.sum(axis=0)


_INSTEAD: dict[CodeType, Function] = {
    function.__code__: of_jax
    for function, of_jax in (
        (cross_entropy_ops._check_classes, _check_classes),
        (cross_entropy_ops._sparse_back, _sparse_back),
        (cross_entropy_ops._sparse_parts, _sparse_parts),
        (fused.mask_of, _mask_of),
        (fused_lstm.LSTMOptions.sequence, _TracedLstm),
        (indexed_slices._scatter, _scatter_rows),
        (joining_ops._pack_some, _pack_some),
        (math_ops._quotient_or_zero, _quotient_or_zero),
        (primitives.broadcast, jnp.broadcast_to),
        (primitives.scatter_rows, _scatter_rows),
        (primitives.take_rows, _take_rows),
        (products.elementwise, lambda function, *operands: function(*operands)),
        (products.matmul, jnp.matmul),
        (reduction_ops._spread_out, _spread_out),
        (reduction_ops._summation_of.__wrapped__, _summation_of),
        (sliding_windows.convolve, _convolve),
        (sliding_windows.largest_of_windows, _largest_of_windows),
        (sliding_windows.overlay, _overlay),
        (sliding_windows.patches, _patches),
        (sliding_windows.share_of_windows, _share_of_windows),
        (sliding_windows.to_images, _to_images),
        (sliding_windows.to_kernels, _to_kernels),
    )
}
