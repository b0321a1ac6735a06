"""A client of an in-process PS that keeps what went through it, so that tests can count messages."""

from globalstep.cluster.run_policy import policy_of
from globalstep.ps.local import LocalPS
from globalstep.worker.client.client import ClusterClient


class RecordingCluster:
    """Passes everything on to a ClusterClient.

    Attributes:
        pulls: For each pull, the names read; rows are named "w[...]".
        pushes: The pushes, in order.
        results: What to answer to the next pushes instead of sending them.
    """

    def __init__(self, shards=1, clock=None):
        options = {} if clock is None else {"clock": clock}
        self.client = ClusterClient(LocalPS(shards).transports(), policy=policy_of(None), **options)
        self.pulls = []
        self.pushes = []
        self.results = []

    def pull(self, reads, layout=None):
        self.pulls.append([read.variable if read.indices is None else f"{read.variable}[...]" for read in reads])
        return self.client.pull(reads, layout)

    def push(self, push):
        self.pushes.append(push)
        return self.results.pop(0) if self.results else self.client.push(push)

    def forget(self):
        """Start counting anew."""
        self.pulls, self.pushes = [], []

    def __getattr__(self, name):
        return getattr(self.client, name)


def recorded():
    """Give a RecordingCluster for a test: what a fixture is made of."""
    cluster = RecordingCluster()
    yield cluster
    cluster.close()
