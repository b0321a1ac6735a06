"""All of `gs.summary` in one place: the summary ops, and the writers that take their values."""

from __future__ import annotations

from globalstep.chief.events.events import summary_iterator
from globalstep.files.tensorboard_protos import Event, SessionLog, Summary, SummaryDescription, TaggedRunMetadata
from globalstep.tf1.ops.file_writer import FileWriter, FileWriterCache, SummaryWriter, SummaryWriterCache
from globalstep.tf1.ops.summary_ops import histogram, image, merge, merge_all, scalar, text
from globalstep.tf1.ops.summary_ops_v0 import (
    histogram_summary,
    image_summary,
    merge_all_summaries,
    merge_summary,
    scalar_summary,
)

__all__ = [
    # gs.summary
    "Event",
    "FileWriter",
    "FileWriterCache",
    "SessionLog",
    "Summary",
    "SummaryDescription",
    "TaggedRunMetadata",
    "histogram",
    "image",
    "merge",
    "merge_all",
    "scalar",
    "text",
    # gs.train
    "SummaryWriter",
    "SummaryWriterCache",
    "summary_iterator",
    # gs, as in TensorFlow 0.x
    "histogram_summary",
    "image_summary",
    "merge_all_summaries",
    "merge_summary",
    "scalar_summary",
]
