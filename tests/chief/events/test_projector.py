"""The file that TensorBoard's projector reads, written by a program under TensorFlow's names."""

import importlib

import pytest

import globalstep as gs


def test_the_projector_is_told_of_an_embedding(tmp_path):
    projector = importlib.import_module("globalstep.contrib.tensorboard.plugins.projector")
    assert gs.contrib.tensorboard.plugins.projector is projector
    with gs.Graph().as_default():
        w = gs.Variable(gs.zeros([4, 2]), name="embedding")
        config = projector.ProjectorConfig()
        embedding = config.embeddings.add()
        embedding.tensor_name, embedding.metadata_path = w.name, "words.tsv"
        with gs.summary.FileWriter(str(tmp_path)) as writer:
            projector.visualize_embeddings(writer, config)
    text = (tmp_path / "projector_config.pbtxt").read_text()
    assert text == 'embeddings {\n  tensor_name: "embedding:0"\n  metadata_path: "words.tsv"\n}\n'


def test_a_writer_without_a_folder_is_refused():
    class Nowhere:
        def get_logdir(self):
            return None

    with pytest.raises(ValueError, match="must have a logdir"):
        gs.contrib.tensorboard.plugins.projector.visualize_embeddings(
            Nowhere(), gs.contrib.tensorboard.plugins.projector.ProjectorConfig()
        )
