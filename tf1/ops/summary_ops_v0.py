"""Summary ops under the names and rules of TensorFlow 0.x: tags are given, not made from names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from globalstep.tf1.graph.graph import GraphKeys, Node, as_node, get_collection
from globalstep.tf1.ops.summary_ops import image_input, summary_node


def scalar_summary(tags: Any, values: Any, collections: Sequence[str] | None = None, name: str | None = None) -> Node:
    """Make a summary of numbers, one for each tag.

    Args:
        tags: Strings: one, or a list, or a node.
        values: Numbers, of the same shape.
        collections: Collections it is added to; default [GraphKeys.SUMMARIES].
        name: Name of the node; default "ScalarSummary".

    Returns:
        A string node: the serialized Summary.

    Raises:
        InvalidArgumentError: When run, if the shapes differ.
    """
    nodes = [_tag_node(tags), as_node(values)]
    return summary_node("ScalarSummary", nodes, name or "ScalarSummary", collections)


def histogram_summary(tag: Any, values: Any, collections: Sequence[str] | None = None, name: str | None = None) -> Node:
    """Make a summary of the distribution of many numbers.

    Args:
        tag: A string, or a scalar string node.
        values: Numbers, any shape.
        collections: Collections it is added to; default [GraphKeys.SUMMARIES].
        name: Name of the node; default "HistogramSummary".

    Returns:
        A string node: the serialized Summary.

    Raises:
        OutOfRangeError: When run, if a value is not finite. This is TensorFlow 0.x's type; a loop that
            takes OutOfRangeError for the end of its input ends on it, which `gs.summary.histogram`
            (InvalidArgumentError, as in 1.x) avoids.
    """
    nodes = [_tag_node(tag), as_node(values)]
    return summary_node("HistogramSummary", nodes, name or "HistogramSummary", collections)


def image_summary(
    tag: Any,
    tensor: Any,
    max_images: int | None = None,
    collections: Sequence[str] | None = None,
    name: str | None = None,
) -> Node:
    """Make a summary of pictures.

    Args:
        tag: A string, or a scalar string node; the tags are tag/image, or tag/image/0, ... where
            `max_images` is more than 1.
        tensor: [batch, height, width, channels] with 1, 3 or 4 channels.
        max_images: How many pictures of the batch at most; default 3.
        collections: Collections it is added to; default [GraphKeys.SUMMARIES].
        name: Name of the node; default "ImageSummary".

    Returns:
        A string node: the serialized Summary.

    Raises:
        InvalidArgumentError: When run, if the shape is wrong.
    """
    limit = 3 if max_images is None else max_images
    nodes = [_tag_node(tag), image_input(tensor, limit)]
    return summary_node("ImageSummary", nodes, name or "ImageSummary", collections, max_images=limit)


def merge_summary(inputs: Sequence[Any], collections: Sequence[str] | None = None, name: str | None = None) -> Node:
    """Make one summary of several.

    Args:
        inputs: String nodes of serialized summaries.
        collections: Collections it is added to. The seed's text says [GraphKeys.SUMMARIES] by default;
            TensorFlow's code, and this, add it to none, or a second `merge_all_summaries` would find
            every tag twice.
        name: Name of the node; default "MergeSummary".

    Returns:
        A string node: the serialized union.

    Raises:
        InvalidArgumentError: When run, if two of them use the same tag.
    """
    nodes = [as_node(item) for item in inputs]
    return summary_node("MergeSummary", nodes, name or "MergeSummary", collections or [])


def merge_all_summaries(key: str = GraphKeys.SUMMARIES) -> Node | None:
    """Merge all summaries that the default graph has collected; None when there are none.

    Args:
        key: Collection of the summaries.
    """
    summaries = get_collection(key)
    return merge_summary(summaries) if summaries else None


def _tag_node(tags: Any) -> Node:
    return as_node(tags, name="tags")
