"""Options of gRPC channels and servers."""

import importlib.util
import mmap
from pathlib import Path

import pytest

from globalstep.security.rpc import CHANNEL_OPTIONS, SERVER_OPTIONS, connection_limit


def test_the_installed_grpc_has_every_option_that_is_set():
    """gRPC takes any name, and does nothing for one that it does not know."""
    (folder,) = importlib.util.find_spec("grpc").submodule_search_locations
    (library,) = Path(folder).glob("_cython/cygrpc*.so")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
        names = {name for name, _ in [*CHANNEL_OPTIONS, *SERVER_OPTIONS]}
        names.add("grpc.max_allowed_incoming_connections")
        assert [name for name in sorted(names) if code.find(name.encode() + b"\0") < 0] == []


@pytest.mark.parametrize(("files", "limit"), [(128, 96), (1024, 576), (1 << 20, 1 << 19)])
def test_strangers_connections_leave_files_for_the_task(monkeypatch, files, limit):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (files, files))
    assert connection_limit(512) == limit
