"""`python -m globalstep.deploy.health`: asks the PS task of this container for its health, for an engine's check.

Exit code 0 says that it serves, or that this container's task is none that serves; 1 that it does not serve.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from globalstep.cluster.cluster import from_tf_config
from globalstep.errors import FailedPreconditionError
from globalstep.security.certificates import find_tls_mistake
from globalstep.security.credentials import Credentials
from globalstep.security.secure_channel import SecureChannel


def address_to_ask(environ: Mapping[str, str], default: str) -> str:
    """Say where the PS task of this container serves.

    Returns:
        "host:port"; "" for a worker or chief, which serve nothing.

    >>> address_to_ask({"TF_CONFIG": '{"cluster": {"ps": ["a:7"]}, "task": {"type": "ps", "index": 0}}'}, "b:1")
    'a:7'
    """
    config = from_tf_config(environ)
    if config.job and config.job != "ps":
        return ""
    return config.address or default


def main(argv: Sequence[str] | None = None) -> int:
    """Ask; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m globalstep.deploy.health", description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="127.0.0.1:2222", help="where a PS serves without TF_CONFIG")
    parser.add_argument("--timeout-secs", type=float, default=4.0)
    args = parser.parse_args(argv)
    address = address_to_ask(os.environ, args.address)
    if not address:
        return 0
    try:
        credentials = Credentials.from_environ(os.environ)
        channel = SecureChannel(address, credentials).make()
    except FailedPreconditionError as error:
        print(error, file=sys.stderr)
        return 1
    with channel:
        try:
            request = health_pb2.HealthCheckRequest(service="")
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=args.timeout_secs)
        except grpc.RpcError as error:
            why = find_tls_mistake(address, credentials.tls) or error.details()
            print(f"{address} does not answer: {error.code().name} {why}", file=sys.stderr)
            return 1
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
