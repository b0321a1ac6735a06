"""`python -m benchmarks.peers.torch_rpc`: a parameter server on torch.distributed.rpc.

The form of PyTorch's own tutorials, without what costs time there: one call a step, in which the gradients go and
the fresh values come back (`rpc_sync`, with several PS `rpc_async` to all before the first wait), tensors as
arguments, a lock around the update, torch's optimizers in their fastest form for CPUs. The values of the answer are
the parameters themselves: they are not copied, so that a push of another worker may show in a part of them while
they are sent. No retries, no identities, no cuts.

Embeddings: `index_select` for a pull; a push is `index_add_` for SGD, and for Adagrad ids made unique on the PS
(`torch.unique`), then row operations, which took 2.1 ms where the sparse optimizer's step took 2.5.

Transports: "shm" is TensorPipe's shared memory with its default channels; "tcp" is its "uv" transport with the
"basic" channel, so that every byte takes the socket.
"""

from __future__ import annotations

import argparse
import os
import threading
from typing import Any

# It warns of every connection that ends.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import numpy as np
import torch
from torch import Tensor
from torch.distributed import rpc

from benchmarks.harness.workload import (
    EMBEDDING_IDS,
    EMBEDDING_WIDTH,
    HOT_ID,
    LEARNING_RATE,
    Array,
    Case,
    id_batches,
    shapes,
)
from benchmarks.programs import digits_job
from benchmarks.programs.obey import obey, serve_until_told, serving

_ADAGRAD_START = 0.1


class ParameterServer:
    """What one PS holds. Thread-safe: the RPC agent calls from its threads."""

    def __init__(self) -> None:
        # Guards all below: one push at a time, as in the tutorials.
        self.lock = threading.Lock()
        self.step = 0
        self.params: list[Tensor] = []
        self.optimizer: torch.optim.Optimizer | None = None
        self.table = torch.empty(0)
        self.accumulator = torch.empty(0)

    def make_dense(self, values: list[Tensor], rule: str, rate: float) -> None:
        """Hold parameters, and an optimizer for them."""
        self.step = 0
        self.table = self.accumulator = torch.empty(0)
        self.params = [value.clone().requires_grad_() for value in values]
        kind = torch.optim.Adam if rule == "adam" else torch.optim.SGD
        # On CPUs the fused form is the fastest for Adam, not for SGD.
        form = {"fused": True} if rule == "adam" else {"foreach": True}
        self.optimizer = kind(self.params, lr=rate, **form) if values else None

    def make_table(self, rows: int, rule: str) -> None:
        """Hold an embedding table."""
        self.make_dense([], rule, 0.0)
        self.table = torch.zeros(rows, EMBEDDING_WIDTH)
        if rule == "adagrad":
            self.accumulator = torch.full((rows, EMBEDDING_WIDTH), _ADAGRAD_START)

    def push_pull(self, gradients: list[Tensor]) -> list[Tensor]:
        """Apply gradients, count one, and give the values."""
        with self.lock:
            for param, gradient in zip(self.params, gradients, strict=True):
                param.grad = gradient
            if self.optimizer is not None:
                self.optimizer.step()
            self.step += 1
            return [param.detach() for param in self.params]

    def push_rows(self, ids: Tensor, gradients: Tensor) -> None:
        """Apply the gradients of rows, whose ids may repeat, and count one."""
        with self.lock:
            if self.accumulator.numel() == 0:
                self.table.index_add_(0, ids, gradients, alpha=-LEARNING_RATE)
            else:
                unique, inverse = torch.unique(ids, return_inverse=True)
                merged = torch.zeros(len(unique), EMBEDDING_WIDTH).index_add_(0, inverse, gradients)
                state = self.accumulator.index_select(0, unique).addcmul_(merged, merged)
                self.accumulator.index_copy_(0, unique, state)
                self.table.index_add_(0, unique, merged.div_(state.sqrt_()), alpha=-LEARNING_RATE)
            self.step += 1


_ps = ParameterServer()


def _make_dense(values: list[Tensor], rule: str, rate: float) -> None:
    _ps.make_dense(values, rule, rate)


def _make_table(rows: int, rule: str) -> None:
    _ps.make_table(rows, rule)


def _push_pull(gradients: list[Tensor]) -> list[Tensor]:
    return _ps.push_pull(gradients)


def _pull() -> tuple[list[Tensor], int]:
    with _ps.lock:
        return [param.detach() for param in _ps.params], _ps.step


def _pull_rows(ids: Tensor) -> Tensor:
    with _ps.lock:
        return _ps.table.index_select(0, ids)


def _push_rows(ids: Tensor, gradients: Tensor) -> None:
    _ps.push_rows(ids, gradients)


def _increment() -> int:
    with _ps.lock:
        _ps.step += 1
        return _ps.step


class TorchWorker:
    """See obey.Worker. Variables and rows are spread round robin over the PS.

    Args:
        index: Of this worker.
    """

    def __init__(self, index: int) -> None:
        self.stages: dict[str, float] = {}
        self._index = index
        self.leave()

    def _names(self, case: Case) -> list[list[str]]:
        """Of the Variables on each PS."""
        names = list(shapes(case))
        return [names[at :: case.ps] for at in range(case.ps)]

    def create(self, case: Case, form: str) -> None:
        """See Worker."""
        if case.kind == "digits":
            values = [param.detach() for param in _digits_model().parameters()]
            rpc.rpc_sync("ps0", _make_dense, (values, "sgd", digits_job.RATE))
            return
        for at in range(case.ps):
            if case.kind == "embedding":
                rpc.rpc_sync(f"ps{at}", _make_table, (case.size // case.ps, case.rule))
            else:
                named = shapes(case) if case.kind == "dense" else {}
                values = [torch.zeros(named[name]) for name in (self._names(case)[at] if named else ())]
                rpc.rpc_sync(f"ps{at}", _make_dense, (values, case.rule, LEARNING_RATE))

    def join(self, case: Case, form: str, profile: bool) -> None:
        """See Worker."""
        self._case = case
        self._ps = [f"ps{at}" for at in range(case.ps)]
        if case.kind == "dense":
            self._gradients = [[torch.zeros(shapes(case)[name]) for name in part] for part in self._names(case)]
            self.step = self._dense
        elif case.kind == "embedding":
            self._batches = id_batches(case, self._index)
            self._ids = [torch.from_numpy(batch) for batch in self._batches]
            self._rows = torch.zeros(EMBEDDING_IDS, EMBEDDING_WIDTH)
            self._at = 0
            self.step = self._embedding
        elif case.kind == "digits":
            self._join_digits()
        else:
            self.step = lambda: rpc.rpc_sync("ps0", _increment)

    def _dense(self) -> None:
        for part in self._gradients:
            for gradient in part:
                gradient.fill_(1.0)
        if len(self._ps) == 1:
            rpc.rpc_sync("ps0", _push_pull, (self._gradients[0],))
            return
        calls = [rpc.rpc_async(ps, _push_pull, (part,)) for ps, part in zip(self._ps, self._gradients, strict=True)]
        for call in calls:
            call.wait()

    def _embedding(self) -> None:
        ids = self._ids[self._at % len(self._ids)]
        self._at += 1
        if len(self._ps) == 1:
            rpc.rpc_sync("ps0", _pull_rows, (ids,))
            self._rows.fill_(1.0)
            rpc.rpc_sync("ps0", _push_rows, (ids, self._rows))
            return
        count = len(self._ps)
        mine = [torch.nonzero(ids % count == at).squeeze(1) for at in range(count)]
        local = [ids[places] // count for places in mine]
        pulls = [rpc.rpc_async(ps, _pull_rows, (part,)) for ps, part in zip(self._ps, local, strict=True)]
        values = torch.empty_like(self._rows)
        for places, pull in zip(mine, pulls, strict=True):
            values.index_copy_(0, places, pull.wait())
        self._rows.fill_(1.0)
        pushes = [
            rpc.rpc_async(ps, _push_rows, (part, self._rows[places]))
            for ps, part, places in zip(self._ps, local, mine, strict=True)
        ]
        for push in pushes:
            push.wait()

    def values(self) -> tuple[dict[str, Array], int]:
        """See Worker."""
        if self._case.kind == "embedding":
            ps = self._ps[HOT_ID % len(self._ps)]
            row = rpc.rpc_sync(ps, _pull_rows, (torch.tensor([HOT_ID // len(self._ps)]),))
            return {"row": row.numpy()}, rpc.rpc_sync("ps0", _pull)[1]
        found: dict[str, Array] = {}
        for ps, names in zip(self._ps, self._names(self._case) if self._case.kind == "dense" else [[]], strict=False):
            found |= {name: value.numpy() for name, value in zip(names, rpc.rpc_sync(ps, _pull)[0], strict=True)}
        return found, rpc.rpc_sync("ps0", _pull)[1]

    def pushed(self, steps: int) -> int:
        """See Worker."""
        return sum(int(np.sum(self._batches[at % len(self._batches)] == HOT_ID)) for at in range(steps))

    def leave(self) -> None:
        """See Worker."""
        self._case = Case("counter")
        self._ps: list[str] = []
        self._gradients: list[list[Tensor]] = []
        self._ids: list[Tensor] = []
        self._batches: list[Array] = []
        self._rows = torch.empty(0)
        self.step: Any = lambda: None
        self.train_on: Any = None
        self.accuracy: Any = None

    def _join_digits(self) -> None:
        data = digits_job.load(self._case.data)
        model = self._model = _digits_model()
        params = list(model.parameters())
        images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
        test_images, test_labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
        loss_of = torch.nn.CrossEntropyLoss()

        def train_on(batch: Array) -> None:
            model.zero_grad(set_to_none=True)
            rows = torch.from_numpy(batch)
            loss_of(model(images[rows]), labels[rows]).backward()
            fresh = rpc.rpc_sync("ps0", _push_pull, ([param.grad for param in params],))
            with torch.no_grad():
                for param, value in zip(params, fresh, strict=True):
                    param.copy_(value)

        def accuracy() -> float:
            with torch.no_grad():
                return float((model(test_images).argmax(1) == test_labels).float().mean())

        self.train_on, self.accuracy = train_on, accuracy


def _digits_model() -> torch.nn.Module:
    model = torch.nn.Sequential(
        torch.nn.Linear(64, digits_job.HIDDEN), torch.nn.ReLU(), torch.nn.Linear(digits_job.HIDDEN, 10)
    )
    hidden, hidden_biases, weights, biases = digits_job.initial()
    with torch.no_grad():
        for param, value in zip(model.parameters(), (hidden.T, hidden_biases, weights.T, biases), strict=True):
            param.copy_(torch.from_numpy(value))
    return model


def main() -> None:
    """Be a PS or a worker; all of them find each other at the rendezvous."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.torch_rpc", description="torch.distributed.rpc")
    parser.add_argument("--job", choices=("ps", "worker"), required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--counts", type=int, nargs=2, required=True, metavar="N", help="PS and workers")
    parser.add_argument("--addresses", nargs="+", required=True, metavar="HOST:PORT", help="the first is taken")
    parser.add_argument("--transport", choices=("shm", "tcp"), required=True)
    args = parser.parse_args()
    ps, workers = args.counts
    # Three processes share the cores, or more: threads of one operation would wait for each other.
    torch.set_num_threads(1)
    channels = {"_transports": ["shm"]} if args.transport == "shm" else {"_transports": ["uv"], "_channels": ["basic"]}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{args.addresses[0]}", rpc_timeout=60, **channels)
    rank = args.index if args.job == "ps" else ps + args.index
    rpc.init_rpc(f"{args.job}{args.index}", rank=rank, world_size=ps + workers, rpc_backend_options=options)
    if args.job == "ps":
        serving(args.addresses[0])
        serve_until_told()
    obey(TorchWorker(args.index))
    # A shutdown in good order would wait for all others.
    os._exit(0)


if __name__ == "__main__":
    main()
