"""Functions of images; see value_cases."""

import base64
import functools
import itertools

import numpy as np
from value_cases import Values, array, fed

#: Small files that Pillow wrote.
FILES = {
    "grey png": (
        "iVBORw0KGgoAAAANSUhEUgAAAAUAAAAECAAAAABjWKqcAAAAFklEQVR4nGNk4OHh4WG04eHh4WFBIgEQ5gF/RnZIXwAAAABJRU5ErkJggg=="
    ),
    "png": (
        "iVBORw0KGgoAAAANSUhEUgAAAAMAAAAECAIAAADETxJQAAAAM0lEQVR4nAEoANf/AawvdRQUhgMkDgHTFfJRQlS0AUYBOsHm7ZbI"
        "Mfr3ABlNSAmUc9DzxRyeEIfQd2Y/AAAAAElFTkSuQmCC"
    ),
    "png with opacity": (
        "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAYAAAC56t6BAAAAJElEQVR4nGP857/+QIiI5kemr+eeXLZx8RBg4NxZryB/6st0AK/B"
        "DGkpKSXOAAAAAElFTkSuQmCC"
    ),
    "png with palette": (
        "iVBORw0KGgoAAAANSUhEUgAAAAMAAAAEAgMAAAA2Q22UAAAADFBMVEV2rIphV4DALcs5T3dz/NJDAAAAEElEQVR4nGNIYdjBYMLw"
        "AQAH6AJBrXnmoQAAAABJRU5ErkJggg=="
    ),
    "png of 16 bits": (
        "iVBORw0KGgoAAAANSUhEUgAAAAUAAAAEEAAAAAAzyHbfAAAAEklEQVR4nGNkYOaBAhYbG/xMAD4yAvntzfgpAAAAAElFTkSuQmCC"
    ),
    "jpeg": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMU"
        "FRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU"
        "FBQUFBQUFBT/wAARCAAQABADAREAAhEBAxEB/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUF"
        "BAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVW"
        "V1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi"
        "4+Tl5ufo6erx8vP09fb3+Pn6/8QAHwEAAwEBAQEBAQEBAQAAAAAAAAECAwQFBgcICQoL/8QAtREAAgECBAQDBAcFBAQAAQJ3AAEC"
        "AxEEBSExBhJBUQdhcRMiMoEIFEKRobHBCSMzUvAVYnLRChYkNOEl8RcYGRomJygpKjU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVm"
        "Z2hpanN0dXZ3eHl6goOEhYaHiImKkpOUlZaXmJmaoqOkpaanqKmqsrO0tba3uLm6wsPExcbHyMnK0tPU1dbX2Nna4uPk5ebn6Onq"
        "8vP09fb3+Pn6/9oADAMBAAIRAxEAPwD5D8E6J9z5a+dlSPp8zy/fQ998E6Jwny1yypH5NmeX76HA+CtE4j+Wvo5Uj+pszy/fQ998"
        "FaJ/q/lrklSPybM8v30P/9k="
    ),
    "grey jpeg": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMU"
        "FRUVDA8XGBYUGBIUFRT/wAALCAAQABABAREA/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUF"
        "BAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVW"
        "V1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi"
        "4+Tl5ufo6erx8vP09fb3+Pn6/9oACAEBAAA/APnr/hW3/TL9KP8AhW3/AEy/Svqr/hW3/TL9KP8AhW3/AEy/Sv/Z"
    ),
    "gif": (
        "R0lGODdhAwAEAIIAAIXa1gmUc8NnCYBYnSRXRrY5uNMV8jlPdywAAAAAAwAEAAAIEAALGBBggEABAAcGEAgAICAAIfkEAQAABwAs"
        "AAAAAAMABACC4a242KhRp65aP7wEmYLBJ6dzeiUqAAAACBAACwwgMABAAQMBBAAAYCAgADs="
    ),
    "bmp": (
        "Qk1mAAAAAAAAADYAAAAoAAAAAwAAAAQAAAABABgAAAAAADAAAADEDgAAxA4AAAAAAAAAAAAASE0Zc5QJxfPQAAAA5sE6rlcnpVFY"
        "AAAA8hXTRlckjFjYAAAAdS+s+0PACWfDAAAA"
    ),
}


def _pair(tf, name, *shape, **options):
    x, value = fed(tf, name, *shape, **options)
    return x, [(x, value)]


def one(build, *shape, dtype=np.float32, gradient=True, known=True):
    """Give the case of a function of one image."""

    def case(tf):
        x, feeds = _pair(tf, "image", *shape, dtype=dtype, known=known)
        return Values({"image": build(tf, x)}, feeds, [x] if gradient and np.dtype(dtype).kind == "f" else [])

    return case


CASES = {}
for _method, _corners in itertools.product(range(4), (False, True)):
    for _size in ((4, 7), (9, 3), (6, 5)):
        CASES[f"resize {_method} {_corners} {_size}"] = one(
            functools.partial(
                lambda tf, x, method, corners, size: tf.image.resize_images(x, size, method, align_corners=corners),
                method=_method,
                corners=_corners,
                size=_size,
            ),
            *(2, 6, 5, 3),
            # TensorFlow has no gradient of areas.
            gradient=_method != 3,
        )
for _name in ("resize_bilinear", "resize_nearest_neighbor", "resize_bicubic"):
    for _size in ((4, 8), (11, 3)):
        CASES[f"{_name} half pixels {_size}"] = one(
            functools.partial(
                lambda tf, x, name, size: getattr(tf.image, name)(x, size, half_pixel_centers=True),
                name=_name,
                size=_size,
            ),
            *(1, 6, 5, 2),
        )
CASES |= {
    "resize bytes": one(lambda tf, x: tf.image.resize_images(x, [3, 4]), 6, 5, 3, dtype=np.uint8),
    "resize nearest bytes": one(lambda tf, x: tf.image.resize_images(x, [3, 4], 1), 6, 5, 3, dtype=np.uint8),
    "resize cubic bytes": one(lambda tf, x: tf.image.resize_images(x, [9, 4], 2), 6, 5, 3, dtype=np.uint8),
    "resize area bytes": one(lambda tf, x: tf.image.resize_images(x, [5, 2], 3), 6, 5, 3, dtype=np.uint8),
    "resize unknown": one(lambda tf, x: tf.image.resize_images(x, [3, 4]), 6, 5, 3, known=False),
    "resize keeping proportions": one(
        lambda tf, x: tf.image.resize_images(x, [4, 8], preserve_aspect_ratio=True), 6, 5, 3
    ),
    "resize with pad": one(lambda tf, x: tf.image.resize_image_with_pad(x, 4, 9), 6, 5, 3),
    "resize with pad, a batch": one(lambda tf, x: tf.image.resize_image_with_pad(x, 9, 4), 2, 6, 5, 3),
    "flip_left_right": one(lambda tf, x: tf.image.flip_left_right(x), 4, 3, 2),
    "flip_left_right, a batch": one(lambda tf, x: tf.image.flip_left_right(x), 2, 4, 3, 2),
    "flip_up_down": one(lambda tf, x: tf.image.flip_up_down(x), 4, 3, 2),
    "transpose": one(lambda tf, x: tf.image.transpose_image(x), 4, 3, 2),
    "central_crop": one(lambda tf, x: tf.image.central_crop(x, 0.5), 7, 6, 2),
    "central_crop, a batch": one(lambda tf, x: tf.image.central_crop(x, 0.7), 2, 7, 6, 2),
    "central_crop unknown": one(lambda tf, x: tf.image.central_crop(x, 0.33), 9, 8, 2, known=False),
    "crop_to_bounding_box": one(lambda tf, x: tf.image.crop_to_bounding_box(x, 1, 2, 3, 4), 7, 6, 2),
    "pad_to_bounding_box": one(lambda tf, x: tf.image.pad_to_bounding_box(x, 1, 2, 9, 9), 2, 7, 6, 2),
    "per_image_standardization": one(lambda tf, x: tf.image.per_image_standardization(x), 7, 6, 2),
    "per_image_standardization, a batch": one(lambda tf, x: tf.image.per_image_standardization(x), 3, 7, 6, 2),
    "per_image_standardization of bytes": one(
        lambda tf, x: tf.image.per_image_standardization(x), 7, 6, 2, dtype=np.uint8
    ),
    "per_image_standardization of one colour": lambda tf: {
        "image": tf.image.per_image_standardization(tf.ones([3, 3, 1]))
    },
    "adjust_brightness": one(lambda tf, x: tf.image.adjust_brightness(x, 0.2), 4, 3, 3),
    "adjust_brightness of bytes": one(lambda tf, x: tf.image.adjust_brightness(x, -0.3), 4, 3, 3, dtype=np.uint8),
    "adjust_contrast": one(lambda tf, x: tf.image.adjust_contrast(x, 1.7), 2, 4, 3, 3, gradient=False),
    "adjust_contrast of bytes": one(lambda tf, x: tf.image.adjust_contrast(x, 1.7), 4, 3, 3, dtype=np.uint8),
    "adjust_gamma": one(lambda tf, x: tf.image.adjust_gamma(x, 2.2, 0.9), 4, 3, 3),
    "adjust_hue": one(lambda tf, x: tf.image.adjust_hue(x, 0.3), 2, 4, 3, 3, gradient=False),
    "adjust_hue back": one(lambda tf, x: tf.image.adjust_hue(x, -0.4), 4, 3, 3, gradient=False),
    "adjust_hue of bytes": one(lambda tf, x: tf.image.adjust_hue(x, 0.1), 4, 3, 3, dtype=np.uint8),
    "adjust_saturation": one(lambda tf, x: tf.image.adjust_saturation(x, 1.6), 2, 4, 3, 3, gradient=False),
    "adjust_saturation of bytes": one(lambda tf, x: tf.image.adjust_saturation(x, 0.4), 4, 3, 3, dtype=np.uint8),
    "rgb_to_hsv": one(lambda tf, x: tf.image.rgb_to_hsv(x), 4, 3, 3, gradient=False),
    "rgb_to_hsv of grey": lambda tf: {
        "image": tf.image.rgb_to_hsv([[0.5, 0.5, 0.5], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    },
    "hsv_to_rgb": one(lambda tf, x: tf.image.hsv_to_rgb(x), 4, 3, 3, gradient=False),
    "rgb_to_grayscale": one(lambda tf, x: tf.image.rgb_to_grayscale(x), 2, 4, 3, 3),
    "rgb_to_grayscale of bytes": one(lambda tf, x: tf.image.rgb_to_grayscale(x), 4, 3, 3, dtype=np.uint8),
    "grayscale_to_rgb": one(lambda tf, x: tf.image.grayscale_to_rgb(x), 4, 3, 1),
    "total_variation": one(lambda tf, x: tf.image.total_variation(x), 2, 4, 3, 2),
}
for _k in range(5):
    CASES[f"rot90 {_k}"] = one(functools.partial(lambda tf, x, k: tf.image.rot90(x, k), k=_k), 4, 3, 2)
    CASES[f"rot90 {_k}, a batch"] = one(functools.partial(lambda tf, x, k: tf.image.rot90(x, k), k=_k), 2, 3, 3, 2)
for _height, _width in itertools.product((3, 6, 10), (2, 5, 8)):
    CASES[f"crop or pad {_height} {_width}"] = one(
        functools.partial(
            lambda tf, x, height, width: tf.image.resize_image_with_crop_or_pad(x, height, width),
            height=_height,
            width=_width,
        ),
        *(6, 5, 2),
    )
for _given, _wanted, _saturate in (
    ("uint8", "float32", False),
    ("uint8", "uint16", False),
    ("uint16", "uint8", True),
    ("float32", "uint8", True),
    ("float32", "float64", False),
    ("int16", "uint8", True),
):
    CASES[f"convert {_given} {_wanted}"] = one(
        functools.partial(
            lambda tf, x, wanted, saturate: tf.image.convert_image_dtype(x, getattr(tf, wanted), saturate),
            wanted=_wanted,
            saturate=_saturate,
        ),
        *(4, 3, 2),
        dtype=np.dtype(_given),
        gradient=False,
    )


def psnr(tf):
    return {"psnr": tf.image.psnr(array("a", 2, 4, 4, 3), array("b", 2, 4, 4, 3), 1.0)}


def psnr_of_bytes(tf):
    one, other = array("a", 4, 4, 3, dtype=np.uint8), array("b", 4, 4, 3, dtype=np.uint8)
    return {"psnr": tf.image.psnr(tf.constant(one), tf.constant(other), 255)}


CASES |= {"psnr": psnr, "psnr of bytes": psnr_of_bytes}


def read(function, file, **options):
    """Give the case of a function of the bytes of a file."""

    def case(tf):
        contents = tf.constant(base64.b64decode(FILES[file]))
        return {"image": getattr(tf.image, function)(contents, **options)}

    return case


for _file in FILES:
    if _file in ("jpeg", "grey jpeg"):
        # Without that TensorFlow takes a transform that is off by up to 3.
        for _channels in (0, 1, 3):
            CASES[f"decode_jpeg {_channels} of {_file}"] = read(
                "decode_jpeg", _file, channels=_channels, dct_method="INTEGER_ACCURATE"
            )
        continue
    if _file not in ("gif", "bmp"):
        for _function, _channels in itertools.product(("decode_jpeg", "decode_png", "decode_image"), (0, 1, 3)):
            CASES[f"{_function} {_channels} of {_file}"] = read(_function, _file, channels=_channels)
    CASES[f"decode_image of {_file}"] = read("decode_image", _file)
for _file in ("grey png", "png", "png with opacity"):
    CASES[f"decode_png 4 of {_file}"] = read("decode_png", _file, channels=4)
CASES |= {f"is_jpeg of {_file}": read("is_jpeg", _file) for _file in FILES}
CASES |= {
    "decode_gif": read("decode_gif", "gif"),
    "decode_bmp": read("decode_bmp", "bmp"),
    "extract_jpeg_shape": read("extract_jpeg_shape", "jpeg"),
    "extract_jpeg_shape of grey": read("extract_jpeg_shape", "grey jpeg"),
    "decode_png of 16 bits": lambda tf: {
        "image": tf.image.decode_png(tf.constant(base64.b64decode(FILES["png of 16 bits"])), dtype=tf.uint16)
    },
    "encode_png and decode_png": one(
        lambda tf, x: tf.image.decode_png(tf.image.encode_png(x)), 5, 4, 3, dtype=np.uint8
    ),
}
