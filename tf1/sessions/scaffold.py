"""Scaffold: the operations that make a model ready to train, gathered in one place.

Follows TensorFlow 1.15, python/training/monitored_session.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph.graph import GraphKeys, add_to_collection, get_collection, get_default_graph
from globalstep.tf1.hooks.checkpoint import saver_from
from globalstep.tf1.ops.control_flow_ops import group
from globalstep.tf1.ops.summary_ops import merge_all
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.variables.variable_collections import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
)

_log = logging.getLogger("globalstep")


class Scaffold:
    """Holds what creates or restores a model; what is not given is found in collections, or made.

    Args:
        init_op: Operation that initializes the model; default all global Variables' initializers.
        init_feed_dict: What to feed for it.
        init_fn: Function of (scaffold, session) to run after `init_op`, e.g. to load pre-trained values.
            Neither runs when a checkpoint was restored.
        ready_op: Node that names what is not initialized; empty when the model is ready.
        ready_for_local_init_op: The same, for what `local_init_op` needs.
        local_init_op: Operation to run in every session, after initializing or restoring.
        summary_op: Node of the merged summaries.
        saver: Saver of the checkpoints.
        copy_from_scaffold: A Scaffold to take what is not given from.
        local_init_feed_dict: What to feed for `local_init_op`.

    Raises:
        TypeError: If `copy_from_scaffold` is no Scaffold.
    """

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Any = None,
        init_fn: Callable[[Scaffold, Any], Any] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Any = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Any = None,
    ) -> None:
        if copy_from_scaffold is not None and not isinstance(copy_from_scaffold, Scaffold):
            raise TypeError("copy_from_scaffold is not a Scaffold instance.")
        other = copy_from_scaffold
        self._init_op: Any = _either(init_op, other and other._init_op)
        self._init_feed_dict: Any = _either(init_feed_dict, other and other._init_feed_dict)
        self._user_init_fn: Any = _either(init_fn, other and other._user_init_fn)
        self._ready_op: Any = _either(ready_op, other and other._ready_op)
        self._ready_for_local_init_op: Any = _either(ready_for_local_init_op, other and other._ready_for_local_init_op)
        self._local_init_op: Any = _either(local_init_op, other and other._local_init_op)
        self._local_init_feed_dict: Any = _either(local_init_feed_dict, other and other._local_init_feed_dict)
        self._summary_op: Any = _either(summary_op, other and other._summary_op)
        self._saver: Any = _either(saver, other and other._saver)

    def finalize(self) -> Scaffold:
        """Make what is missing, and freeze the graph.

        Returns:
            Itself.

        Raises:
            RuntimeError: If a collection that should name one item holds more.
        """
        defaults: tuple[tuple[str, str, Callable[[], Any]], ...] = (
            ("init_op", GraphKeys.INIT_OP, global_variables_initializer),
            ("ready_op", GraphKeys.READY_OP, report_uninitialized_variables),
            ("ready_for_local_init_op", GraphKeys.READY_FOR_LOCAL_INIT_OP, _uninitialized_globals),
            ("local_init_op", GraphKeys.LOCAL_INIT_OP, self.default_local_init_op),
            ("summary_op", GraphKeys.SUMMARY_OP, merge_all),
        )
        for name, collection, default in defaults:
            if getattr(self, f"_{name}") is None:
                setattr(self, f"_{name}", self.get_or_default(name, collection, default))
        if self._saver is None:
            self._saver = _saver_or_default()
        self._saver.build()
        get_default_graph().finalize()
        _log.info("Graph was finalized.")
        return self

    @property
    def init_op(self) -> Any:
        """The operation that initializes the model."""
        return self._init_op

    @property
    def init_feed_dict(self) -> Any:
        """The feeds of `init_op`."""
        return self._init_feed_dict

    @property
    def init_fn(self) -> Callable[[Any], Any] | None:
        """The function to run after `init_op`, of the session alone."""
        function = self._user_init_fn
        return None if function is None else lambda session: function(self, session)

    @property
    def ready_op(self) -> Any:
        """The node that is empty when the model is ready."""
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Any:
        """The node that is empty when `local_init_op` can run."""
        return self._ready_for_local_init_op

    @property
    def local_init_op(self) -> Any:
        """The operation that every session runs."""
        return self._local_init_op

    @property
    def local_init_feed_dict(self) -> Any:
        """The feeds of `local_init_op`."""
        return self._local_init_feed_dict

    @property
    def summary_op(self) -> Any:
        """The merged summaries; None if there are none."""
        return self._summary_op

    @property
    def saver(self) -> Any:
        """The saver of checkpoints."""
        return self._saver

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], Any]) -> Any:
        """Find the one item of a collection, or make it and put it there.

        Args:
            arg_name: The constructor's argument for it, for the message.
            collection_key: Name of the collection.
            default_constructor: Makes it.

        Returns:
            The item; None if the constructor gives None.

        Raises:
            RuntimeError: If the collection holds more than one.
        """
        items = get_collection(collection_key)
        if len(items) > 1:
            raise RuntimeError(
                f'More than one item in the collection "{collection_key}". Please indicate which one to use '
                f"by passing it to the tf.Scaffold constructor as:  tf.Scaffold({arg_name}=item to use)"
            )
        if items:
            return items[0]
        made = default_constructor()
        if made is not None:
            add_to_collection(collection_key, made)
        return made

    @staticmethod
    def default_local_init_op() -> Any:
        """Make the default of `local_init_op`: local Variables, and what TABLE_INITIALIZERS holds."""
        return group(local_variables_initializer(), *get_collection(GraphKeys.TABLE_INITIALIZERS))


def _either(own: Any, inherited: Any) -> Any:
    return own if own is not None else inherited


def _uninitialized_globals() -> Any:
    return report_uninitialized_variables(global_variables())


def _saver_or_default() -> Any:
    if get_collection(GraphKeys.SAVERS):
        return saver_from()
    saver = Saver(sharded=True, allow_empty=True)
    add_to_collection(GraphKeys.SAVERS, saver)
    return saver
