"""Summary ops: nodes whose value is a serialized `Summary`, for a FileWriter to add.

Tags are scoped names as in TensorFlow: `scalar("loss", x)` within `name_scope("train")` has the tag
"train/loss", a second one "train/loss_1". Follows TensorFlow 1.15, python/summary/summary.py and
python/ops/summary_op_util.py.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from globalstep.errors import InvalidArgumentError, OutOfRangeError
from globalstep.files.tensorboard_protos import DATA_TYPES, Summary, TensorProto, TensorShapeProto
from globalstep.tf1.graph.graph import GraphKeys, Node, add_to_collections, as_node, get_collection, name_scope
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.ops.summary_values import histogram_proto, image_values, scalar_values

_log = logging.getLogger("globalstep")

_INVALID_TAG_CHARACTERS = re.compile(r"[^-/\w.]", re.ASCII)
_IMAGE_TYPES = ("uint8", "float32", "float16", "float64")


def scalar(name: str, tensor: Any, collections: Sequence[str] | None = None, family: str | None = None) -> Node:
    """Make a summary of one number.

    Args:
        name: Name of the node; under the current name scope it is also the tag.
        tensor: A numeric scalar.
        collections: Collections it is added to; default [GraphKeys.SUMMARIES].
        family: Prefix of the tag, under which TensorBoard groups it.

    Returns:
        A string node: the serialized Summary.

    Raises:
        InvalidArgumentError: When run, if the value is no scalar.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default(), gs.name_scope("train"):
    ...     scalar("loss", gs.constant(0.5)).op.name
    'train/loss'
    """
    values = as_node(tensor)
    with summary_scope(name, family) as (tag, scope):
        return summary_node("ScalarSummary", [values], scope, collections, tag=tag)


def histogram(name: str, values: Any, collections: Sequence[str] | None = None, family: str | None = None) -> Node:
    """Make a summary of the distribution of many numbers.

    Args:
        name: Name of the node; under the current name scope it is also the tag.
        values: Numbers, any shape.
        collections: Collections it is added to; default [GraphKeys.SUMMARIES].
        family: Prefix of the tag, under which TensorBoard groups it.

    Returns:
        A string node: the serialized Summary.

    Raises:
        InvalidArgumentError: When run, if a value is not finite.
    """
    node = as_node(values)
    with summary_scope(name, family, "HistogramSummary") as (tag, scope):
        return summary_node("HistogramSummary", [node], scope, collections, tag=tag)


def image(
    name: str, tensor: Any, max_outputs: int = 3, collections: Sequence[str] | None = None, family: str | None = None
) -> Node:
    """Make a summary of pictures.

    Args:
        name: Name of the node; under the current name scope it begins the tags name/image, or
            name/image/0, name/image/1, ... where `max_outputs` is more than 1.
        tensor: [batch, height, width, channels] with 1 (gray), 3 (RGB) or 4 (RGBA) channels. uint8 is
            shown as it is; floats are brought to 0..255, see `summary_values.normalize_image`.
        max_outputs: How many pictures of the batch at most.
        collections: Collections it is added to; default [GraphKeys.SUMMARIES].
        family: Prefix of the tags, under which TensorBoard groups them.

    Returns:
        A string node: the serialized Summary.

    Raises:
        TypeError: If the dtype, where known, is none of uint8 and the floats.
        ValueError: If `max_outputs` is less than 1.
        InvalidArgumentError: When run, if the shape is wrong.
    """
    node = image_input(tensor, max_outputs)
    with summary_scope(name, family) as (tag, scope):
        return summary_node("ImageSummary", [node], scope, collections, tag=tag, max_images=max_outputs)


def text(name: str, tensor: Any, collections: Sequence[str] | None = None) -> Node:
    """Make a summary of strings, which TensorBoard shows as Markdown.

    Args:
        name: Name of the node; under the current name scope it is also the tag.
        tensor: Strings; a matrix is shown as a table.
        collections: Collections it is added to; default [GraphKeys.SUMMARIES].

    Returns:
        A string node: the serialized Summary.

    Raises:
        ValueError: If `tensor` holds no strings.
    """
    node = as_node(tensor)
    if node.dtype.name != "string":
        raise ValueError(f"Expected tensor {node.name} to have dtype string, got {node.dtype.name}")
    with summary_scope(name) as (tag, scope):
        return summary_node("TensorSummaryV2", [node], scope, collections, tag=tag)


def merge(inputs: Sequence[Any], collections: Sequence[str] | None = None, name: str | None = None) -> Node:
    """Make one summary of several.

    Args:
        inputs: String nodes of serialized summaries.
        collections: Collections it is added to; default none.
        name: Name of the scope of the node; default "Merge".

    Returns:
        A string node: the serialized union.

    Raises:
        InvalidArgumentError: When run, if two of them use the same tag, or one is no summary.
    """
    nodes = [as_node(item) for item in inputs]
    with name_scope(name, "Merge"):
        return summary_node("MergeSummary", nodes, name or "MergeSummary", collections or [])


def merge_all(key: str = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None) -> Node | None:
    """Merge all summaries that the default graph has collected.

    Args:
        key: Collection of the summaries.
        scope: When given, only those whose names match this regular expression from the start.
        name: Name of the scope of the node; default "Merge".

    Returns:
        A string node, or None when there are none.
    """
    summaries = get_collection(key, scope)
    return merge(summaries, name=name) if summaries else None


@contextlib.contextmanager
def summary_scope(name: str, family: str | None = None, default_name: str | None = None) -> Iterator[tuple[str, str]]:
    """Open the name scope of a summary; yields its tag, and the scope as the full name of its node."""
    clean = clean_tag(name)
    if family is None:
        with name_scope(clean or default_name) as scope:
            yield scope.rstrip("/"), scope
    else:
        # The family stands twice, as in TensorFlow: once for the scope, once more in front of the tag,
        # where TensorBoard looks for it.
        family = clean_tag(family)
        with name_scope(f"{family}/{clean}") as scope:
            yield f"{family}/{scope.rstrip('/')}", scope


def clean_tag(name: str) -> str:
    """Replace what a tag must not contain, saying so."""
    clean = _INVALID_TAG_CHARACTERS.sub("_", name).lstrip("/")
    if clean != name:
        _log.info("Summary name %s is illegal; using %s instead.", name, clean)
    return clean


def image_input(tensor: Any, max_outputs: int) -> Node:
    """Give the node of a batch of pictures.

    Raises:
        TypeError: If its dtype, where known, is none that a picture may have.
        ValueError: If `max_outputs` is less than 1.
    """
    if max_outputs < 1:
        raise ValueError(f"max_outputs must be at least 1, not {max_outputs}.")
    node = as_node(tensor)
    with contextlib.suppress(ValueError):  # not known before a run: the run will tell
        if node.dtype.name not in _IMAGE_TYPES:
            raise TypeError(
                f"Value passed to parameter 'tensor' has DataType {node.dtype.name} not in list of allowed "
                f"values: {', '.join(_IMAGE_TYPES)}"
            )
    return node


def summary_node(
    op_type: str, inputs: Sequence[Node], name: str, collections: Sequence[str] | None, **attrs: Any
) -> Node:
    """Make the node of a summary and put it into its collections (None: GraphKeys.SUMMARIES).

    Its inputs are the values, and before them the tags where there is no attribute "tag".
    """
    node = Node(op_type, inputs, name=name, dtype="string", shape=(), attrs=attrs)
    add_to_collections([GraphKeys.SUMMARIES] if collections is None else collections, node)
    return node


def _serialized(node: Node, values_of: Callable[[Any, Any], Iterable[Summary.Value]]) -> Any:
    """Return the function of a node: a Summary of what `values_of` gives for the tags and the values."""
    tags = [node.attrs["tag"]] if "tag" in node.attrs else []
    return lambda *given: bytes(Summary(value=values_of(*tags, *given)).SerializeToString())


def _text_of(tag: Any) -> str:
    value = np.asarray(tag, dtype=object).reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)


@kernel_of("ScalarSummary")
def _scalar(node: Node) -> Any:
    return _serialized(node, lambda tags, value: scalar_values(np.asarray(tags, dtype=object), np.asarray(value)))


@kernel_of("HistogramSummary")
def _histogram(node: Node) -> Any:
    name = node.op_name if "tag" in node.attrs else None

    def values_of(tag: Any, value: Any) -> list[Summary.Value]:
        text = _text_of(tag)
        # With the tag for an input it is TensorFlow 0.x's.
        histogram = histogram_proto(value, name) if name else histogram_proto(value, text, OutOfRangeError)
        return [Summary.Value(tag=text, histo=histogram)]

    return _serialized(node, values_of)


@kernel_of("ImageSummary")
def _image(node: Node) -> Any:
    limit = node.attrs["max_images"]
    return _serialized(node, lambda tag, value: image_values(_text_of(tag), np.asarray(value), limit))


@kernel_of("TensorSummaryV2")
def _text(node: Node) -> Any:
    def values_of(tag: str, value: Any) -> list[Summary.Value]:
        written = Summary.Value(tag=tag, tensor=_string_tensor(np.asarray(value, dtype=object)))
        written.metadata.plugin_data.plugin_name = "text"
        return [written]

    return _serialized(node, values_of)


@computes("MergeSummary")
def _merged(*inputs: Any) -> bytes:
    union = Summary()
    for item in inputs:
        for data in np.asarray(item, dtype=object).reshape(-1):
            try:
                union.MergeFromString(data)
            except (DecodeError, TypeError) as error:
                raise InvalidArgumentError("Could not parse one of the summary inputs") from error
    seen: set[str] = set()
    for value in union.value:
        # TensorFlow forgives an empty tag, which is no tag.
        if value.tag and value.tag in seen:
            raise InvalidArgumentError(f"Duplicate tag {value.tag} found in summary inputs")
        seen.add(value.tag)
    return bytes(union.SerializeToString())


def _string_tensor(strings: np.ndarray[Any, Any]) -> TensorProto:
    items = [item.encode() if isinstance(item, str) else bytes(item) for item in strings.reshape(-1)]
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in strings.shape])
    return TensorProto(dtype=DATA_TYPES["string"], tensor_shape=shape, string_val=items)
