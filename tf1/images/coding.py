"""Image files in memory: JPEG, PNG, GIF and BMP taken apart and put together, by Pillow.

Layer: tf1. Source: TensorFlow 1.15 `core/ops/image_ops.cc`, `core/kernels/decode_image_op.cc`.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.images.geometry import image_node
from globalstep.tf1.images.pixel_values import convert_image_dtype

_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
#: Channels of a file -> what Pillow calls them.
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}

#: What red, green and blue weigh in the grey of a PNG file, of 32768.
_GREY_OF_PNG = np.array([9798, 19235, 3735])


def _bytes(value: Any) -> bytes:
    item = np.asarray(value, dtype=object).reshape(-1)
    if item.size != 1:
        raise InvalidArgumentError(f"contents must be scalar, got shape {list(np.shape(value))}")
    return item[0] if isinstance(item[0], bytes) else str(item[0]).encode("utf-8", "surrogateescape")


def _opened(op: str, contents: bytes, formats: tuple[str, ...]) -> Any:
    # Pillow takes a tenth of a second to load; programs without images need not wait for it.
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(contents), formats=list(formats))
        image.load()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        words = ", ".join(formats)
        raise InvalidArgumentError(
            f"{op} got {len(contents)} bytes that are no whole image in one of the formats {words}: {error}"
        ) from None
    return image


def _own_channels(image: Any) -> int:
    """Give how many channels a file has, as TensorFlow counts them."""
    if image.mode == "P":
        return 4 if "transparency" in image.info else 3
    if image.mode in ("1", "L", "I", "I;16", "F"):
        return 2 if image.mode != "I;16" and "transparency" in image.info else 1
    return {"LA": 2, "RGBA": 4}.get(image.mode, 4 if "transparency" in image.info else 3)


def _pixels(image: Any, channels: int) -> Any:
    wanted = channels or _own_channels(image)
    if wanted == 1 and image.format == "PNG" and image.mode not in ("1", "L", "LA"):
        # Pillow has the same weights, but rounds.
        return ((np.asarray(image.convert("RGB"), np.int64) @ _GREY_OF_PNG) >> 15).astype(np.uint8)[:, :, None]
    mode = _MODES[wanted]
    array = np.asarray(image.convert(mode), dtype=np.uint8)
    return array if array.ndim == 3 else array[:, :, None]


def _wide_pixels(image: Any, channels: int) -> Any:
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.uint16)[:, :, None]
        if channels in (0, 1):
            return grey
        return np.concatenate([grey] * min(channels, 3) + [np.full_like(grey, 65535)] * (channels == 4), axis=2)
    return _pixels(image, channels).astype(np.uint16) * np.uint16(257)


def _decoder(op_type: str, contents: Any, dtype: DTypeLike, shape: Any, name: str | None, **attrs: Any) -> Node:
    node, attrs["stops_gradient"] = as_node(contents, "string"), True
    return Node(op_type, (node,), name=name or op_type, dtype=dtype, shape=TensorShape(shape), attrs=attrs)


def _decodes(op_type: str) -> Any:
    """Register the decorated function, of a node and the bytes of a file."""
    return lambda decode: kernel_of(op_type)(lambda node: lambda value: decode(node, _bytes(value)))


def _require_channels(channels: int, allowed: tuple[int, ...]) -> int:
    if channels not in allowed:
        raise ValueError(f"channels must be one of {', '.join(map(str, allowed))}, got {channels}")
    return channels


def decode_jpeg(
    contents: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Node:
    """Read a JPEG image.

    Args:
        contents: A scalar string: the bytes of the file.
        channels: 1 for grey, 3 for colours, 0 for what the file has.
        ratio: The image is made smaller by it while it is read: 1, 2, 4 or 8.
        fancy_upscaling: Accepted.
        try_recover_truncated: Accepted; a truncated file is refused.
        acceptable_fraction: Accepted.
        dct_method: Accepted; it is always the accurate one.
        name: Name of the node; default "DecodeJpeg".

    Returns:
        A node [height, width, channels], uint8.

    Raises:
        InvalidArgumentError: In the run, if the bytes are no image; PNG, GIF and BMP are read too, as in TensorFlow.
    """
    _require_channels(channels, (0, 1, 3))
    if ratio not in (1, 2, 4, 8):
        raise ValueError(f"ratio must be 1, 2, 4, or 8, got {ratio}")
    shape = [None, None, channels or None]
    return _decoder("DecodeJpeg", contents, "uint8", shape, name, channels=channels, ratio=ratio)


@_decodes("DecodeJpeg")
def _jpeg(node: Node, data: bytes) -> Any:
    image, ratio = _opened("decode_jpeg", data, _FORMATS), node.attrs["ratio"]
    if ratio != 1:
        image = _reduced(data, ratio) or image
    return _narrow(image, node.attrs["channels"])


def _reduced(data: bytes, ratio: int) -> Any:
    """Read a JPEG image at a part of its size; None for other formats."""
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    if image.format != "JPEG":
        return None
    image.draft(image.mode, (image.width // ratio, image.height // ratio))
    image.load()
    return image


def decode_png(contents: Any, channels: int = 0, dtype: DTypeLike = "uint8", name: str | None = None) -> Node:
    """Read a PNG image.

    Args:
        contents: A scalar string: the bytes of the file.
        channels: 1 for grey, 3 for colours, 4 for colours and opacity, 0 for what the file has.
        dtype: uint8, or uint16 for files of 16 bits a channel, which are read as such if they are grey.
        name: Name of the node; default "DecodePng".

    Returns:
        A node [height, width, channels].

    Raises:
        InvalidArgumentError: In the run, if the bytes are no image; JPEG, GIF and BMP are read too, as in TensorFlow.
    """
    _require_channels(channels, (0, 1, 3, 4))
    kind = as_dtype(dtype)
    if kind.name not in ("uint8", "uint16"):
        raise TypeError(f"decode_png gives uint8 or uint16, not {kind.name}.")
    return _decoder("DecodePng", contents, kind, [None, None, channels or None], name, channels=channels)


@_decodes("DecodePng")
def _png(node: Node, data: bytes) -> Any:
    pixels = _wide_pixels if node.dtype.name == "uint16" else _narrow
    return pixels(_opened("decode_png", data, _FORMATS), node.attrs["channels"])


def _narrow(image: Any, channels: int) -> Any:
    """Give pixels of 8 bits, of a file of 16 bits the upper ones."""
    if not image.mode.startswith("I"):
        return _pixels(image, channels)
    grey = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)[:, :, None]
    return grey if channels in (0, 1) else np.concatenate(
        [grey] * 3 + [np.full_like(grey, 255)] * (channels == 4), axis=2
    )  # fmt: skip


def decode_bmp(contents: Any, channels: int = 0, name: str | None = None) -> Node:
    """Read a BMP image.

    Args:
        contents: A scalar string: the bytes of the file.
        channels: 3 for colours, 4 for colours and opacity, 0 for what the file has.
        name: Name of the node; default "DecodeBmp".

    Returns:
        A node [height, width, channels], uint8.
    """
    _require_channels(channels, (0, 1, 3, 4))
    return _decoder("DecodeBmp", contents, "uint8", [None, None, channels or None], name, channels=channels)


@_decodes("DecodeBmp")
def _bmp(node: Node, data: bytes) -> Any:
    return _pixels(_opened("decode_bmp", data, ("BMP",)), node.attrs["channels"])


def _frames(image: Any) -> Any:
    frames = []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        frames.append(_pixels(image, 3))
    return np.stack(frames)


def decode_gif(contents: Any, name: str | None = None) -> Node:
    """Read all frames of a GIF image.

    Args:
        contents: A scalar string: the bytes of the file.
        name: Name of the node; default "DecodeGif".

    Returns:
        A node [frames, height, width, 3], uint8.
    """
    return _decoder("DecodeGif", contents, "uint8", [None, None, None, 3], name)


@_decodes("DecodeGif")
def _gif(node: Node, data: bytes) -> Any:
    return _frames(_opened("decode_gif", data, ("GIF",)))


def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: DTypeLike = "uint8",
    name: str | None = None,
    expand_animations: bool = True,
) -> Node:
    """Decode an image of any of the formats JPEG, PNG, GIF and BMP.

    Args:
        contents: A scalar string: the bytes of the file.
        channels: 1 for grey, 3 for colours, 4 for colours and opacity, 0 or None for what the file has.
        dtype: Dtype of the result; see `convert_image_dtype`.
        name: Name scope of the nodes; default "decode_image".
        expand_animations: Whether a GIF gives all of its frames, [frames, height, width, 3].

    Returns:
        A node, whose static shape is unknown if `expand_animations`.

    Raises:
        InvalidArgumentError: In the run, if the bytes are no image.
    """
    wanted = _require_channels(channels or 0, (0, 1, 3, 4))
    node = as_node(contents, "string")
    with node.graph.name_scope(name or "decode_image"):
        shape = None if expand_animations else [None, None, wanted or None]
        options = {"channels": wanted, "expand_animations": expand_animations}
        return convert_image_dtype(_decoder("DecodeImage", node, "uint8", shape, None, **options), dtype)


@_decodes("DecodeImage")
def _image(node: Node, data: bytes) -> Any:
    image, wanted = _opened("decode_image", data, _FORMATS), node.attrs["channels"]
    if image.format != "GIF":
        return _narrow(image, wanted)
    if wanted not in (0, 3):
        raise InvalidArgumentError(f"channels must be 0 or 3 when decoding GIF images, got {wanted}")
    return _frames(image) if node.attrs["expand_animations"] else _pixels(image, 3)


def is_jpeg(contents: Any, name: str | None = None) -> Node:
    """Say whether bytes begin as those of a JPEG image do.

    Args:
        contents: A scalar string.
        name: Name of the node; default "is_jpeg".

    Returns:
        A boolean scalar node.
    """
    return _decoder("IsJpeg", contents, "bool", [], name or "is_jpeg")


_decodes("IsJpeg")(lambda node, data: np.asarray(data[:3] == b"\xff\xd8\xff"))


def extract_jpeg_shape(contents: Any, output_type: DTypeLike = "int32", name: str | None = None) -> Node:
    """Give height, width and channels of a JPEG image.

    Args:
        contents: A scalar string: the bytes of the file.
        output_type: int32 or int64.
        name: Name of the node; default "ExtractJpegShape".

    Returns:
        A node [3].
    """
    return _decoder("ExtractJpegShape", contents, as_dtype(output_type), [3], name)


@_decodes("ExtractJpegShape")
def _measure(node: Node, data: bytes) -> Any:
    image = _opened("extract_jpeg_shape", data, ("JPEG",))
    return np.array([image.height, image.width, _own_channels(image)], node.dtype.as_numpy_dtype)


def _encoder(op_type: str, image: Node, name: str | None, **options: Any) -> Node:
    attrs = {"stops_gradient": True, "options": options}
    return Node(op_type, (image,), name=name or op_type, dtype="string", shape=[], attrs=attrs)


@kernel_of("EncodeJpeg", "EncodePng")
def _encode(node: Node) -> Any:
    file_format, options = node.op_type.removeprefix("Encode").upper(), node.attrs["options"]

    def encode(pixels: Any) -> Any:
        from PIL import Image

        array = np.asarray(pixels)
        channels = array.shape[-1] if array.ndim == 3 else 0
        if channels not in _MODES or (file_format == "JPEG" and channels not in (1, 3)):
            allowed = "1 or 3" if file_format == "JPEG" else "1, 2, 3, or 4"
            raise InvalidArgumentError(f"image must have {allowed} channels, got shape {list(array.shape)}")
        if array.dtype == np.uint16:
            if channels != 1:
                raise InvalidArgumentError("Images of 16 bits are written with one channel only; use uint8.")
            made = Image.fromarray(np.ascontiguousarray(array[:, :, 0]))
        else:
            made = Image.fromarray(np.ascontiguousarray(array[:, :, 0] if channels == 1 else array))
        written = io.BytesIO()
        made.save(written, file_format, **options)
        encoded = np.empty((), dtype=object)
        encoded[()] = written.getvalue()
        return encoded

    return encode


def encode_jpeg(
    image: Any,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Node:
    """Write a JPEG image.

    Args:
        image: Node or array [height, width, 1 or 3], uint8.
        format: "", "grayscale" or "rgb".
        quality: From 0 to 100.
        progressive: Whether the image appears as a whole while it is read.
        optimize_size: Whether it is made smaller, at the cost of time.
        chroma_downsampling: Whether colours have half of the image's size.
        density_unit: Unit of the densities: "in" or "cm".
        x_density: Pixels to a unit.
        y_density: The same; Pillow writes one for both axes.
        xmp_metadata: Accepted.
        name: Name of the node; default "EncodeJpeg".

    Returns:
        A scalar string node: the bytes of the file, which are Pillow's.

    Raises:
        InvalidArgumentError: In the run, if the shape is that of no such image.
    """
    if format not in ("", "grayscale", "rgb"):
        raise ValueError(f"format must be '', grayscale or rgb, got {format!r}")
    scale = 2.54 if density_unit == "cm" else 1
    return _encoder(
        "EncodeJpeg", as_node(image_node(image, (3,)), "uint8"), name, quality=int(quality), progressive=progressive,
        optimize=optimize_size, subsampling=2 if chroma_downsampling else 0,
        dpi=(round(x_density * scale), round(y_density * scale)),
    )  # fmt: skip


def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Node:
    """Write a PNG image.

    Args:
        image: Node or array [height, width, 1 to 4], uint8, or uint16 with one channel.
        compression: From 0 to 9; -1 for the default.
        name: Name of the node; default "EncodePng".

    Returns:
        A scalar string node: the bytes of the file, which are Pillow's.

    Raises:
        InvalidArgumentError: In the run, if the shape is that of no such image.
    """
    node = image_node(image, (3,))
    if node.dtype.name not in ("uint8", "uint16"):
        raise TypeError(f"encode_png takes uint8 or uint16, not {node.dtype.name}.")
    options = {} if compression < 0 else {"compress_level": int(compression)}
    return _encoder("EncodePng", node, name, **options)
