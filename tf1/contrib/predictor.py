"""Functions that run a model that was saved or trained: `tf.contrib.predictor`.

Layer: tf1. Source: TensorFlow 1.15 `tensorflow/contrib/predictor`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from globalstep.tf1.estimator.model_fn import ModeKeys
from globalstep.tf1.exporting import saved_model
from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.sessions.monitored_session import MonitoredSession
from globalstep.tf1.sessions.session import Session
from globalstep.tf1.sessions.session_creators import ChiefSessionCreator


class Predictor:
    """Gives outputs for inputs, by name.

    Args:
        session: What runs the model.
        graph: The model's graph.
        feed_tensors: Name of an input -> its node.
        fetch_tensors: Name of an output -> its node.
    """

    def __init__(
        self, session: Session | MonitoredSession, graph: Graph, feed_tensors: Mapping[str, Any],
        fetch_tensors: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.session, self.graph = session, graph
        self.feed_tensors, self.fetch_tensors = dict(feed_tensors), dict(fetch_tensors)

    def __call__(self, input_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model.

        Args:
            input_dict: Name of an input -> its value.

        Returns:
            Name of an output -> its value.

        Raises:
            ValueError: For an input that the model does not have.
        """
        if unexpected := set(input_dict) - set(self.feed_tensors):
            raise ValueError(f"Got unexpected keys in input_dict: {unexpected}\nexpected: {set(self.feed_tensors)}")
        feeds = {self.feed_tensors[name]: value for name, value in input_dict.items()}
        return dict(self.session.run(self.fetch_tensors, feeds))


def from_saved_model(
    export_dir: str,
    signature_def_key: str | None = None,
    signature_def: Any = None,
    input_names: Mapping[str, str] | None = None,
    output_names: Mapping[str, str] | None = None,
    tags: Collection[str] | str | None = None,
    graph: Graph | None = None,
    config: Any = None,
) -> Predictor:
    """Make a Predictor of a saved model of globalstep.

    Args:
        export_dir: Where it is.
        signature_def_key: Which signature; default "serving_default".
        signature_def: The signature itself.
        input_names: Instead of a signature: name of an input -> name of its tensor.
        output_names: The same for outputs.
        tags: The tags that it was saved with; default "serve". A string may have several, with commas.
        graph: Graph to load it into; default a new one.
        config: The session's.

    Raises:
        ValueError: If there is no such signature, or more than one of the ways to give it.
    """
    if sum(one is not None for one in (signature_def_key, signature_def, input_names)) > 1:
        raise ValueError("You must specify at most one of signature_def_key, signature_def, and input_names.")
    graph = graph or Graph()
    session = Session(graph=graph, config=config)
    wanted = tags.split(",") if isinstance(tags, str) else list(tags or ["serve"])
    meta = saved_model.load(session, wanted, export_dir)
    if input_names is None:
        key = signature_def_key or "serving_default"
        if signature_def is None and key not in meta.signature_def:
            session.close()
            raise ValueError(f"Got signature_def_key {key!r}. Available signatures are {sorted(meta.signature_def)}.")
        signature = signature_def if signature_def is not None else meta.signature_def[key]
        input_names, output_names = _names(signature.inputs), _names(signature.outputs)
    return Predictor(session, graph, _nodes(graph, input_names), _nodes(graph, output_names or {}))


def _names(infos: Mapping[str, Any]) -> dict[str, str]:
    return {name: info.name for name, info in infos.items()}


def _nodes(graph: Graph, names: Mapping[str, str]) -> dict[str, Node]:
    return {name: graph.get_tensor_by_name(tensor) for name, tensor in names.items()}


def from_estimator(
    estimator: Any,
    serving_input_receiver_fn: Any,
    output_key: str | None = None,
    graph: Graph | None = None,
    config: Any = None,
) -> Predictor:
    """Make a Predictor of an Estimator's last checkpoint.

    Args:
        estimator: The Estimator.
        serving_input_receiver_fn: Makes its inputs.
        output_key: Which of the export outputs; default "serving_default".
        graph: Graph to build the model in; default a new one.
        config: The session's.

    Raises:
        ValueError: If there is no such output, or no checkpoint.
    """
    graph, key = graph or Graph(), output_key or "serving_default"
    with graph.as_default():
        receiver = serving_input_receiver_fn()
        spec = estimator.model_fn(receiver.features, None, ModeKeys.PREDICT, estimator.config)
        outputs = spec.export_outputs or {}
        if key not in outputs:
            raise ValueError(f"output_key {key!r} is not among the export outputs: {sorted(outputs)}.")
        signature = outputs[key].as_signature_def(receiver.receiver_tensors)
        path = estimator.latest_checkpoint()
        if path is None:
            raise ValueError(f"There is no checkpoint of the Estimator in {estimator.model_dir}.")
        session = MonitoredSession(ChiefSessionCreator(config=config, checkpoint_filename_with_path=path))
    return Predictor(session, graph, *(_nodes(graph, _names(ends)) for ends in (signature.inputs, signature.outputs)))
