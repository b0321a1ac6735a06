"""Input functions: what they give, and makers of them from arrays.

Layer: tf1. Source of texts: TensorFlow 1.15 `tf.estimator.inputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.tf1.data.pipeline import Pipeline as Dataset
from globalstep.tf1.sessions.session import Session


class _Initializer(SessionRunHook):
    """Begins a Dataset anew in every session."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def begin(self) -> None:
        self._operation = self._iterator.initializer

    def after_create_session(self, session: Session, coord: Any) -> None:
        session.run(self._operation)


def parsed_input(result: Any) -> tuple[Any, Any, list[SessionRunHook]]:
    """Return the features and labels that an input function has given, and the hooks that they need.

    Args:
        result: A Dataset, or its element: (features, labels), or features alone.

    Raises:
        ValueError: For a tuple that is no pair.
    """
    hooks: list[SessionRunHook] = []
    if isinstance(result, Dataset):
        iterator = result.make_initializable_iterator()
        hooks.append(_Initializer(iterator))
        result = iterator.get_next()
    if isinstance(result, (list, tuple)):
        if len(result) != 2:
            raise ValueError("input_fn should return (features, labels) as a len 2 tuple.")
        return result[0], result[1], hooks
    return result, None, hooks


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Return an input function of arrays.

    Args:
        x: An array [examples, ...], or a dict of them.
        y: Labels, likewise; None for none.
        batch_size: Examples of a batch; the last one of all epochs may have fewer.
        num_epochs: How often all examples come; None for without end.
        shuffle: Whether to shuffle them; must be said.
        queue_capacity: How many examples are shuffled among each other.
        num_threads: Accepted.

    Returns:
        A function that gives a batch of features, or (features, labels).

    Raises:
        ValueError: For lengths that differ, an empty dict, labels named as a feature, or without `shuffle`.
        TypeError: For an `x` that is neither an array nor a dict.

    >>> import globalstep as tf
    >>> input_fn = numpy_input_fn({"a": np.arange(3.0)}, np.arange(3), batch_size=2, shuffle=False)
    >>> with tf.Graph().as_default():
    ...     features, labels = input_fn()
    ...     with tf.train.MonitoredSession() as session:
    ...         print(session.run([features["a"], labels]))
    [array([0., 1.]), array([0, 1])]
    """
    _require_choice(shuffle)

    def input_fn() -> Any:
        features, labels = _features_of(x), _labels_of(y)
        shared = sorted(set(features) & set(labels)) if isinstance(y, Mapping) else ()
        if shared:
            raise ValueError(
                f"{len(shared)} duplicate keys are found in both x and y: {shared}. The keys in x are "
                f"{sorted(features)}, and those in y {sorted(labels)}."
            )
        counts = {name: len(array) for name, array in (*features.items(), *labels.items())}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"Length of tensors in x and y is mismatched. All elements in x and y must have the same length. "
                f"Shapes in x and y: {counts}"
            )
        dataset = Dataset.from_tensor_slices((features, labels))
        if shuffle:
            dataset = dataset.shuffle(max(min(queue_capacity, *counts.values()), 1))
        inputs, targets = dataset.repeat(num_epochs).batch(batch_size).make_one_shot_iterator().get_next()
        inputs = _as_given(inputs, x)
        return inputs if y is None else (inputs, _as_given(targets, y))

    return input_fn


def _as_given(nodes: Mapping[str, Any], like: Any) -> Any:
    """Return a dict of nodes if `like` is a dict, else its only node."""
    return nodes if isinstance(like, Mapping) else next(iter(nodes.values()))


def _require_choice(shuffle: Any) -> None:
    if not isinstance(shuffle, bool):
        raise ValueError(
            "shuffle must be provided and explicitly set as boolean (it is recommended to set it as True for "
            f"training); got {shuffle}"
        )


def _features_of(x: Any) -> dict[str, Any]:
    if isinstance(x, Mapping):
        if not x:
            raise ValueError("x cannot be an empty dict")
        return {name: _strings(array) for name, array in x.items()}
    if isinstance(x, np.ndarray):
        if not x.size:
            raise ValueError("x cannot be an empty array")
        return {"x": _strings(x)}
    raise TypeError(f"x must be a dict or array; got {type(x).__name__}")


def _labels_of(y: Any) -> dict[str, Any]:
    if y is None:
        return {}
    if not isinstance(y, Mapping):
        return {"y": _strings(y)}
    if not y:
        raise ValueError("y cannot be empty dict, use None instead.")
    return {name: _strings(array) for name, array in y.items()}


def _strings(array: Any) -> Any:
    """Return an array whose texts are bytes, as TensorFlow has them."""
    array = np.asarray(array)
    return np.char.encode(array, "utf-8").astype(object) if array.dtype.kind == "U" else array


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Return an input function of a pandas DataFrame: a feature for each column.

    Args:
        x: A DataFrame.
        y: A Series, or a DataFrame, of labels, with the same index; None for none.
        batch_size: As for `numpy_input_fn`.
        num_epochs: As for `numpy_input_fn`.
        shuffle: As for `numpy_input_fn`.
        queue_capacity: As for `numpy_input_fn`.
        num_threads: Accepted.
        target_column: A name for the labels that no column of x has.

    Returns:
        A function that gives a batch of features, or (features, labels).

    Raises:
        ValueError: If the indices differ, a column is named as the labels, or without `shuffle`.
    """
    _require_choice(shuffle)
    x = x.copy()
    if y is not None:
        if target_column in x:
            raise ValueError(
                f"Cannot use name {target_column} for target column: DataFrame already has a column with that name: "
                f"{list(x.columns)}"
            )
        if not np.array_equal(x.index, y.index):
            raise ValueError(f"Index for x and y are mismatched.\nIndex for x: {x.index}\nIndex for y: {y.index}\n")
    columns = {str(name): x[name].to_numpy() for name in x.columns}
    labels: Any = None
    if hasattr(y, "columns"):
        labels = {str(name): y[name].to_numpy() for name in y.columns}
    elif y is not None:
        labels = y.to_numpy()
    return numpy_input_fn(columns, labels, batch_size, num_epochs, shuffle, queue_capacity, num_threads)
