"""Random boxes in images that cover enough of an object, to crop training images by.

Layer: tf1. Threads: a node's generator is locked while it draws. Source: TensorFlow 1.15
`core/kernels/sample_distorted_bounding_box_op.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.ops.random_ops import Generator

#: [top, left, bottom, right] in pixels, the last two of them outside.
_Frame = tuple[int, int, int, int]


class SampledBox(NamedTuple):
    """A box, as `slice` and `draw_bounding_boxes` take it.

    Attributes:
        begin: Node [3]: its first row and column, and 0.
        size: Node [3]: its height and width, and -1 for all channels.
        bboxes: float32 node [1, 1, 4], of normalized numbers.
    """

    begin: Node
    size: Node
    bboxes: Node


def sample_distorted_bounding_box(
    image_size: Any,
    bounding_boxes: Any,
    seed: int | None = None,
    seed2: int | None = None,
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Sequence[float] | None = None,
    area_range: Sequence[float] | None = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> SampledBox:
    """Draw a box of random size, aspect and place that covers enough of one object; the whole image if none is found.

    Args:
        image_size: Integer node or array [3]: height, width, channels.
        bounding_boxes: Node or array [batch, n, 4], the objects, of normalized numbers.
        seed: Of the draws, with the graph's; see `set_random_seed`.
        seed2: Counts where `seed` is not given.
        min_object_covered: Which part of one of the objects the box must cover: number or node.
        aspect_ratio_range: Least and greatest width / height; default 0.75 and 1.33.
        area_range: Least and greatest part of the image's area; default 0.05 and 1.
        max_attempts: Draws until the whole image is taken; default 100.
        use_image_if_no_bounding_boxes: Whether the image is the object where there are none; else that is refused.
        name: Name of the nodes; default "sample_distorted_bounding_box".

    Returns:
        Begin and size, for `slice`, and the box.

    Raises:
        InvalidArgumentError: For a range that no box can be in; in the run, for boxes outside of the image, or none.

    >>> import globalstep as gs
    >>> image = gs.zeros([20, 30, 3])
    >>> objects = [[[0.0, 0.0, 0.5, 0.5]]]
    >>> begin, size, box = gs.image.sample_distorted_bounding_box(gs.shape(image), objects, area_range=[1.0, 1.0])
    >>> with gs.Session() as sess:
    ...     print(*sess.run([begin, size]))
    [0 0 0] [20 30 -1]
    """
    limits = _Limits(
        tuple(aspect_ratio_range or (0.75, 1.33)),
        tuple(area_range or (0.05, 1.0)),
        100 if max_attempts is None else max_attempts,
        bool(use_image_if_no_bounding_boxes),
    )
    limits.check()
    generator = Generator(seed2 if seed is None else seed)
    sizes, objects, covered = as_node(image_size), as_node(bounding_boxes), as_node(min_object_covered, "float32")
    label = name or "sample_distorted_bounding_box"
    parts = Node(
        "SampleDistortedBoundingBoxV2", (sizes, objects, covered), name=label, stateful=True,
        attrs={"tuple": True, "stops_gradient": True, "seed": seed, "limits": limits, "generator": generator},
    )  # fmt: skip
    return SampledBox(
        tuple_item(parts, 0, dtype=sizes.dtype, shape=[3]),
        tuple_item(parts, 1, dtype=sizes.dtype, shape=[3]),
        tuple_item(parts, 2, dtype="float32", shape=[1, 1, 4]),
    )


@computes("SampleDistortedBoundingBoxV2")
def _sample(size: Any, boxes: Any, least: Any, *, limits: Any, generator: Any) -> Any:
    if np.shape(size) != (3,):
        raise InvalidArgumentError(f"image_size must be [height, width, channels], but has shape {np.shape(size)}.")
    if least < 0:
        raise InvalidArgumentError(f"Min object covered must be non-negative: {float(least)}")
    shape = int(size[0]), int(size[1])
    frames = limits.frames(np.asarray(boxes, np.float32), shape)
    top, left, bottom, right = generator.draw(lambda random: limits.draw(random, shape, frames, float(least)))
    box = np.array([[[top, left, bottom, right]]], np.float32) / np.array([*shape, *shape], np.float32)
    begin, extent = [top, left, 0], [bottom - top, right - left, -1]
    return np.array(begin, size.dtype), np.array(extent, size.dtype), box


@dataclass(frozen=True)
class _Limits:
    """Limits of the boxes that are drawn, and how often drawing is tried."""

    aspect: tuple[float, ...]
    area: tuple[float, ...]
    attempts: int
    whole_image: bool

    def check(self) -> None:
        for what, bounds in (("Aspect ratio", self.aspect), ("Area", self.area)):
            if len(bounds) != 2:
                raise InvalidArgumentError(f"{what} range field must specify 2 dimensions, got {list(bounds)}")
            if min(bounds) <= 0:
                raise InvalidArgumentError(f"{what} range must be positive: {list(bounds)}")
        if max(self.area) > 1:
            raise InvalidArgumentError(f"Area range must be less then or equal to 1.0: {list(self.area)}")
        if self.attempts <= 0:
            raise InvalidArgumentError(f"Max attempts must be positive: {self.attempts}")

    def frames(self, boxes: Any, shape: tuple[int, int]) -> list[_Frame]:
        if boxes.ndim != 3 or boxes.shape[-1] != 4:
            raise InvalidArgumentError(f"bounding boxes must have shape [batch, num_boxes, 4], got {boxes.shape}")
        if not boxes.size:
            if self.whole_image:
                return [(0, 0, *shape)]
            raise InvalidArgumentError(
                "No bounding boxes provided as input. One must enable use_image_if_no_bounding_boxes if you wish to "
                "not provide any bounding boxes."
            )
        outside = boxes[~((boxes >= 0) & (boxes <= 1))]
        if outside.size:
            raise InvalidArgumentError(f"All bounding box coordinates must be in [0.0, 1.0]: {outside[0]}")
        pixels = (boxes.reshape(-1, 4) * np.array([*shape, *shape], np.float32)).astype(int)
        return [(int(top), int(left), int(bottom), int(right)) for top, left, bottom, right in pixels]

    def draw(
        self, random: np.random.Generator, shape: tuple[int, int], objects: Sequence[_Frame], least: float
    ) -> _Frame:
        """Give the first box drawn that covers enough of an object."""
        for _ in range(self.attempts):
            frame = self._one(random, shape)
            if frame is not None and any(_covers(frame, item, least) for item in objects):
                return frame
        return 0, 0, *shape

    def _one(self, random: np.random.Generator, shape: tuple[int, int]) -> _Frame | None:
        """Draw a box; None where rounding takes it out of the limits."""
        rows, columns = shape
        aspect = random.uniform(self.aspect[0], self.aspect[1])
        smallest, largest = (part * rows * columns for part in self.area)
        low, high = (round((pixels / aspect) ** 0.5) for pixels in (smallest, largest))
        if round(high * aspect) > columns:
            high = int((columns + 0.5 - 1e-7) / aspect)
        high = min(high, rows)
        height = int(random.integers(min(low, high), high + 1))
        if height * round(height * aspect) < smallest:
            height += 1
        if height * round(height * aspect) > largest:
            height -= 1
        width = round(height * aspect)
        if not (smallest <= height * width <= largest and 0 < height <= rows and 0 < width <= columns):
            return None
        # As in TensorFlow, a box smaller than the image never ends at its last row or column.
        top = int(random.integers(rows - height)) if height < rows else 0
        left = int(random.integers(columns - width)) if width < columns else 0
        return top, left, top + height, left + width


def _covers(frame: _Frame, item: _Frame, least: float) -> bool:
    """Whether a box covers at least that share of an object."""
    pixels = _area(item)
    if pixels < 1:
        return False
    top, left, bottom, right = (*map(max, frame[:2], item[:2]), *map(min, frame[2:], item[2:]))
    return _area((top, left, max(top, bottom), max(left, right))) / pixels >= least


def _area(frame: _Frame) -> int:
    top, left, bottom, right = frame
    return (bottom - top) * (right - left)
