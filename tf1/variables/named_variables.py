"""Variables by name: `get_variable` makes them, or takes those that exist, as the current scope says.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/variable_scope.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype, float32
from globalstep.tf1.graph.graph import GraphKeys, Node, constant_array, get_default_graph
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.variables.partitioned_variables import PartitionedVariable, PartitionInfo, SaveSliceInfo, slices
from globalstep.tf1.variables.variable_scope import (
    chained,
    get_variable_scope,
    no_regularizer,
    store_of,
    variable_scope,
)
from globalstep.tf1.variables.variables import Variable


def get_variable(
    name: str,
    shape: Any = None,
    dtype: DTypeLike | None = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Any = None,
    constraint: Any = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """Make the Variable of a name in the current scope, or take the one that exists.

    Args:
        name: Its name within the scope.
        shape: Its shape; not with a constant initializer.
        dtype: Its dtype; default the scope's, float32.
        initializer: Function of (shape, dtype, partition_info), a class of such, or a constant. Default:
            the scope's; else Glorot uniform for floats, zeros for integers and bools.
        regularizer: Function of the Variable to a loss, which goes to REGULARIZATION_LOSSES.
        trainable: Whether it is in TRAINABLE_VARIABLES; default yes.
        collections: Collections it is in; default [GLOBAL_VARIABLES].
        caching_device: Accepted as in TensorFlow.
        partitioner: Cuts it into parts; see `globalstep.tf1.variables.partitioned_variables`.
        validate_shape: As for Variable.
        use_resource: Accepted as in TensorFlow.
        custom_getter: As for `variable_scope`, for this call.
        constraint: As for Variable.
        synchronization: Accepted as in TensorFlow.
        aggregation: Accepted as in TensorFlow.

    Returns:
        A Variable, or a PartitionedVariable.

    Raises:
        ValueError: If it exists and reuse is not set, or the other way round; if it exists with another
            shape or dtype; if its shape is not known.
    """
    store = store_of()
    scope = store.scope
    full = f"{scope.name}/{name}" if scope.name else name
    options: dict[str, Any] = {
        "shape": shape,
        "dtype": as_dtype(dtype if dtype is not None else scope.dtype),
        "initializer": initializer if initializer is not None else scope.initializer,
        "regularizer": regularizer if regularizer is not None else scope.regularizer,
        "trainable": trainable,
        "collections": collections,
        "partitioner": partitioner if partitioner is not None else scope.partitioner,
        "validate_shape": validate_shape,
        "constraint": constraint if constraint is not None else scope.constraint,
        "reuse": scope.reuse,
    }
    if dtype is None and initializer is not None and not callable(initializer):
        # A value has a dtype of its own; the scope's is for what an initializer makes.
        options["dtype"] = initializer.dtype if isinstance(initializer, Node) else _dtype_of(initializer)
    getters = [getter for getter in (custom_getter, scope.custom_getter) if getter is not None]
    if not getters:
        return _get(full, **options)
    getter = chained(getters[0], getters[1] if len(getters) > 1 else None)
    options.update(use_resource=use_resource, synchronization=synchronization, aggregation=aggregation)
    with get_default_graph().name_scope(None):
        return getter(_get, full, caching_device=caching_device, **options)


def _dtype_of(value: Any) -> DType:
    array = constant_array(value)
    return as_dtype("string" if array.dtype == object else array.dtype)


def get_local_variable(name: str, *args: Any, **options: Any) -> Any:
    """Make or take a Variable that lives in each session and is not trained; see `get_variable`."""
    options["collections"] = [*(options.get("collections") or ()), GraphKeys.LOCAL_VARIABLES]
    return get_variable(name, *args, **{**options, "trainable": False})


def _get(
    name: str,
    shape: Any = None,
    dtype: DTypeLike = float32,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    collections: Sequence[str] | None = None,
    partitioner: Any = None,
    validate_shape: bool = True,
    constraint: Any = None,
    reuse: Any = False,
    **unused: Any,
) -> Any:
    store = store_of()
    kind = as_dtype(dtype)
    variable = store.variables.get(name)
    if variable is not None:
        return _shared(name, variable, shape, kind, reuse)
    if reuse is True:
        raise ValueError(
            f"Variable {name} does not exist, or was not created with tf.get_variable(). Did you mean to set "
            "reuse=tf.AUTO_REUSE in VarScope?"
        )
    if inspect.isclass(initializer):
        initializer = initializer()
    constant = initializer is not None and not callable(initializer)
    value: Any = initializer
    static = value.shape if isinstance(value, Node) else TensorShape(np.shape(value) if constant else shape)
    if constant and shape is not None:
        if partitioner is None:
            raise ValueError("If initializer is a constant, do not specify shape.")
        static = static.merge_with(shape)
    if not constant and not static.is_fully_defined():
        raise ValueError(f"Shape of a new variable ({name}) must be fully defined, but instead was {static}.")
    make: Any = _default_initializer(name, kind) if initializer is None else initializer
    options = {
        "trainable": trainable,
        "collections": collections,
        "validate_shape": validate_shape,
        "constraint": constraint,
        "dtype": kind,
    }
    with get_default_graph().name_scope(None):
        if partitioner is not None and static.ndims != 0:
            made: Variable | PartitionedVariable = _partitioned(name, static, kind, make, partitioner, options)
        else:
            initial = make if constant else _asked(make, static, kind)
            made = Variable(initial, name=name, **options)
    store.variables[name] = made
    _regularize(name, made, regularizer)
    return made


def _shared(name: str, held: Any, shape: Any, dtype: DType, reuse: Any) -> Any:
    if not reuse:
        raise ValueError(
            f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or "
            "reuse=tf.AUTO_REUSE in VarScope?"
        )
    if not TensorShape(shape).is_compatible_with(held.shape):
        raise ValueError(
            f"Trying to share variable {name}, but specified shape {TensorShape(shape)} and found shape {held.shape}."
        )
    if dtype != held.dtype:
        raise ValueError(
            f"Trying to share variable {name}, but specified dtype {dtype.name} and found dtype {held.dtype.name}_ref."
        )
    return held


def _default_initializer(name: str, dtype: DType) -> Callable[..., Any]:
    from globalstep.tf1.ops import init_ops  # an op module, which builds on Variables' layer

    if dtype.is_floating:
        return init_ops.glorot_uniform_initializer()
    if dtype.is_integer or dtype.is_bool:
        return init_ops.zeros_initializer()
    raise ValueError(f"An initializer for variable {name} of {dtype} is required")


def _asked(
    initializer: Callable[..., Any], shape: TensorShape, dtype: DType, info: PartitionInfo | None = None
) -> Callable[[], Any]:
    """The initializer as a function without arguments, given only the arguments that it takes."""
    try:
        takes = inspect.signature(initializer).parameters
    except (TypeError, ValueError):
        takes = {}  # type: ignore[assignment]
    if not takes:
        return initializer
    any_name = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values())
    wanted: dict[str, Any] = {"dtype": dtype, "partition_info": info}
    kwargs = {key: value for key, value in wanted.items() if any_name or key in takes}
    sizes = [None if d is None else int(d) for d in shape.as_list()]
    return lambda: initializer(sizes, **kwargs)


def _partitioned(
    name: str, shape: TensorShape, dtype: DType, initializer: Any, partitioner: Any, options: dict[str, Any]
) -> PartitionedVariable:
    if not shape.is_fully_defined():
        raise ValueError(
            f"Shape of a new partitioned variable ({name}) must be fully defined, but instead was {shape}."
        )
    whole = [int(size) for size in shape]
    partitions = list(partitioner(shape=shape, dtype=dtype))
    parts: list[Variable] = []
    for i, (offset, extent) in enumerate(slices(whole, partitions)):
        if callable(initializer) and not isinstance(initializer, Node):
            initial: Any = _asked(initializer, TensorShape(extent), dtype, PartitionInfo(whole, offset))
        else:
            place = tuple(slice(o, o + n) for o, n in zip(offset, extent, strict=True))
            whole_value: Any = initializer if isinstance(initializer, Node) else np.asarray(initializer)
            initial = whole_value[place]
        part = Variable(initial, name=f"{name}/part_{i}", **options)
        part.save_slice_info = SaveSliceInfo(name, whole, offset, extent)
        parts.append(part)
    return PartitionedVariable(name, whole, dtype, parts, partitions)


def _regularize(name: str, made: Any, regularizer: Any) -> None:
    if regularizer is None or regularizer is no_regularizer:
        return
    graph = get_default_graph()
    with graph.name_scope(f"{name}/Regularizer/"):
        for variable in made if isinstance(made, PartitionedVariable) else [made]:
            loss = regularizer(variable)
            if loss is not None:
                graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)


def create_partitioned_variables(
    shape: Sequence[int],
    slicing: Sequence[int],
    initializer: Any,
    dtype: DTypeLike = float32,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    name: str | None = None,
    reuse: Any = None,
) -> list[Variable]:
    """Give the parts of a Variable that `get_variable` makes of `shape` and `initializer`, cut as `slicing` says.

    Raises:
        ValueError: If `shape` and `slicing` differ in length, or are empty.
    """
    if len(shape) != len(slicing):
        raise ValueError(
            "The 'shape' and 'slicing' of a partitioned Variable must have the length: shape: "
            f"{shape}, slicing: {slicing}"
        )
    if not shape:
        raise ValueError(f"A partitioned Variable must have rank at least 1: shape: {shape}")
    with variable_scope(name, "PartitionedVariable", reuse=reuse, auxiliary_name_scope=False) as scope:
        pass
    outer, dtype = get_variable_scope(), initializer.dtype if isinstance(initializer, Node) else dtype
    with variable_scope(outer, reuse=reuse, auxiliary_name_scope=False):
        own = scope.name[len(outer.name) :].lstrip("/")
        whole = get_variable(own, shape, dtype, initializer, None, trainable, collections, None, lambda **_: slicing)
    return list(whole)
