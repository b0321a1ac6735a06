"""Variables: named arrays that the parameter servers hold, and the nodes that set them.

A `Variable` is a node without a function: the executor reads its value from the PS at the phase of the
node that consumes it. Everything that changes one is a `mutations.Mutation`.

Layer: tf1. `get_variable` and variable scopes are in `globalstep.tf1.variables.variable_scope`; the functions over
collections (`global_variables_initializer`, ...) in `globalstep.tf1.variables.variable_collections`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from globalstep.dtypes import DTypeLike
from globalstep.errors import FailedPreconditionError
from globalstep.tf1.graph.graph import (
    Graph,
    GraphKeys,
    Node,
    add_to_collections,
    as_node,
    closure_of,
    get_default_graph,
    session_or_default,
)
from globalstep.tf1.graph.mutations import Mutation, MutationPart
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.variables.assignments import (
    assign,
    assign_add,
    assign_sub,
    count_up_to,
    scatter_add,
    scatter_sub,
    scatter_update,
)
from globalstep.tf1.variables.element_assignments import scatter_nd_add, scatter_nd_sub, scatter_nd_update
from globalstep.wire.declarations import OpKind, VariableDecl
from globalstep.wire.draws import Draw

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session


#: From this size on the PS fill a Variable that begins as one number: else a worker makes the whole value, to look
#: whether it is one.
_FILLED_BYTES = 1 << 20


class Variable(Node):
    """A named array on the parameter servers, shared by every worker of the run.

    Args:
        initial_value: Array, number, nested list, node, or a function of no arguments that gives one.
        trainable: Whether it is in TRAINABLE_VARIABLES, which optimizers take by default.
        collections: Collections it is in; default [GLOBAL_VARIABLES]. One in LOCAL_VARIABLES lives in
            each session instead of on the PS.
        validate_shape: When False, the initial value may have any shape, known or not.
        caching_device: Accepted as in TensorFlow; values are cached per run anyway.
        name: Wanted name; default "Variable". Made unique.
        variable_def: Accepted as in TensorFlow; must be None.
        dtype: Dtype to convert the initial value to; default the value's own.
        expected_shape: Accepted as in TensorFlow.
        import_scope: Accepted as in TensorFlow.
        constraint: Accepted and kept.
        use_resource: Accepted as in TensorFlow.
        synchronization: Accepted as in TensorFlow.
        aggregation: Accepted as in TensorFlow.
        shape: Shape where `initial_value` does not tell it.
        primary: For a slot, the Variable it belongs to; it lives on the same PS.
        optimizer: For a slot, its optimizer's name.
        slot: For a slot, its own name, e.g. "momentum".
        is_step: Whether pushes may increment it; it then lives on the sequencer.

    Raises:
        ValueError: Without an initial value, or with one of unknown shape while `validate_shape`.

    Source: TensorFlow 1.15 `tf.Variable`.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default():
    ...     w = gs.Variable([1.0, 2.0], name="w")
    >>> w
    <tf.Variable 'w:0' shape=(2,) dtype=float32_ref>
    """

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        collections: Sequence[str] | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: DTypeLike | None = None,
        expected_shape: Any = None,
        import_scope: str | None = None,
        constraint: Callable[..., Any] | None = None,
        use_resource: bool | None = None,
        synchronization: Any = None,
        aggregation: Any = None,
        shape: Any = None,
        *,
        primary: Variable | None = None,
        optimizer: str = "",
        slot: str = "",
        is_step: bool = False,
    ) -> None:
        if variable_def is not None:
            raise ValueError("variable_def is not supported: make the Variable from its initial value.")
        if initial_value is None:
            raise ValueError("initial_value must be specified.")
        graph = get_default_graph()
        self.trainable = True if trainable is None else bool(trainable)
        self.constraint = constraint
        self.primary = primary
        self.optimizer_name = optimizer
        self.slot_name = slot
        self.is_step = is_step
        self.save_slice_info: Any = None
        # An initial value runs whenever the initializer does, whatever the program is waiting for here.
        with graph.control_dependencies(None), graph.name_scope(name or "Variable") as scope:
            if callable(initial_value) and not isinstance(initial_value, Node):
                with graph.name_scope("Initializer"):
                    initial_value = initial_value()
            self._initial_value = _guarded(as_node(initial_value, dtype, name="initial_value"))
            static = self._initial_value.shape if shape is None else TensorShape(shape)
            if validate_shape and not static.is_fully_defined():
                raise ValueError(f"initial_value must have a shape specified: {self._initial_value!r}")
            super().__init__(
                "VariableV2",
                name=scope,
                dtype=self._initial_value.dtype,
                shape=static if validate_shape else TensorShape(None) if shape is None else static,
                stateful=True,
                device=None if primary is None else primary.device,
            )
            self._initializer = _initializer(self, self._initial_value)
        names = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
        #: Whether it lives in each session, or process, instead of on the PS.
        self.is_local = GraphKeys.LOCAL_VARIABLES in names
        #: Whether that is because its device names this process's task (own_variables), or it is kept by an optimizer
        #: of a Variable in LOCAL_VARIABLES: the process initializes it by itself, and checkpoints leave it out.
        self.is_own = False
        if self.trainable and GraphKeys.TRAINABLE_VARIABLES not in names:
            names.append(GraphKeys.TRAINABLE_VARIABLES)
        add_to_collections(names, self)

    @property
    def initializer(self) -> Mutation:
        """The operation that declares it to the PS and assigns its initial value."""
        return self._initializer

    @property
    def initial_value(self) -> Node:
        """The node that its initializer assigns."""
        return self._initial_value

    def initialized_value(self) -> Node:
        """Give its value, or its initial value as long as it has none.

        What another Variable's initial value should be made from, so that the order in which
        initializers run does not matter.
        """
        return Node(
            "InitializedValue", (self._initial_value,), name=f"{self.op_name.rpartition('/')[2]}_initialized",
            dtype=self.dtype, shape=self._shape, attrs={"variable": self}, stateful=True,
        )  # fmt: skip

    def read_value(self) -> Node:
        """Give a node that reads it; under control dependencies, after them."""
        with self.graph.name_scope(f"{self.op_name}/"):
            return Node("Identity", (self,), name="read", dtype=self.dtype, shape=self._shape)

    def value(self) -> Node:
        """Give the node of its value: the Variable itself."""
        return self

    #: What optimizers that programs write ask for.
    _ref = value

    def assign(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Mutation:
        """Make the op that sets it to `value`; its value is the new one. See `gs.assign`."""
        return assign(self, value, use_locking=use_locking, name=name)

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Mutation:
        """Make the op that adds `delta`; its value is the new one. See `gs.assign_add`."""
        return assign_add(self, delta, use_locking=use_locking, name=name)

    def assign_sub(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Mutation:
        """Make the op that subtracts `delta`; its value is the new one. See `gs.assign_sub`."""
        return assign_sub(self, delta, use_locking=use_locking, name=name)

    count_up_to = count_up_to
    scatter_nd_add = scatter_nd_add
    scatter_nd_sub = scatter_nd_sub
    scatter_nd_update = scatter_nd_update

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Mutation:
        """Make the op that adds an IndexedSlices to its rows."""
        return scatter_add(self, sparse_delta.indices, sparse_delta.values, use_locking, name)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Mutation:
        """Make the op that subtracts an IndexedSlices from its rows."""
        return scatter_sub(self, sparse_delta.indices, sparse_delta.values, use_locking, name)

    def scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Mutation:
        """Make the op that sets its rows to those of an IndexedSlices."""
        return scatter_update(self, sparse_delta.indices, sparse_delta.values, use_locking, name)

    def eval(  # type: ignore[override]
        self, session: Session | None = None, feed_dict: dict[Any, Any] | None = None
    ) -> Any:
        """Give the value, run in `session` or in the default session; a Variable's takes the session first."""
        return super().eval(feed_dict, session)

    def load(self, value: Any, session: Session | None = None) -> None:
        """Set it to `value` at once, in `session` or the default session.

        Raises:
            ValueError: Without any session.
        """
        no_session = "Either session argument should be provided or default session should be established"
        chosen = session_or_default(session, no_session)
        chosen.run(self._initializer, {self._initial_value: np.asarray(value, self.dtype.as_numpy_dtype)})

    @property
    def counts_as_step(self) -> bool:
        """Whether pushes increment it: it is marked as a step, or is an integer in the collection GLOBAL_STEP."""
        if self.is_local or not self.dtype.is_integer or self.shape.ndims != 0:
            return False
        return self.is_step or any(step is self for step in self.graph.get_collection(GraphKeys.GLOBAL_STEP))

    def declaration(self, shape: tuple[int, ...] | None = None, shard: int = 0) -> VariableDecl:
        """Give it as the PS knows it.

        Args:
            shape: Its shape, where only the initial value tells (validate_shape=False).
            shard: The PS that holds it.

        Raises:
            FailedPreconditionError: If its shape is not known and not given.
        """
        if shape is None:
            if not self.shape.is_fully_defined():
                raise FailedPreconditionError(
                    f"The shape of Variable {self.op_name!r} is {self.shape} until its initializer runs."
                )
            shape = tuple(int(size) for size in self.shape)
        return VariableDecl(
            name=self.op_name,
            dtype=self.dtype.name,
            shape=shape,
            shard=shard,
            trainable=self.trainable,
            is_step=self.is_step,
            primary="" if self.primary is None else self.primary.op_name,
            optimizer=self.optimizer_name,
            slot=self.slot_name,
        )

    def __bool__(self) -> bool:
        # As in TensorFlow, whose Variables are no tensors: programs write `average if average else variable`.
        return True

    def __iter__(self) -> NoReturn:
        raise TypeError("'Variable' object is not iterable.")

    def __repr__(self) -> str:
        return f"<tf.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}_ref>"


def _guarded(value: Node) -> Node:
    """Give an initial value that is computed from what other Variables begin with, as long as they have no value."""
    needed = closure_of([value], lambda node: () if node.op_type == "InitializedValue" else node.inputs)
    if not any(isinstance(node, Variable) for node in needed):
        return value
    made: dict[Node, Node] = {}
    for node in [one for one in value.graph.nodes if one in needed]:
        if isinstance(node, Variable):
            made[node] = node.initialized_value()
        elif type(node) is Node and any(source in made for source in node.inputs):
            # What is saved is the other node's.
            attrs = {key: item for key, item in node.attrs.items() if key != "saved"}
            inputs, name = [made.get(source, source) for source in node.inputs], node.op_name.rpartition("/")[2]
            made[node] = Node(
                node.op_type, inputs, fn=node.own_fn, name=name, dtype=node._dtype, shape=node.shape,
                attrs=attrs, stateful=node.stateful, control_inputs=node.control_inputs,
            )  # fmt: skip
    return made.get(value, value)


def _initializer(variable: Variable, value: Node) -> Mutation:
    """Make a Variable's initializer, beside it; values that are large and one number, or drawn, are made on the PS."""
    fill = value.attrs.get("fill")
    sizes = [int(size) for size in variable.shape] if variable.shape.is_fully_defined() else []
    if isinstance(fill, Draw) or (
        isinstance(fill, (bool, int, float))
        and variable.dtype.is_floating
        and math.prod(sizes) * np.dtype(variable.dtype.as_numpy_dtype).itemsize > _FILLED_BYTES
    ):
        part = MutationPart(OpKind.ASSIGN, variable, fill=fill, declare=True)
    else:
        part = MutationPart(OpKind.ASSIGN, variable, value, declare=True)
    initializer = Mutation([part], op_type="Assign", name="Assign")
    initializer.device = variable.device
    return initializer


def begin_with(variable: Variable, value: Node) -> None:
    """Give a Variable another initial value; ops that were made of its old initializer keep that.

    Args:
        variable: The Variable.
        value: A node of its dtype and shape.
    """
    with variable.graph.control_dependencies(None), variable.graph.name_scope(f"{variable.op_name}/"):
        variable._initial_value = value
        variable._initializer = _initializer(variable, value)


def variables_of(graph: Graph) -> list[Variable]:
    """All Variables of a graph in order of creation, whatever collections they are in."""
    return [node for node in graph.nodes if isinstance(node, Variable)]
