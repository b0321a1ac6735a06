"""A PS task's security against strangers: its options, and how it listens.

Layer: ps. Threads: functions and values.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from globalstep.errors import FailedPreconditionError
from globalstep.ps.access.authorization import Authorization
from globalstep.ps.access.own_user import OwnUser, kernel_tells
from globalstep.ps.access.role_tokens import RoleTokens, RunTokens
from globalstep.ps.access.run_paths import RunPaths
from globalstep.runtime.clock import Clock
from globalstep.security.certificates import role_of_certificate
from globalstep.security.credentials import RUN_TOKEN, Credentials, CurrentTls, TlsMaterial, is_loopback, tls_files

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """Security options of a PS task.

    Attributes:
        credentials: What it shows, and which callers it believes.
        tokens_file: Of role_tokens; "" for none.
        run_token: Of role_tokens, where there is no file; "" for none.
        require_role: Refuse callers without a role; always so with a tokens_file.
        workers_assign: Whether the role worker may assign to Variables.
        run_root: See RunPaths.
    """

    credentials: Credentials = field(default_factory=Credentials)
    tokens_file: str = ""
    run_token: str = field(default="", repr=False)
    require_role: bool = False
    workers_assign: bool = True
    run_root: str = ""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> SecurityOptions:
        """Take them from the environment: see Credentials.from_environ; GLOBALSTEP_TOKENS_FILE, or _RUN_TOKEN.

        Raises:
            FailedPreconditionError: As Credentials.from_environ.
        """
        credentials, run_token = Credentials.from_environ(environ), environ.get(RUN_TOKEN, "")
        if credentials.token == run_token:
            credentials = dataclasses.replace(credentials, token="")  # what it shows to PS tasks is made of it
        return cls(credentials, environ.get("GLOBALSTEP_TOKENS_FILE", ""), run_token)

    @classmethod
    def from_arguments(cls, args: argparse.Namespace, environ: Mapping[str, str]) -> SecurityOptions:
        """Take them from the command line, and what it does not say from the environment."""
        base = cls.from_environ(environ)
        credentials = base.credentials
        tls = tls_files(args.tls_cert, args.tls_key, args.tls_ca, names=["--tls-cert", "--tls-key", "--tls-ca"])
        return cls(
            dataclasses.replace(
                credentials, tls=tls or credentials.tls, insecure=args.insecure or credentials.insecure
            ),
            args.tokens_file or base.tokens_file,
            base.run_token,
            args.require_role,
            not args.no_worker_assigns,
            args.run_root,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command line."""
    group = parser.add_argument_group("security", "SECURITY.md has what they defend, docs/security.md how to use them")
    for name, what in (("cert", "certificate"), ("key", "private key"), ("ca", "certificates of the CA")):
        group.add_argument(
            f"--tls-{name}",
            default="",
            metavar="FILE",
            help=f"mutual TLS on all channels: {what}, PEM (default: GLOBALSTEP_TLS_{name.upper()})",
        )
    group.add_argument(
        "--tokens-file",
        default="",
        metavar="FILE",
        help="the tokens of the roles, a line each (default: GLOBALSTEP_TOKENS_FILE)",
    )
    group.add_argument(
        "--require-role", action="store_true", help="refuse callers who show no role, by a certificate or a token"
    )
    group.add_argument(
        "--no-worker-assigns", action="store_true", help="forbid role worker all but gradients, as declared"
    )
    group.add_argument(
        "--run-root", default="", metavar="DIR", help="write and read only within DIR, whatever directory a run names"
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="serve other machines without TLS, in a network that is trusted (or GLOBALSTEP_INSECURE=1)",
    )


class Security:
    """The security of one PS task. Thread-safe.

    Args:
        options: What it asks of its callers.
        bind: "host:port" that it serves on.
        clock: Time.

    Raises:
        FailedPreconditionError: If files cannot be used, or it would serve other machines without TLS.

    Attributes:
        authorization: Who may do what.
        credentials: What the task shows to other PS tasks.
    """

    def __init__(self, options: SecurityOptions, bind: str, clock: Clock) -> None:
        host = bind.rpartition(":")[0]
        credentials = options.credentials
        self._tls = CurrentTls(credentials.tls) if credentials.tls is not None else None
        if self._tls is None and not is_loopback(host):
            if not credentials.insecure:
                raise FailedPreconditionError(
                    f"{bind} is reached from other machines, and nothing says who may. Serve it with --tls-cert, "
                    "--tls-key and --tls-ca (or GLOBALSTEP_TLS_CERT, _KEY and _CA); or with --insecure (or "
                    "GLOBALSTEP_INSECURE=1), if the network is trusted. docs/security.md has the steps."
                )
            _log.warning(
                "INSECURE: anyone who reaches %s can read and change this run, and read what is sent on the way.", bind
            )
        # Guards which certificates were given to grpc last; a leaf.
        self._lock = threading.Lock()
        self._offered: object = None
        self._tokens = None
        if options.tokens_file:
            self._tokens = RoleTokens(options.tokens_file, clock)
        elif options.run_token:
            self._tokens = RunTokens(options.run_token)
        self._credentials = credentials
        # Within one machine, and without a word of who may call, it is its user who may.
        self._own_user: OwnUser | None = None
        if self._tls is None and self._tokens is None and not credentials.insecure:
            if kernel_tells():
                self._own_user = OwnUser()
            else:
                _log.warning("This kernel does not say whose a connection is: every user of this machine may call.")
        self.authorization = Authorization(
            clock,
            self._tokens,
            require_role=options.require_role or self._names_a_role(),
            workers_assign=options.workers_assign,
            paths=RunPaths(options.run_root),
            own_user=self._own_user,
        )

    def _names_a_role(self) -> bool:
        """Whether this task's own certificate names a role: then its callers' certificates have to as well."""
        return self._tls is not None and role_of_certificate(self._tls.latest().cert) is not None

    @property
    def credentials(self) -> Credentials:
        """The credentials that the task shows to other PS tasks now."""
        mine = self._credentials
        if mine.token or mine.token_file or self._tokens is None:
            return mine
        return dataclasses.replace(mine, token=self._tokens.of_ps())

    def add_port(self, server: grpc.Server, bind: str) -> int:
        """Have a grpc server listen; gives the port, 0 if it cannot.

        The certificates are looked at for every connection that is made, so renewed ones are taken up at once.
        """
        if self._tls is None:
            port = server.add_insecure_port(bind)
            if self._own_user is not None:
                self._own_user.address = f"{bind.rpartition(':')[0]}:{port}"
            return port
        material = self._tls.latest()
        self._offered = material.stamp
        offered = _configuration(material)
        return server.add_secure_port(
            bind, grpc.dynamic_ssl_server_credentials(offered, self._renewed, require_client_authentication=True)
        )

    def _renewed(self) -> Any:
        """Give the certificates to serve with from now on, if they are others than before.

        To give the same ones again is not only a waste: grpc takes the old ones away from under handshakes that
        begin at the same moment (gRPC 1.85), which ends the process. So one thread gives each of them once.
        """
        assert self._tls is not None
        material = self._tls.latest()
        with self._lock:
            if material.stamp == self._offered:
                return None
            self._offered = material.stamp
        return _configuration(material)


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.cert)], material.ca)
