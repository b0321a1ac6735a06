"""`python -m globalstep.ps`: the process of one PS task.

Where it serves comes from `--bind`, or from TF_CONFIG. It ends with code 0 when the job is done and every
client has left, and with 3 when the job was abandoned; a SIGTERM before that ends it with 143, so that an engine
starts it again.

Layer: ps.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from types import FrameType

from globalstep.cluster.cluster import from_tf_config, is_address, is_port
from globalstep.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError
from globalstep.ps.access.interpreter_turns import InterpreterTurns
from globalstep.ps.access.security import SecurityOptions, add_arguments
from globalstep.ps.members.ending import ABANDON_VARIABLE, START_VARIABLE, Patience
from globalstep.ps.server import TCP_PORT_VARIABLE, PSOptions, PSServer, tcp_port_of
from globalstep.ps.store.cores import default_threads
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.runtime.faults import NO_FAULTS, planned_faults
from globalstep.runtime.log_format import FORMATS, VARIABLE, chosen_format, formatter
from globalstep.runtime.metrics_port import port_of_environ
from globalstep.runtime.process_env import raise_file_limit, raise_malloc_thresholds


def _port(text: str) -> int:
    """Read a port."""
    if not is_port(text):
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r}")
    return int(text)


def _tcp_port(text: str) -> int | None:
    """Read a port, or that there is none."""
    return None if text == "none" else _port(text)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="python -m globalstep.ps", description="Serve one PS task.")
    parser.add_argument(
        "--bind",
        default="",
        metavar="HOST:PORT",
        help="address to serve on; port 0 takes a free one. Default: this task's address in TF_CONFIG, or 127.0.0.1:0",
    )
    parser.add_argument("--port", type=_port, default=None, help="short for --bind 127.0.0.1:PORT")
    parser.add_argument("--max-clients", type=int, default=512, help="clients connected at once (default 512)")
    parser.add_argument(
        "--max-message-bytes",
        type=int,
        default=0,
        help="largest tensor bytes of one message, or read by one (default: half of the memory, at most 16 GiB)",
    )
    parser.add_argument(
        "--max-inflight-bytes",
        type=int,
        default=0,
        help="most bytes that are kept for all clients at a time: gradients and values under way, queues, shared "
        "memory; beyond it they wait (default: half of the memory that is free at the start)",
    )
    parser.add_argument(
        "--tcp-port",
        type=_tcp_port,
        default=tcp_port_of(os.environ),
        metavar="PORT",
        help="port of the TCP connections beside gRPC, by which values and gradients go between machines; none, or "
        f"with TLS: there are none, and they go over gRPC (default: {TCP_PORT_VARIABLE}, or a free port)",
    )
    parser.add_argument(
        "--apply-threads",
        type=int,
        default=default_threads(),
        help="threads that share the work of applying a large push (default: half of the cores, at most 4)",
    )
    parser.add_argument(
        "--log-dir",
        default="",
        metavar="DIR",
        help='directory for the write-ahead logs of runs with durability="log" (default: log/ in the run\'s directory)',
    )
    parser.add_argument(
        "--max-log-bytes",
        type=int,
        default=16 << 30,
        help='with durability="log", the chief is asked for a checkpoint when the write-ahead log is longer since the '
        "last one (default: 16 GiB; 0: never)",
    )
    add_arguments(parser)
    parser.add_argument(
        "--grace-secs", type=float, default=8.0, help="time to end in when asked to, for a checkpoint too (default 8)"
    )
    patience = Patience.from_environ(os.environ)
    parser.add_argument(
        "--start-secs",
        type=float,
        default=patience.start_secs,
        metavar="S",
        help=f"how long to wait for the first client; then it ends with code 3 (default: {START_VARIABLE}, or 7200; "
        "0: for ever)",
    )
    parser.add_argument(
        "--abandon-secs",
        type=float,
        default=patience.abandon_secs,
        metavar="S",
        help="how long to wait when no client is left and the job was not declared done; then it ends, with "
        f"code 3 if a client was lost or a task never came (default: {ABANDON_VARIABLE}, or 600; 0: for ever)",
    )
    parser.add_argument(
        "--metrics-port",
        default=port_of_environ(),
        metavar="[HOST:]PORT",
        help="where Prometheus reads this task's numbers, on 127.0.0.1 unless said (default: GLOBALSTEP_METRICS_PORT)",
    )
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default="",
        help=f"how log lines look; timed: text with the time (default: {VARIABLE}, or text)",
    )
    parser.add_argument("--log-level", default="INFO", help="DEBUG, INFO, WARNING or ERROR (default INFO)")
    return parser


def bind_address(bind: str, port: int | None, environ: dict[str, str]) -> str:
    """Decide where to serve: an argument beats the environment.

    Args:
        bind: Value of --bind, "" if not given.
        port: Value of --port.
        environ: For TF_CONFIG.

    Returns:
        "host:port".

    >>> bind_address("", 0, {})
    '127.0.0.1:0'
    """
    if bind and not is_address(bind):
        raise InvalidArgumentError(f'--bind is "host:port" with a port up to 65535, not {bind!r}.')
    if bind:
        return bind
    if port is not None:
        return f"127.0.0.1:{port}"
    config = from_tf_config(environ)
    if config.job == "ps":
        return config.cluster.task_address("ps", config.index)
    return "127.0.0.1:0"


def _server(args: argparse.Namespace) -> PSServer:
    planned = planned_faults()
    return PSServer(
        PSOptions(
            bind=bind_address(args.bind, args.port, dict(os.environ)),
            max_clients=args.max_clients,
            max_message_bytes=args.max_message_bytes,
            max_inflight_bytes=args.max_inflight_bytes,
            grace_secs=args.grace_secs,
            tcp_port=args.tcp_port,
            log_dir=args.log_dir,
            max_log_bytes=args.max_log_bytes,
            apply_threads=args.apply_threads,
            patience=Patience(max(args.start_secs, 0.0), max(args.abandon_secs, 0.0)),
            metrics_port=args.metrics_port,
            security=SecurityOptions.from_arguments(args, os.environ),
        ),
        faults=planned.faults_of_this_process() if planned is not None else NO_FAULTS,
    )


def main(argv: list[str] | None = None) -> int:
    """Serve until the job is done or a signal comes; gives the process's exit code."""
    try:
        args = make_parser().parse_args(argv)
        raise_malloc_thresholds()
        raise_file_limit()
        handler = logging.StreamHandler()
        log_format = chosen_format(args.log_format)
        handler.setFormatter(formatter(log_format))
        logging.basicConfig(level=args.log_level.upper(), handlers=[handler])
        server = _server(args)
    except (AlreadyExistsError, FailedPreconditionError, InvalidArgumentError) as error:
        print(f"python -m globalstep.ps: {error}", file=sys.stderr)
        return 2

    def on_signal(signum: int, frame: FrameType | None) -> None:
        server.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    server.start()
    # For scripts, and for people; who collects JSON does not read it.
    print(f"serving on {server.address}", flush=True)
    if log_format == "json":
        logging.getLogger("globalstep").info("PS task serves on %s", server.address)
    turns = InterpreterTurns(lambda: server.authorization.refusals, SYSTEM_CLOCK)
    server.join(meanwhile=turns.look)
    return server.exit_code


if __name__ == "__main__":
    sys.exit(main())
