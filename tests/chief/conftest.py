"""A session whose cluster is arrays in memory: for what the chief does with a cluster's cut."""

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from globalstep.cluster.run_policy import RunPolicy, policy_of
from globalstep.errors import FailedPreconditionError
from globalstep.files.shard_file import write_shard
from globalstep.files.storage import Probe, sees_probe
from globalstep.tf1.graph.graph import get_default_graph
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.variables.graph_program import declarations
from globalstep.wire.declarations import OpKind


@dataclass
class FakeSnapshot:
    cluster: "FakeCluster"
    index: int
    steps: dict
    ledger: bytes
    values: dict

    def read(self, names):
        return [self.values[name] for name in names]

    def write(self, directory, files, names, probe):
        written = {}
        for shard, file in files.items():
            seen = shard not in self.cluster.blind
            if seen and sees_probe(self.cluster.storage, directory, Probe(*probe)):
                mine = [(n, self.values[v]) for n, v in names.items() if self.cluster.variables[v].shard == shard]
                written[shard] = write_shard(self.cluster.storage, directory, file, mine)
            else:
                written[shard] = None
        return written


@dataclass
class FakeCluster:
    """PS tasks as dictionaries."""

    storage: object
    shards: int = 1
    #: Shards that do not see the chief's directories.
    blind: set = field(default_factory=set)
    variables: dict = field(default_factory=dict)
    optimizers: dict = field(default_factory=dict)
    values: dict = field(default_factory=dict)
    mutations: int = 0
    pushes: list = field(default_factory=list)
    #: Called when a cut is taken.
    on_snapshot: object = None
    journal: object = None
    sequencer: int = 0
    policy: RunPolicy = field(default_factory=lambda: policy_of(None))
    chief_lease: object = field(default_factory=lambda: SimpleNamespace(term=0, candidate=None))
    heartbeat: object = field(default_factory=lambda: SimpleNamespace(draining=frozenset(), take_save_asked=frozenset))

    @property
    def run(self):
        return SimpleNamespace(labels=[f"PS {shard}" for shard in range(self.shards)])

    @property
    def where(self):
        return {name: decl.shard for name, decl in self.variables.items()}

    def refresh(self):
        """Nobody else declares anything."""

    def declare(self, variables, optimizers):
        self.variables.update({decl.name: decl for decl in variables})
        self.optimizers.update({decl.name: decl for decl in optimizers})

    def push(self, push):
        for op in push.ops:
            decl = self.variables[op.variable]
            assert op.kind == OpKind.ASSIGN
            assert (op.value.dtype.name, op.value.shape) == (decl.dtype, decl.shape)
        for op in push.ops:
            self.values[op.variable] = op.value.copy()
        self.mutations += 1
        self.pushes.append(push)

    @contextlib.contextmanager
    def snapshot(self):
        if self.on_snapshot is not None:
            self.on_snapshot(self)
        missing = set(self.variables) - set(self.values)
        if missing:
            raise FailedPreconditionError(f"Attempting to use uninitialized value {missing}")
        steps = {name: int(self.values[name]) for name, decl in self.variables.items() if decl.is_step}
        values = {name: value.copy() for name, value in self.values.items()}
        yield FakeSnapshot(self, self.mutations, steps, b"ledger %d" % self.mutations, values)


class FakeSession:
    """A session that can evaluate constants and initial values."""

    def __init__(self, cluster, graph=None):
        self.cluster = cluster
        self.graph = graph or get_default_graph()

    def run(self, node):
        if node.op_name in self.cluster.values:
            return self.cluster.values[node.op_name]
        return node.fn(*[self.run(item) for item in node.inputs])

    def initialize(self):
        """Declare the graph, and set every Variable to its initial value."""
        found = declarations(self.graph, self.cluster.shards, self.cluster.policy)
        self.cluster.declare(found.variables, found.optimizers)
        for decl in found.variables:
            initial = self.graph.as_graph_element(decl.name).initial_value
            self.cluster.values[decl.name] = np.array(self.run(initial), decl.dtype)


@pytest.fixture
def make_session():
    """Give a function that makes a FakeSession: shards, storage, blind shards, graph."""
    from globalstep.files.storage import LocalStorage

    def make(shards=1, storage=None, blind=(), graph=None):
        return FakeSession(FakeCluster(storage or LocalStorage(), shards, set(blind)), graph)

    return make


@pytest.fixture
def graph():
    """A fresh default graph."""
    from globalstep.tf1.graph.graph import Graph

    with Graph().as_default() as made:
        yield made


@pytest.fixture
def no_environment(monkeypatch):
    """No variable of the environment says which task this is, and no event file stays open."""
    for name in ("TF_CONFIG", "GLOBALSTEP_RUN", "GLOBALSTEP_TAKE_OVER"):
        monkeypatch.delenv(name, raising=False)
    yield
    SummaryWriterCache.clear()
