"""Embedding layers of `tf.contrib.layers`.

Layer: tf1. Source: TensorFlow 1.15 `contrib/layers/python/layers/encoders.py`.
"""

from __future__ import annotations

from typing import Any

from globalstep.tf1.contrib.model_variables import model_variable
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.ops.embedding_ops import embedding_lookup
from globalstep.tf1.ops.reduction_ops import reduce_mean
from globalstep.tf1.variables.variable_scope import variable_scope


def embed_sequence(
    ids: Any,
    vocab_size: int | None = None,
    embed_dim: int | None = None,
    unique: bool = False,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Node:
    """Give the row of a table for each id.

    Args:
        ids: Integer node [batch, length].
        vocab_size: How many rows there are.
        embed_dim: How long a row is.
        unique: Accepted as in TensorFlow: each row is fetched once anyway.
        initializer: Initializer of "embeddings" [vocab_size, embed_dim].
        regularizer: As for `gs.get_variable`.
        trainable: Whether optimizers train it by default.
        scope: Scope of the Variable; default "EmbedSequence", made unique.
        reuse: True to share the Variable of the scope; the sizes may then be left out.

    Returns:
        A node [batch, length, embed_dim].

    Raises:
        ValueError: Without sizes, unless reused.
    """
    with variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        table = _table(vocab_size, embed_dim, (initializer, regularizer, trainable), reuse)
        result: Node = embedding_lookup(table, ids)
        return result


def bow_encoder(
    ids: Any,
    vocab_size: int,
    embed_dim: int,
    sparse_lookup: bool = True,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Node:
    """Give the mean of the rows of each sequence, a node [batch, embed_dim]: a bag of words.

    `ids`, `vocab_size`, `embed_dim` and the others are those of `embed_sequence`; `scope` is "bow_encoder" by default,
    and `sparse_lookup` accepted as in TensorFlow.
    """
    with variable_scope(scope, "bow_encoder", [ids], reuse=reuse):
        table = _table(vocab_size, embed_dim, (initializer, regularizer, trainable), reuse)
        return reduce_mean(embedding_lookup(table, ids), 1)


def _table(vocab_size: int | None, embed_dim: int | None, options: tuple[Any, Any, bool], reuse: Any) -> Any:
    if not (reuse or (vocab_size and embed_dim)):
        raise ValueError(
            "Must specify vocab size and embedding dimension when not reusing. Got "
            f"vocab_size={vocab_size} and embed_dim={embed_dim}"
        )
    shape = None if vocab_size is None or embed_dim is None else [vocab_size, embed_dim]
    initializer, regularizer, trainable = options
    return model_variable("embeddings", shape, initializer=initializer, regularizer=regularizer, trainable=trainable)
