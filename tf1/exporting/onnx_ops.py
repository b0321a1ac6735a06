"""Translators of operations to ONNX, by op type.

Layer: tf1. Threads: functions, and a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.exporting.onnx_models import Translation, Translator, UntranslatableError
from globalstep.tf1.exporting.onnx_sequences import recurrent_sequence
from globalstep.tf1.graph.graph import Node

_END = np.iinfo(np.int64).max


def sources_of(node: Node) -> tuple[Node, ...]:
    """Give the nodes whose values a served model computes this one from."""
    if node.op_type == "Dropout":
        return node.inputs[:1]  # without its noise
    if node.op_type == "InitializedValue":
        return (node.attrs["variable"],)
    if node.op_type == "Print":
        return node.inputs[:1]
    if node.op_type == "Switch":
        return node.inputs[1:]
    if node.op_type == "TupleItem" and node.inputs[0].op_type == "Branch":
        # Both branches of a choice are computed: what the branch itself is made of.
        return (node.inputs[0].attrs["values"][node.attrs["index"]],)
    if node.op_type == "EmbeddingLookup":
        return (node.inputs[0], *(gather.inputs[0] for gather in node.inputs[2:]))
    return node.inputs


def _same(op_type: str, **attributes: Any) -> Translator:
    """Return the translator of an operation that ONNX has as well."""
    return lambda t, node: t.add(op_type, [t.of(source) for source in node.inputs], **attributes)


def _passed(t: Translation, node: Node) -> str:
    return t.of(sources_of(node)[0])


def _numbers(node: Node) -> Any:
    return node.dtype.as_numpy_dtype


def _refused(why: str) -> Translator:
    def translate(t: Translation, node: Node) -> str:
        raise UntranslatableError(why)

    return translate


def _with_ints(op_type: str) -> Translator:
    """Return the translator of an operation whose second input is a shape, or positions."""
    return lambda t, node: t.add(op_type, [t.of(node.inputs[0]), t.ints(node.inputs[1])])


def _of_one(make: Callable[[Translation, Node, str], str]) -> Translator:
    return lambda t, node: make(t, node, t.of(node.inputs[0]))


def _of_two(make: Callable[[Translation, Node, str, str], str]) -> Translator:
    return lambda t, node: make(t, node, t.of(node.inputs[0]), t.of(node.inputs[1]))


def _one(t: Translation, node: Node) -> str:
    return t.constant(1, _numbers(node))


def _rank(node: Node) -> int:
    if node.shape.ndims is None:
        raise UntranslatableError(f"the rank of {node.name!r} is not known before a run")
    return node.shape.ndims


def _swapped(t: Translation, node: Node) -> str:
    rank = _rank(node)
    return str(t.add("Transpose", [t.of(node)], perm=[*range(rank - 2), rank - 1, rank - 2]))


def _matmul(t: Translation, node: Node) -> str:
    a, b = node.inputs
    left = _swapped(t, a) if node.attrs["transpose_a"] else t.of(a)
    right = _swapped(t, b) if node.attrs["transpose_b"] else t.of(b)
    return str(t.add("MatMul", [left, right]))


def _bias_add(t: Translation, node: Node) -> str:
    x, bias = node.inputs
    added = t.of(bias)
    if node.attrs.get("data_format") == "NCHW":
        added = t.add("Unsqueeze", [added, t.constant(list(range(1, _rank(x) - 1)), np.int64)])
    return str(t.add("Add", [t.of(x), added]))


def _floor_div(t: Translation, node: Node, x: str, y: str) -> str:
    if node.dtype.is_integer:
        return str(t.add("Div", [t.add("Sub", [x, t.add("Mod", [x, y])]), y]))
    return str(t.add("Floor", [t.add("Div", [x, y])]))


def _floor_mod(t: Translation, node: Node, x: str, y: str) -> str:
    if node.dtype.is_integer:
        return str(t.add("Mod", [x, y]))
    return str(t.add("Sub", [x, t.add("Mul", [t.add("Floor", [t.add("Div", [x, y])]), y])]))


def _div_no_nan(t: Translation, node: Node, x: str, y: str) -> str:
    zero = t.constant(0, _numbers(node))
    none = t.add("Equal", [y, zero])
    return str(t.add("Where", [none, zero, t.add("Div", [x, t.add("Where", [none, _one(t, node), y])])]))


def _sum_of_all(t: Translation, node: Node) -> str:
    first, *others = (t.of(source) for source in node.inputs)
    for other in others:
        first = t.add("Add", [first, other])
    return first


def _channels_second(t: Translation, x: str) -> str:
    return str(t.add("Transpose", [x], perm=[0, 3, 1, 2]))


def _channels_last(t: Translation, x: str) -> str:
    return str(t.add("Transpose", [x], perm=[0, 2, 3, 1]))


def _windows(node: Node) -> dict[str, Any]:
    # SAME puts the odd one of the missing elements at the end, as SAME_UPPER does.
    return {
        "strides": list(node.attrs["strides"]),
        "auto_pad": "SAME_UPPER" if node.attrs["padding"] == "SAME" else "VALID",
    }


def _conv2d(t: Translation, node: Node) -> str:
    x, kernel = node.inputs
    if kernel.op_type == "Const":
        weights = t.constant(np.transpose(kernel.attrs["value"], (3, 2, 0, 1)))
    else:
        weights = t.add("Transpose", [t.of(kernel)], perm=[3, 2, 0, 1])
    return _channels_last(t, t.add("Conv", [_channels_second(t, t.of(x)), weights], **_windows(node)))


def _max_pool(t: Translation, node: Node, x: str) -> str:
    size = list(node.attrs["ksize"])
    return _channels_last(t, t.add("MaxPool", [_channels_second(t, x)], kernel_shape=size, **_windows(node)))


def _avg_pool(t: Translation, node: Node, x: str) -> str:
    size = list(node.attrs["ksize"])
    pooled = t.add("AveragePool", [_channels_second(t, x)], kernel_shape=size, count_include_pad=0, **_windows(node))
    return _channels_last(t, pooled)


def _along(op_type: str) -> Translator:
    return lambda t, node: t.add(op_type, [t.of(node.inputs[0])], axis=node.attrs["axis"])


def _reduced(t: Translation, op_type: str, node: Node, x: str) -> str:
    axes, keepdims = node.attrs["axis"], int(node.attrs["keepdims"])
    if axes is not None and not axes:
        return x
    inputs = [x] if axes is None else [x, t.constant(list(axes), np.int64)]
    return str(t.add(op_type, inputs, keepdims=keepdims))


def _reduction(op_type: str) -> Translator:
    return _of_one(lambda t, node, x: _reduced(t, op_type, node, x))


def _of_truths(op_type: str) -> Translator:
    return _of_one(lambda t, node, x: t.cast(_reduced(t, op_type, node, t.cast(x, "int32")), "bool"))


def _l2_loss(t: Translation, node: Node, x: str) -> str:
    whole = t.add("ReduceSum", [t.add("Mul", [x, x])], keepdims=0)
    return str(t.add("Div", [whole, t.constant(2, _numbers(node))]))


def _position(op_type: str) -> Translator:
    def translate(t: Translation, node: Node) -> str:
        position = t.add(op_type, [t.of(node.inputs[0])], axis=node.attrs["axis"], keepdims=0)
        return str(position) if node.dtype.name == "int64" else t.cast(position, node.dtype)

    return translate


def _shape(t: Translation, node: Node, x: str) -> str:
    shape = t.add("Shape", [x])
    return str(shape) if node.dtype.name == "int64" else t.cast(shape, node.dtype)


def _transpose(t: Translation, node: Node) -> str:
    rank = _rank(node.inputs[0])
    order = list(range(rank))
    if "moved" in node.attrs:
        source, target = node.attrs["moved"]
        order.insert(target % rank, order.pop(source))
    else:
        order = list(node.attrs["perm"]) if node.attrs["perm"] is not None else order[::-1]
    return str(t.add("Transpose", [t.of(node.inputs[0])], perm=order))


def _squeeze(t: Translation, node: Node, x: str) -> str:
    axes = node.attrs["axis"]
    return str(t.add("Squeeze", [x] if axes is None else [x, t.constant(list(axes), np.int64)]))


def _pack(t: Translation, node: Node) -> str:
    axis = node.attrs["axis"]
    place = axis if axis >= 0 else _rank(node.inputs[0]) + 1 + axis
    at = t.constant([place], np.int64)
    return str(t.add("Concat", [t.add("Unsqueeze", [t.of(source), at]) for source in node.inputs], axis=place))


def _unpack(t: Translation, node: Node) -> list[str]:
    x, axis = t.of(node.inputs[0]), node.attrs["axis"]
    return [t.add("Gather", [x, t.constant(at, np.int64)], axis=axis) for at in range(node.attrs["num"])]


def _split(t: Translation, node: Node) -> list[str]:
    x, sizes = t.of(node.inputs[0]), node.attrs["sizes"]
    if len(sizes) == 1:
        return [x]
    if all(size < 0 for size in sizes):
        parts = t.add("Split", [x], len(sizes), axis=node.attrs["axis"], num_outputs=len(sizes))
    elif any(size < 0 for size in sizes):
        raise UntranslatableError("the size of one of its parts is not known before a run")
    else:
        parts = t.add("Split", [x, t.constant(sizes, np.int64)], len(sizes), axis=node.attrs["axis"])
    return list(parts)


def _tuple_item(t: Translation, node: Node) -> str:
    (source,) = sources_of(node)
    if source is not node.inputs[0]:
        return t.of(source)
    at: int = node.attrs["index"]
    return t.items(source)[at]


def _strided_slice(t: Translation, node: Node) -> str:
    if "index" not in node.attrs:
        raise UntranslatableError("an index that is not known before a run; use gs.gather or gs.slice")
    index, value = node.attrs["index"], t.of(node.inputs[0])
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        own = sum(part is not None and part is not Ellipsis for part in parts)
        parts[at : at + 1] = [slice(None)] * (_rank(node.inputs[0]) - own)
    cut: list[tuple[int, int, int, int]] = []
    gone: list[int] = []
    new: list[int] = []
    axis = place = 0
    for part in parts:
        if part is None:
            new.append(place)
            place += 1
            continue
        if isinstance(part, slice):
            step = 1 if part.step is None else int(part.step)
            start = (0 if step > 0 else _END) if part.start is None else int(part.start)
            stop = (_END if step > 0 else -_END) if part.stop is None else int(part.stop)
            if (start, stop, step) != (0, _END, 1):
                cut.append((start, stop, axis, step))
            place += 1
        else:
            number = int(part)
            cut.append((number, number + 1 if number != -1 else _END, axis, 1))
            gone.append(axis)
        axis += 1
    if cut:
        columns = [t.constant(list(column), np.int64) for column in zip(*cut, strict=True)]
        value = t.add("Slice", [value, *columns])
    if gone:
        value = t.add("Squeeze", [value, t.constant(gone, np.int64)])
    if new:
        value = t.add("Unsqueeze", [value, t.constant(new, np.int64)])
    return value


def _slice(t: Translation, node: Node) -> str:
    x, begin, size = node.inputs
    starts, counts = t.ints(begin), t.ints(size)
    rest = t.add("Less", [counts, t.constant(0, np.int64)])
    ends = t.add("Where", [rest, t.constant(_END, np.int64), t.add("Add", [starts, counts])])
    axes = t.constant(list(range(_rank(x))), np.int64)
    return str(t.add("Slice", [t.of(x), starts, ends, axes]))


def _embedding_lookup(t: Translation, node: Node) -> str:
    ids, tables = node.inputs[0], [gather.inputs[0] for gather in node.inputs[2:]]
    whole, rows = t.add("Concat", [t.of(table) for table in tables], axis=0), t.ints(ids)
    if node.attrs["partition_strategy"] == "mod":
        sizes = [int(table.shape[0]) for table in tables]
        count = t.constant(len(tables), np.int64)
        owner = t.add("Mod", [rows, count])
        begin = t.add("Gather", [t.constant(np.cumsum([0, *sizes[:-1]]), np.int64), owner])
        rows = t.add("Add", [begin, t.add("Div", [rows, count])])
    return str(t.add("Gather", [whole, rows], axis=0))


def _one_hot(t: Translation, node: Node) -> str:
    ids, depth, on, off = node.inputs
    rows, count, flat = t.ints(ids), t.ints(depth), t.constant([0], np.int64)
    # ONNX counts a negative index from the end.
    rows = t.add("Where", [t.add("Less", [rows, t.constant(0, np.int64)]), count, rows])
    values = t.add("Concat", [t.add("Unsqueeze", [t.of(value), flat]) for value in (off, on)], axis=0)
    return str(t.add("OneHot", [rows, t.add("Unsqueeze", [count, flat]), values], axis=node.attrs["axis"]))


def _select(t: Translation, node: Node) -> str:
    if len(node.inputs) != 3:
        raise UntranslatableError("it empties the rows of examples without ids")
    condition, x, y = node.inputs
    chosen = t.of(condition)
    if node.attrs.get("rows"):
        chosen = t.add("Unsqueeze", [chosen, t.constant(list(range(1, _rank(x))), np.int64)])
    return str(t.add("Where", [chosen, t.of(x), t.of(y)]))


def _pad(t: Translation, node: Node, x: str) -> str:
    if node.attrs["mode"] == "SYMMETRIC":
        raise UntranslatableError("ONNX's Pad has no mode SYMMETRIC")
    if node.attrs["paddings"] is None:
        raise UntranslatableError("its paddings are known in a run only")
    before, after = zip(*node.attrs["paddings"], strict=True)
    pads = t.constant([*before, *after], np.int64)
    if node.attrs["mode"] == "REFLECT":
        return str(t.add("Pad", [x, pads], mode="reflect"))
    return str(t.add("Pad", [x, pads, t.constant(node.attrs["constant_values"], _numbers(node))], mode="constant"))


def _fill(t: Translation, node: Node) -> str:
    shape = t.ints(node.inputs[0])
    if "fill" in node.attrs:
        return str(t.add("ConstantOfShape", [shape], value=np.asarray([node.attrs["fill"]], _numbers(node))))
    return str(t.add("Expand", [t.of(node.inputs[1]), shape]))


def _like(value: int) -> Translator:
    return _of_one(
        lambda t, node, x: t.add("ConstantOfShape", [t.add("Shape", [x])], value=np.asarray([value], _numbers(node)))
    )


def _top_k(t: Translation, node: Node) -> list[str]:
    x = t.of(node.inputs[0])
    values, places = t.add("TopK", [x, t.constant([node.attrs["k"]], np.int64)], 2, axis=-1, largest=1, sorted=1)
    return [values, t.cast(places, "int32")]


def _cumsum(t: Translation, node: Node, x: str) -> str:
    flags = {name: int(node.attrs[name]) for name in ("exclusive", "reverse")}
    return str(t.add("CumSum", [x, t.constant(node.attrs["axis"], np.int64)], **flags))


def _reverse(t: Translation, node: Node, x: str) -> str:
    axes = list(node.attrs["axis"])
    columns: Sequence[Sequence[int]] = ([-1] * len(axes), [-_END] * len(axes), axes, [-1] * len(axes))
    return str(t.add("Slice", [x, *(t.constant(column, np.int64) for column in columns)])) if axes else x


def _tensordot(t: Translation, node: Node) -> str:
    a, b = node.inputs
    axes = node.attrs["axes"]
    left, right = _rank(a), _rank(b)
    pairs = (list(range(left - axes, left)), list(range(axes))) if isinstance(axes, int) else axes
    names = [chr(ord("a") + at) for at in range(left + right)]
    of_a, of_b = names[:left], names[left:]
    for one, other in zip(*pairs, strict=True):
        of_b[other] = of_a[one]
    free = [name for name in (*of_a, *of_b) if not (name in of_a and name in of_b)]
    equation = f"{''.join(of_a)},{''.join(of_b)}->{''.join(free)}"
    return str(t.add("Einsum", [t.of(a), t.of(b)], equation=equation))


def _clip(t: Translation, node: Node) -> str:
    x, low, high = (t.of(source) for source in node.inputs)
    return str(t.add("Max", [t.add("Min", [x, high]), low]))


def _count_nonzero(t: Translation, node: Node, x: str) -> str:
    zero = t.constant(0, _numbers(node.inputs[0]))
    return t.cast(
        _reduced(t, "ReduceSum", node, t.cast(t.add("Not", [t.add("Equal", [x, zero])]), "int64")), node.dtype
    )


def _embedding_lookup_sparse(t: Translation, node: Node) -> str:
    rows, places = node.inputs[:2]
    if _rank(rows) != 2:
        raise UntranslatableError("rows of more than one dimension are not combined")
    one = t.constant([1], np.int64)
    owner = t.add("Slice", [t.ints(places), t.constant([0], np.int64), one, one])
    last = t.add("ReduceMax", [owner], keepdims=0)
    column = t.of(node.inputs[2]) if len(node.inputs) > 2 else None
    values, kind = t.of(rows), _numbers(node)
    size = t.add("Slice", [t.add("Shape", [values]), one, t.constant([2], np.int64)])
    count = t.add("Unsqueeze", [t.add("Add", [last, t.constant(1, np.int64)]), t.constant([0], np.int64)])

    def total(parts: str, width: str) -> str:
        begin = t.add("ConstantOfShape", [t.add("Concat", [count, width], axis=0)], value=np.zeros(1, kind))
        return str(t.add("ScatterND", [begin, owner, parts], reduction="add"))

    if column is None:
        lengths = t.add(
            "Concat", [t.add("Slice", [t.add("Shape", [values]), t.constant([0], np.int64), one]), one], axis=0
        )
        weights = t.add("ConstantOfShape", [lengths], value=np.ones(1, kind))
    else:
        weights = t.add("Unsqueeze", [column, one])
    summed = total(t.add("Mul", [values, weights]), size)
    combiner = node.attrs["combiner"]
    if combiner == "sum":
        return summed
    if combiner == "mean":
        return str(t.add("Div", [summed, total(weights, one)]))
    return str(t.add("Div", [summed, t.add("Sqrt", [total(t.add("Mul", [weights, weights]), one)])]))


TRANSLATORS: dict[str, Translator] = {
    "Const": lambda t, n: t.constant(n.attrs["value"]),
    **dict.fromkeys(("Identity", "StopGradient", "CheckNumerics", "PlaceholderWithDefault"), _passed),
    **dict.fromkeys(("Dropout", "Print", "InitializedValue", "Switch"), _passed),
    **{
        name: _same(name)
        for name in ("Abs", "Acos", "Asin", "Atan", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log", "Neg")
    },
    **{
        name: _same(name)
        for name in ("Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh", "Elu")
    },
    **{name: _same(name) for name in ("Selu", "Softplus", "Softsign", "Add", "Sub", "Mul", "Div", "Pow")},
    **{name: _same(name) for name in ("Equal", "Less", "Greater", "Range")},
    **{
        name: _same(there)
        for name, there in (
            *(("Rint", "Round"), ("IsNan", "IsNaN"), ("IsInf", "IsInf"), ("LogicalNot", "Not"), ("LogicalAnd", "And")),
            *(("LogicalOr", "Or"), ("LogicalXor", "Xor"), ("RealDiv", "Div"), ("Maximum", "Max"), ("Minimum", "Min")),
            *(("LessEqual", "LessOrEqual"), ("GreaterEqual", "GreaterOrEqual")),
        )
    },
    "IsFinite": _of_one(lambda t, n, x: t.add("Not", [t.add("Or", [t.add("IsNaN", [x]), t.add("IsInf", [x])])])),
    "NotEqual": _of_two(lambda t, n, x, y: t.add("Not", [t.add("Equal", [x, y])])),
    "Relu6": _of_one(lambda t, n, x: t.add("Clip", [x, t.constant(0, _numbers(n)), t.constant(6, _numbers(n))])),
    "LeakyRelu": lambda t, n: t.add("LeakyRelu", [t.of(n.inputs[0])], alpha=float(n.attrs["alpha"])),
    "Rsqrt": _of_one(lambda t, n, x: t.add("Reciprocal", [t.add("Sqrt", [x])])),
    "Square": _of_one(lambda t, n, x: t.add("Mul", [x, x])),
    "Log1p": _of_one(lambda t, n, x: t.add("Log", [t.add("Add", [x, _one(t, n)])])),
    "Expm1": _of_one(lambda t, n, x: t.add("Sub", [t.add("Exp", [x]), _one(t, n)])),
    "LogSigmoid": _of_one(lambda t, n, x: t.add("Neg", [t.add("Softplus", [t.add("Neg", [x])])])),
    "SquaredDifference": _of_two(lambda t, n, x, y: t.add("Mul", [t.add("Sub", [x, y])] * 2)),
    "FloorDiv": _of_two(_floor_div),
    "FloorMod": _of_two(_floor_mod),
    "DivNoNan": _of_two(_div_no_nan),
    "Cast": _of_one(lambda t, n, x: t.cast(x, n.dtype)),
    "AddN": _sum_of_all,
    "BiasAdd": _bias_add,
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "Einsum": lambda t, n: t.add("Einsum", [t.of(part) for part in n.inputs], equation=n.attrs["equation"]),
    "Tensordot": _tensordot,
    "Conv2D": _conv2d,
    "MaxPool": _of_one(_max_pool),
    "AvgPool": _of_one(_avg_pool),
    "Softmax": _along("Softmax"),
    "LogSoftmax": _along("LogSoftmax"),
    **{name: _reduction(f"Reduce{name}") for name in ("Sum", "Mean", "Max", "Min", "Prod", "LogSumExp")},
    "All": _of_truths("ReduceMin"),
    "Any": _of_truths("ReduceMax"),
    "L2Loss": _of_one(_l2_loss),
    "ClipByValue": _clip,
    "EuclideanNorm": _of_one(lambda t, n, x: _reduced(t, "ReduceL2", n, x)),
    "CountNonzero": _of_one(_count_nonzero),
    "EmbeddingLookupSparse": _embedding_lookup_sparse,
    "ArgMax": _position("ArgMax"),
    "ArgMin": _position("ArgMin"),
    "Shape": _of_one(_shape),
    "Size": _of_one(lambda t, n, x: t.cast(t.add("Size", [x]), n.dtype)),
    "Rank": lambda t, n: t.constant(_rank(n.inputs[0]), np.int32),
    "Reshape": _with_ints("Reshape"),
    "Transpose": _transpose,
    "MatrixTranspose": lambda t, n: _swapped(t, n.inputs[0]),
    "ExpandDims": _of_one(lambda t, n, x: t.add("Unsqueeze", [x, t.constant([n.attrs["axis"]], np.int64)])),
    "Squeeze": _of_one(_squeeze),
    "ConcatV2": lambda t, n: t.add("Concat", [t.of(source) for source in n.inputs], axis=n.attrs["axis"]),
    "Pack": _pack,
    "Unpack": _unpack,
    "Split": _split,
    "TupleItem": _tuple_item,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "GatherV2": _of_two(lambda t, n, x, ids: t.add("Gather", [x, ids], axis=n.attrs["axis"])),
    "GatherNd": _with_ints("GatherND"),
    "EmbeddingLookup": _embedding_lookup,
    "OneHot": _one_hot,
    "Select": _select,
    "Merge": lambda t, n: t.add("Where", [t.of(source) for source in n.inputs]),
    "Where": _of_one(lambda t, n, x: t.add("Transpose", [t.add("NonZero", [x])], perm=[1, 0])),
    "Tile": _with_ints("Tile"),
    "PadV2": _of_one(_pad),
    "Fill": _fill,
    "ZerosLike": _like(0),
    "OnesLike": _like(1),
    "BroadcastTo": _with_ints("Expand"),
    "TopKV2": _top_k,
    "Cumsum": _of_one(_cumsum),
    "ReverseV2": _of_one(_reverse),
    "RecurrentSequence": recurrent_sequence,
    **dict.fromkeys(
        ("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "Multinomial"), _refused("it draws random numbers")
    ),
    **dict.fromkeys(
        ("Assign", "AssignAdd", "AssignSub", "Mutation"),
        _refused("it changes a Variable, which a served model does not"),
    ),
    "PyFunc": _refused("it calls a Python function of the program"),
}
