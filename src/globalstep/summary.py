"""`gs.summary`: summary nodes and the writer of event files."""

from globalstep.lazy import namespace

__all__ = namespace(
    __name__,
    absent={
        "audio": "globalstep writes scalars, images, histograms and text.",
        "tensor_summary": "use gs.summary.scalar, histogram, image or text.",
    },
)
