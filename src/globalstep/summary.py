"""`gs.summary`: summary nodes and the writer of event files.

Layer: namespace.
"""

from globalstep.lazy import namespace

__all__ = namespace(
    __name__,
    {
        "globalstep.tf1.ops.summaries": (
            "Event FileWriter FileWriterCache SessionLog Summary SummaryDescription TaggedRunMetadata "
            "histogram image merge merge_all scalar text"
        ),
    },
    absent={
        "audio": "globalstep writes scalars, images, histograms and text.",
        "tensor_summary": "use gs.summary.scalar, histogram, image or text.",
    },
)
