"""`python -m benchmarks.programs.far_ps`: a PS task as one on another machine: no unix socket, no shared memory.

Its arguments are those of `python -m globalstep.ps`.
"""

from __future__ import annotations

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps import __main__ as task
from globalstep.ps.service import socket_server

if __name__ == "__main__":
    for kind in (pb.LANE_UNIX, pb.LANE_SHM):
        del socket_server._LISTEN[kind]
    task.main()
