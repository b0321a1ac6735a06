"""Settings of TensorBoard's embedding projector: a file beside the events that names Variables and their labels.

Layer: tf1. Threads: the caller's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tensorboard.plugins.projector.projector_config_pb2 import EmbeddingInfo, ProjectorConfig, SpriteMetadata

__all__ = ["EmbeddingInfo", "ProjectorConfig", "SpriteMetadata", "visualize_embeddings"]

_FILE = "projector_config.pbtxt"


def visualize_embeddings(summary_writer: Any, config: Any) -> None:
    """Write what the projector is to show into the folder of a `gs.summary.FileWriter`.

    TensorBoard reads the values from the checkpoints there, or from those at `config.model_checkpoint_path`.

    Args:
        summary_writer: The writer; only its folder is used.
        config: A ProjectorConfig.

    Raises:
        ValueError: If the writer has no folder.
    """
    logdir = summary_writer.get_logdir()
    if not logdir:
        raise ValueError("Summary writer must have a logdir")
    Path(logdir, _FILE).write_text(text_format.MessageToString(config), encoding="utf-8")
