"""`gs.strings`: functions of strings."""

from globalstep.lazy import namespace

__all__ = namespace(
    __name__,
    absent=dict.fromkeys(
        ("bytes_split", "format", "ngrams", "unicode_decode", "unicode_encode", "unicode_script",
         "unicode_split", "unicode_transcode", "unsorted_segment_join"),
        "handle text in Python and feed it, or use gs.py_func.",
    ),
)  # fmt: skip
