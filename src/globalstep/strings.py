"""`gs.strings`: functions of strings.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.text.string_numbers": "as_string to_number=string_to_number",
    "globalstep.tf1.text.string_ops": (
        "join=string_join length=string_length lower=string_lower reduce_join regex_full_match regex_replace split "
        "strip=string_strip substr to_hash_bucket=string_to_hash_bucket "
        "to_hash_bucket_fast=string_to_hash_bucket_fast to_hash_bucket_strong=string_to_hash_bucket_strong "
        "upper=string_upper"
    ),
}

__all__ = namespace(
    __name__,
    _NAMES,
    absent=dict.fromkeys(
        ("bytes_split", "format", "ngrams", "unicode_decode", "unicode_encode", "unicode_script",
         "unicode_split", "unicode_transcode", "unsorted_segment_join"),
        "handle text in Python and feed it, or use gs.py_func.",
    ),
)  # fmt: skip
