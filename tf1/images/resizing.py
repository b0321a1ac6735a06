"""Images of another size: bilinear, nearest, bicubic and area, by TensorFlow 1's rules.

Those are not Pillow's, nor TensorFlow 2's: without `half_pixel_centers` the first pixels of both images lie on each
other.

Layer: tf1. Source: TensorFlow 1.15 `core/kernels/resize_*_op.cc`, `image_resizer_state.h`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.images.geometry import image_node, pad_to_bounding_box, sizes_of_image
from globalstep.tf1.ops.array_ops import expand_dims, squeeze
from globalstep.tf1.ops.building import as_shape_node, sizes_of, static_value
from globalstep.tf1.ops.gradient_ops import again


class ResizeMethod:
    """The ways of `gs.image.resize_images`."""

    BILINEAR = 0
    NEAREST_NEIGHBOR = 1
    BICUBIC = 2
    AREA = 3


#: A function of an image that brings an axis of it (1 or 2) to a size.
_Resizer = Callable[[Any, int], Any]


def _scale(size: int, wanted: int, align_corners: bool) -> Any:
    if align_corners and wanted > 1:
        return np.float32((size - 1) / np.float32(wanted - 1))
    return np.float32(size / np.float32(wanted))


def _sources(size: int, wanted: int, align_corners: bool, half_pixel_centers: bool) -> Any:
    """Give the place in the old image of each pixel of the new one, along one axis."""
    places = np.arange(wanted, dtype=np.float32)
    scale = _scale(size, wanted, align_corners)
    return (places + np.float32(0.5)) * scale - np.float32(0.5) if half_pixel_centers else places * scale


def _weighted(parts: list[tuple[Any, Any]]) -> _Resizer:
    """Give the sum of pixels, each weighted: `parts` holds for each summand the pixels and the weights."""

    def apply(x: Any, axis: int) -> Any:
        column = (-1, 1, 1) if axis == 1 else (-1, 1)
        total: Any = None
        for at, weights in parts:
            part = np.take(x, at, axis) * weights.reshape(column)
            total = part if total is None else total + part
        return total

    return apply


def _linear(size: int, wanted: int, align_corners: bool, half_pixel_centers: bool) -> _Resizer:
    source = _sources(size, wanted, align_corners, half_pixel_centers)
    below = np.floor(source)
    lower = np.maximum(below, 0).astype(np.int64)
    upper = np.minimum(np.ceil(source) if half_pixel_centers else below + 1, size - 1).astype(np.int64)
    share = (source - below).astype(np.float32)

    def apply(x: Any, axis: int) -> Any:
        first = np.take(x, lower, axis)
        weights = share.reshape((-1, 1, 1) if axis == 1 else (-1, 1))
        return first + (np.take(x, upper, axis) - first) * weights

    return apply


def _nearest(size: int, wanted: int, align_corners: bool, half_pixel_centers: bool) -> _Resizer:
    places = np.arange(wanted, dtype=np.float32)
    source = (places + np.float32(0.5 if half_pixel_centers else 0)) * _scale(size, wanted, align_corners)
    # C's roundf: halves go away from zero.
    chosen = np.floor(source + np.float32(0.5)) if align_corners else np.floor(source)
    at = np.clip(chosen, 0, size - 1).astype(np.int64)
    return lambda x, axis: np.take(x, at, axis)


def _cubic_weights(share: Any, a: float) -> list[Any]:
    """Give the weights of the four pixels around a place, which lies at `share` between the middle two."""
    # TensorFlow takes them from a table with 1024 entries.
    x = np.round(share * 1024) / 1024

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(x + 1), near(x), near(1 - x), far(2 - x)]


def _cubic(size: int, wanted: int, align_corners: bool, half_pixel_centers: bool) -> _Resizer:
    source = _sources(size, wanted, align_corners, half_pixel_centers).astype(np.float64)
    below = np.floor(source)
    weights = _cubic_weights(source - below, -0.5 if half_pixel_centers else -0.75)
    places = [below.astype(np.int64) + step for step in (-1, 0, 1, 2)]
    if half_pixel_centers:
        # Pixels outside of the image weigh nothing there, and the others more.
        weights = [w * ((at >= 0) & (at < size)) for w, at in zip(weights, places, strict=True)]
        total = sum(weights)
        weights = [w / np.where(np.abs(total) < 1000 * np.finfo(np.float32).tiny, 1, total) for w in weights]
    return _weighted([(np.clip(at, 0, size - 1), w.astype(np.float32)) for at, w in zip(places, weights, strict=True)])


def _area(size: int, wanted: int, align_corners: bool, half_pixel_centers: bool) -> _Resizer:
    scale = _scale(size, wanted, align_corners)
    first = np.arange(wanted, dtype=np.float32) * scale
    last = np.arange(1, wanted + 1, dtype=np.float32) * scale
    start = np.floor(first).astype(np.int64)
    parts = []
    for step in range(int(np.max(np.ceil(last).astype(np.int64) - start))):
        at = start + step
        covered = np.maximum(np.minimum(at + 1, last) - np.maximum(at, first), 0)
        parts.append((np.clip(at, 0, size - 1), (covered / scale).astype(np.float32)))
    return _weighted(parts)


#: Of the size of an axis before and after, and both options.
_RESIZERS: dict[str, Callable[[int, int, bool, bool], _Resizer]] = {
    "ResizeArea": _area,
    "ResizeBicubic": _cubic,
    "ResizeBilinear": _linear,
    "ResizeNearestNeighbor": _nearest,
}


def _resizer_of(node: Node) -> Callable[[int, int], _Resizer]:
    options = {option: node.attrs[option] for option in ("align_corners", "half_pixel_centers")}
    return functools.partial(_RESIZERS[node.op_type], **options)


def _resized(
    op_type: str, images: Any, size: Any, name: str | None, align_corners: bool, half_pixel_centers: bool = False
) -> Node:
    """Make the node that brings images to a size; only the nearest pixels keep their dtype, and float64."""
    node, wanted = image_node(images, (4,)), as_shape_node(size)
    dtype = node.dtype if op_type == "ResizeNearestNeighbor" or node.dtype.name == "float64" else "float32"
    static = sizes_of(wanted) or [None, None]
    lead, _, _, rest = sizes_of_image(node)
    if len(static) != 2:
        raise ValueError("'size' must be a 1-D Tensor of 2 elements: new_height, new_width")

    return Node(
        op_type, (node, wanted), name=name or op_type, dtype=dtype, shape=[*lead, *static, *rest],
        attrs={"align_corners": align_corners, "half_pixel_centers": half_pixel_centers},
    )  # fmt: skip


@kernel_of(*_RESIZERS)
def _resize(node: Node) -> Any:
    resizer, dtype = _resizer_of(node), node.dtype.as_numpy_dtype

    def bring(x: Any, target: Any) -> Any:
        x = x.astype(dtype, copy=False)
        for axis, length in zip((1, 2), np.asarray(target).reshape(-1), strict=True):
            if length <= 0:
                raise InvalidArgumentError("output dimensions must be positive")
            x = resizer(np.shape(x)[axis], int(length))(x, axis)
        return x

    return bring


@gradient_of(*_RESIZERS)
def _resize_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    images, _ = node.inputs
    return Node("ResizeGrad", (grad, images), dtype=images.dtype, shape=images.shape, attrs={"of": node}), None


@kernel_of("ResizeGrad")
def _resize_back(node: Node) -> Any:
    resizer = _resizer_of(node.attrs["of"])

    def back(gradient: Any, x: Any) -> Any:
        for axis in (2, 1):
            size, wanted = x.shape[axis], gradient.shape[axis]
            # Of each old pixel, what it weighs in each new one.
            unit = np.eye(size, dtype=gradient.dtype).reshape(1, size, size, 1)
            weights = resizer(size, wanted)(unit, 1).reshape(wanted, size).astype(gradient.dtype, copy=False)
            gradient = np.moveaxis(np.tensordot(weights.T, gradient, (1, axis)), 0, axis)
        return gradient.astype(x.dtype, copy=False)

    return back


@gradient_of("ResizeGrad")
def _resize_second_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    of: Node = node.attrs["of"]
    return again(of, (grad, of.inputs[1])), None


def _resizing(op_type: str, name: str, doc: str) -> Callable[..., Node]:
    """Make the public function of a way to resize."""

    @named(name, doc)
    def function(
        images: Any, size: Any, align_corners: bool = False, name: str | None = None, half_pixel_centers: bool = False
    ) -> Node:
        return _resized(op_type, images, size, name, align_corners, half_pixel_centers)

    return function


resize_bilinear = _resizing(
    "ResizeBilinear",
    "resize_bilinear",
    """Bring a batch of images to another size by bilinear interpolation.

    Args:
        images: Node or array [batch, height, width, channels].
        size: Int vector of height and width: ints or a node.
        align_corners: Whether the middles of the corner pixels of both lie on each other.
        name: Name of the node.
        half_pixel_centers: Whether pixels are squares that have their middle at (0.5, 0.5), as in TensorFlow 2.

    Returns:
        A node, float32.
    """,
)
resize_nearest_neighbor = _resizing(
    "ResizeNearestNeighbor",
    "resize_nearest_neighbor",
    """Bring a batch of images to another size: each pixel is the nearest one, and keeps the dtype.

    `images`, `size` and the others are those of `resize_bilinear`.
    """,
)
resize_bicubic = _resizing(
    "ResizeBicubic",
    "resize_bicubic",
    """Bring a batch of images to another size by bicubic interpolation, as float32.

    `images`, `size` and the others are those of `resize_bilinear`.
    """,
)


def resize_area(images: Any, size: Any, align_corners: bool = False, name: str | None = None) -> Node:
    """Bring a batch of images to another size: each pixel is the mean of what it covers, float32.

    `images`, `size` and the others are those of `resize_bilinear`.
    """
    return _resized("ResizeArea", images, size, name, align_corners)


_BY_METHOD: dict[int, Callable[..., Node]] = {
    ResizeMethod.BILINEAR: resize_bilinear,
    ResizeMethod.NEAREST_NEIGHBOR: resize_nearest_neighbor,
    ResizeMethod.BICUBIC: resize_bicubic,
    ResizeMethod.AREA: resize_area,
}
_NAMES: dict[Any, int] = {"bilinear": 0, "nearest": 1, "bicubic": 2, "area": 3}


def resize_images(
    images: Any,
    size: Any,
    method: Any = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Node:
    """Bring images to another size.

    Args:
        images: Node or array [height, width, channels] or [batch, height, width, channels].
        size: Int vector of height and width: ints or a node.
        method: One of `ResizeMethod`, or "bilinear", "nearest", "bicubic", "area".
        align_corners: Whether the middles of the corner pixels of both lie on each other.
        preserve_aspect_ratio: Whether the result is as large as fits into `size` without being distorted.
        name: Name scope of the nodes; default "resize".

    Returns:
        A node: float32, but for the nearest, which keep their dtype, and for images that have the size already.

    Raises:
        ValueError: For a shape, a size or a method that is none.

    >>> import globalstep as gs
    >>> row = gs.image.resize_images([[[0.0], [1.0]]], [1, 4])
    >>> with gs.Session() as sess:
    ...     print(sess.run(row)[0, :, 0])
    [0.  0.5 1.  1. ]
    """
    node = image_node(images)
    if node.shape.ndims is None:
        raise ValueError("'images' contains no shape.")
    chosen = _BY_METHOD.get(_NAMES.get(method, method))
    if chosen is None:
        raise ValueError(f"Resize method is not implemented: {method}")
    with node.graph.name_scope(name or "resize"):
        wanted = as_shape_node(size)
        static = sizes_of(wanted)
        if static is None or len(static) != 2:
            raise ValueError("'size' must be a 1-D Tensor of 2 elements: new_height, new_width")
        _, height, width, _ = sizes_of_image(node)
        if preserve_aspect_ratio:
            wanted = _fitting(node, wanted)
            static = sizes_of(wanted) if wanted.op_type == "Const" else [None, None]
        if None not in (height, width) and static == [height, width]:
            return node
        batch = node if node.shape.ndims == 4 else expand_dims(node, 0)
        resized = chosen(batch, wanted, align_corners=align_corners)
        return resized if node.shape.ndims == 4 else squeeze(resized, [0])


resize = resize_images


def _fitting(node: Node, size: Node) -> Node:
    """Give the largest size within `size` that has the image's proportions."""
    _, height, width, _ = sizes_of_image(node)
    if size.op_type == "Const" and height is not None and width is not None:
        return as_shape_node([int(n) for n in _fit([height, width], static_value(size))])
    return Node("FitSize", (node, size), dtype="int32", shape=[2], attrs={"stops_gradient": True})


def _fit(shape: Any, wanted: Any) -> Any:
    have = np.asarray(shape, np.float32)
    scale = np.float32(np.min(np.asarray(wanted, np.float32) / have))
    return np.round(scale * have).astype(np.int32)


computes("FitSize", lambda x, wanted: _fit(np.shape(x)[-3:-1], wanted))


def resize_image_with_pad(
    image: Any, target_height: int, target_width: int, method: Any = ResizeMethod.BILINEAR, align_corners: bool = False
) -> Node:
    """Bring an image to a size without distortion: it is made to fit, with zeros around it.

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels], of known size.
        target_height: Height of the result.
        target_width: Width of the result.
        method: As for `resize_images`.
        align_corners: As for `resize_images`.

    Returns:
        A node.

    Raises:
        ValueError: If a size is not positive, or that of the image not known.
    """
    node = image_node(image)
    _, height, width, _ = sizes_of_image(node)
    if target_width <= 0:
        raise ValueError("target_width must be > 0.")
    if target_height <= 0:
        raise ValueError("target_height must be > 0.")
    if height is None or width is None:
        raise ValueError(f"The size of the image {node.op_name!r} must be known: use set_shape.")
    one = np.float32
    ratio = max(one(width) / one(target_width), one(height) / one(target_height))
    tall, wide = one(height) / ratio, one(width) / ratio
    rows, columns = int(tall), int(wide)
    top, left = max(0, int((one(target_height) - tall) / 2)), max(0, int((one(target_width) - wide) / 2))
    resized = resize_images(node, [rows, columns], method, align_corners)
    return pad_to_bounding_box(resized, top, left, target_height, target_width)
