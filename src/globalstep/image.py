"""`gs.image`: functions of images.

Layer: namespace.
"""

from globalstep.lazy import namespace
from globalstep.tf1.absent import ABSENT_IN_IMAGE

_NAMES = {
    "globalstep.tf1.images.box_sampling": "sample_distorted_bounding_box",
    "globalstep.tf1.images.boxes": "crop_and_resize draw_bounding_boxes non_max_suppression",
    "globalstep.tf1.images.coding": (
        "decode_bmp decode_gif decode_image decode_jpeg decode_png encode_jpeg encode_png extract_jpeg_shape is_jpeg"
    ),
    "globalstep.tf1.images.colors": (
        "adjust_hue adjust_saturation grayscale_to_rgb hsv_to_rgb random_hue random_saturation rgb_to_grayscale "
        "rgb_to_hsv"
    ),
    "globalstep.tf1.images.geometry": (
        "central_crop crop_to_bounding_box flip_left_right flip_up_down pad_to_bounding_box random_crop "
        "random_flip_left_right random_flip_up_down resize_image_with_crop_or_pad "
        "resize_with_crop_or_pad=resize_image_with_crop_or_pad rot90 transpose=transpose_image transpose_image"
    ),
    "globalstep.tf1.images.pixel_values": (
        "adjust_brightness adjust_contrast adjust_gamma convert_image_dtype per_image_standardization "
        "per_image_whitening=per_image_standardization psnr random_brightness random_contrast total_variation"
    ),
    "globalstep.tf1.images.resizing": (
        "ResizeMethod resize=resize_images resize_area resize_bicubic resize_bilinear resize_image_with_pad "
        "resize_images resize_nearest_neighbor"
    ),
    "globalstep.tf1.images.similarity": "image_gradients sobel_edges ssim ssim_multiscale",
    "globalstep.tf1.ops.spatial_ops": "extract_image_patches",
}

__all__ = namespace(__name__, _NAMES, absent=ABSENT_IN_IMAGE)
