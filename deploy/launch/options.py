"""Options of the commands that start a job, and what they do to its tasks.

Certificates go to all tasks, and to each the token of its role, or of the run.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Mapping, Sequence

from globalstep.cluster.run_identity import TAKE_OVER_VARIABLE
from globalstep.deploy.launch.launcher import Task
from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.ps.access.role_tokens import parse_tokens
from globalstep.runtime.log_format import FORMATS, VARIABLE, chosen_format
from globalstep.runtime.metrics_port import metrics_address, require_prometheus
from globalstep.security.credentials import RUN_TOKEN, read_secret, tls_files


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Add how many tasks there are of each kind."""
    parser.add_argument("--ps", type=int, default=1, metavar="N", help="number of PS tasks (default 1)")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="M",
        help="number of workers (default 1); without --chief the first of them is the chief",
    )  # fmt: skip
    parser.add_argument("--chief", action="store_true", help="start a chief besides the workers")


def add_evaluator(parser: argparse.ArgumentParser) -> None:
    """Add whether there is an evaluator."""
    parser.add_argument(
        "--evaluator",
        action="store_true",
        help="start an evaluator too: with gs.fit it evaluates the run's checkpoints, in place of the chief",
    )


def job_sizes(args: argparse.Namespace) -> dict[str, int]:
    """Return the cluster's jobs, each with its number of tasks; there is always one chief."""
    workers = args.workers if args.chief else args.workers - 1
    return {"chief": 1, "ps": args.ps, **({"worker": workers} if workers else {})}


def too_few(args: argparse.Namespace) -> str:
    """Say that the tasks are too few for a job; "" where they are not."""
    few = args.ps < 1 or args.workers < (0 if args.chief else 1)
    return "at least one PS and one worker (or the chief) are needed" if few else ""


def add_restarts(parser: argparse.ArgumentParser, restarts: int = 10) -> None:
    """Add how often failed tasks are started again, and how long tasks may take to end."""
    parser.add_argument(
        "--max-restarts", type=int, default=restarts, metavar="R",
        help=f"how often each failed task is started again (default {restarts})",
    )  # fmt: skip
    parser.add_argument(
        "--grace-secs", type=float, default=10.0, metavar="S",
        help="how long tasks may take to end when asked (default 10)",
    )  # fmt: skip


def add_script(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the script and its arguments, which come last."""
    parser.add_argument("script", help=f"the training script, run by every worker and the chief{more}")
    rest = parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    # argparse counts it as missing where the script is.
    rest.required = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command."""
    parser.add_argument(
        "--metrics-port", default="", metavar="[HOST:]PORT",
        help="Prometheus reads the first PS task's numbers there, those of the next at PORT + 1, and so on",
    )  # fmt: skip
    parser.add_argument(
        "--take-over", action="store_true",
        help="the chief begins its run, at its first start, even on PS tasks that serve another one, which is dropped "
        f"with what it has not saved (sets {TAKE_OVER_VARIABLE}; PS tasks that the script names itself)",
    )  # fmt: skip
    parser.add_argument(
        "--log-format", choices=FORMATS, default="",
        help=f"how log lines look; timed: each line begins with the time (default: {VARIABLE}, or text)",
    )  # fmt: skip


def apply_options(args: argparse.Namespace, tasks: Sequence[Task]) -> str:
    """Change tasks, before they are started, as the options say; gives the log format.

    Raises:
        FailedPreconditionError: If there is no prometheus-client for the ports.
        InvalidArgumentError: If the port or the format is none.
    """
    chosen = chosen_format(args.log_format)
    if args.metrics_port:
        host, port = metrics_address(args.metrics_port)
        require_prometheus()
        servers = [task for task in tasks if task.is_ps]
        if not 0 < port <= 65535 - len(servers):
            raise InvalidArgumentError(f"--metrics-port {args.metrics_port} leaves no room for {len(servers)} ports.")
        for number, task in enumerate(servers):
            shown = f"[{host}]" if ":" in host else host
            task.environ["GLOBALSTEP_METRICS_PORT"] = f"{shown}:{port + number}"
    for task in tasks:
        if args.take_over and task.is_chief:
            task.environ[TAKE_OVER_VARIABLE] = "1"
        # The launcher puts the time before every line, and so before those that a program prints.
        task.environ[VARIABLE] = "text" if chosen == "timed" else chosen
    return chosen


_TOKENS_FILE = "GLOBALSTEP_TOKENS_FILE"
#: Set where workers may take the chief's place.
_FAILOVER = "GLOBALSTEP_FAILOVER_SECS"
_FILES = {"tls_cert": "GLOBALSTEP_TLS_CERT", "tls_key": "GLOBALSTEP_TLS_KEY", "tls_ca": "GLOBALSTEP_TLS_CA"}
#: What an environment says of tokens and certificates.
CREDENTIALS = (*_FILES.values(), _TOKENS_FILE, "GLOBALSTEP_TOKEN_FILE", "GLOBALSTEP_TOKEN", RUN_TOKEN)
_ROLE_OF_JOB = {"chief": "chief", "master": "chief"}


def add_security(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command."""
    for name, what in (("cert", "certificate"), ("key", "private key"), ("ca", "certificates of the CA")):
        parser.add_argument(f"--tls-{name}", default="", metavar="FILE", help=f"mutual TLS for all tasks: {what}, PEM")
    parser.add_argument(
        "--tokens-file", default="", metavar="FILE", help="tokens of the roles: each task is given that of its own"
    )
    parser.add_argument(
        "--no-token", action="store_true", help="make no token for the run: every process of this user may join it"
    )


def environ_for_all(args: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Put what the options say into an environment.

    Raises:
        FailedPreconditionError: If only some files of TLS are named.
    """
    tls_files(args.tls_cert, args.tls_key, args.tls_ca, ["--tls-cert", "--tls-key", "--tls-ca"])
    named = {variable: getattr(args, option) for option, variable in _FILES.items()}
    named[_TOKENS_FILE] = args.tokens_file
    merged = {**environ, **{name: os.path.abspath(path) for name, path in named.items() if path}}
    return merged if args.no_token else with_run_token(merged)


def with_run_token(environ: Mapping[str, str]) -> dict[str, str]:
    """Make a token for a run, where nothing else says who may take part in it: all its tasks are one user's.

    Args:
        environ: Of the tasks; what it has of tokens and certificates stays.
    """
    if any(environ.get(name) for name in CREDENTIALS):
        return dict(environ)
    return {**environ, RUN_TOKEN: secrets.token_hex(32)}


def environ_of_task(environ: Mapping[str, str], job: str) -> dict[str, str]:
    """Give a task what it needs of the tokens, and nothing more: a PS task the file, all others their own token.

    Args:
        environ: With GLOBALSTEP_TOKENS_FILE, or not.
        job: The task's.

    Raises:
        FailedPreconditionError: If the file has no token for it.
    """
    path = environ.get(_TOKENS_FILE, "")
    if job == "ps" or not path:
        return dict(environ)
    role = _ROLE_OF_JOB.get(job, "worker")
    by_role = parse_tokens(read_secret(path), path)
    if role == "worker" and environ.get(_FAILOVER) and "standby" in by_role:
        role = "standby"
    tokens = by_role.get(role)
    if not tokens:
        raise FailedPreconditionError(f"The token file {path} has no token of role {role}, which job {job!r} needs.")
    rest = {name: value for name, value in environ.items() if name not in (_TOKENS_FILE, "GLOBALSTEP_TOKEN_FILE")}
    return {**rest, "GLOBALSTEP_TOKEN": tokens[0]}
