"""Credentials of the tasks of `globalstep launch`: certificates to all, to each the token of its role, or of the run.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Mapping

from globalstep.errors import FailedPreconditionError
from globalstep.ps.access.role_tokens import parse_tokens
from globalstep.security.credentials import RUN_TOKEN, read_secret, tls_files

__all__ = ["add_arguments", "environ_for_all", "environ_of_task", "with_run_token"]

_TOKENS_FILE = "GLOBALSTEP_TOKENS_FILE"
#: Set where workers may take the chief's place.
_FAILOVER = "GLOBALSTEP_FAILOVER_SECS"
_FILES = {"tls_cert": "GLOBALSTEP_TLS_CERT", "tls_key": "GLOBALSTEP_TLS_KEY", "tls_ca": "GLOBALSTEP_TLS_CA"}
_ROLE_OF_JOB = {"chief": "chief", "master": "chief"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    found = {**environ, **{name: os.path.abspath(path) for name, path in named.items() if path}}
    return found if args.no_token else with_run_token(found)


def with_run_token(environ: Mapping[str, str]) -> dict[str, str]:
    """Make a token for a run, where nothing else says who may take part in it: all its tasks are one user's.

    Args:
        environ: Of the tasks; what it has of tokens and certificates stays.
    """
    decided = (_TOKENS_FILE, "GLOBALSTEP_TOKEN", "GLOBALSTEP_TOKEN_FILE", RUN_TOKEN, *_FILES.values())
    if any(environ.get(name) for name in decided):
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
    known = parse_tokens(read_secret(path), path)
    if role == "worker" and environ.get(_FAILOVER) and "standby" in known:
        role = "standby"
    tokens = known.get(role)
    if not tokens:
        raise FailedPreconditionError(f"The token file {path} has no token of role {role}, which job {job!r} needs.")
    rest = {name: value for name, value in environ.items() if name not in (_TOKENS_FILE, "GLOBALSTEP_TOKEN_FILE")}
    return {**rest, "GLOBALSTEP_TOKEN": tokens[0]}
