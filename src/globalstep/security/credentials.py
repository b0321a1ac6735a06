"""Credentials of a process: the certificates and token that it shows, and those that it trusts, read from files.

Files are read again when they change, so certificates are renewed without a restart. Secrets come from files or the
environment, never from a command line, and are in no text that is logged. SECURITY.md says what they defend.

Layer: shared. Imports nothing of globalstep but errors. Threads: a TlsFiles and a Credentials are values;
CurrentTls is thread-safe.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import ssl
import stat
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from globalstep.errors import FailedPreconditionError, UnauthenticatedError

_log = logging.getLogger(__name__)

#: Environment variable of a token that all tasks of a run have in common: see ps/access/role_tokens.py.
RUN_TOKEN = "GLOBALSTEP_RUN_TOKEN"
#: How a URI begins that names a role.
ROLE_URI = "globalstep://role/"
_MARK = "role="
_ROLES = ("chief", "standby", "worker", "ps")
_LEAST_TOKEN_CHARACTERS = 16
_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """Certificates and key as they were read, PEM, and when their files were written."""

    cert: bytes
    key: bytes = field(repr=False)
    ca: bytes
    stamp: _Stamp


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files of one side of mutual TLS, all PEM.

    Attributes:
        cert: This process's certificate, with intermediate ones behind it.
        key: Its private key, not encrypted.
        ca: Certificates of the authorities that others' certificates are to be signed by.
    """

    cert: str
    key: str
    ca: str

    def stamp(self) -> _Stamp:
        """Give what changes when one of the files is written or replaced."""
        found = (os.stat(path) for path in (self.cert, self.key, self.ca))
        return tuple((item.st_mtime_ns, item.st_size, item.st_ino) for item in found)

    def read(self) -> TlsMaterial:
        """Read the files.

        Raises:
            FailedPreconditionError: If one is missing or is none, or key and certificate do not belong together.
        """
        try:
            stamp = self.stamp()
            self.context(ssl.PROTOCOL_TLS_CLIENT)
            read = [Path(path).read_bytes() for path in (self.cert, self.key, self.ca)]
            if self.stamp() != stamp:
                raise FailedPreconditionError("The certificate's files are being replaced at this moment.")
        except OSError as error:  # ssl's errors are OSErrors
            name = f"{error.filename}: " if error.filename else ""
            why = name + (getattr(error, "reason", "") or error.strerror or str(error))
            raise FailedPreconditionError(
                f"Certificate {self.cert}, key {self.key} and CA {self.ca} cannot be used: {why}. All are PEM files, "
                "and the key, without a password, is the certificate's."
            ) from None
        return TlsMaterial(read[0], read[1], read[2], stamp)

    def context(self, protocol: ssl._SSLMethod) -> ssl.SSLContext:
        """Make a context that shows the certificate and asks the other side for one.

        Args:
            protocol: ssl.PROTOCOL_TLS_CLIENT, which compares the host's name too, or ssl.PROTOCOL_TLS_SERVER.

        Raises:
            OSError: If the files do not fit.
        """
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # With no password to give, a key that has one must not make the process ask its terminal.
        context.load_cert_chain(self.cert, self.key, password=lambda: "")
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


class CurrentTls:
    """The certificates as they are now: read again once their files have changed. Thread-safe.

    Raises:
        FailedPreconditionError: If they cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        # Guards the attributes below; files are read under it. A leaf.
        self._lock = threading.Lock()
        self._material = files.read()
        self._refused: _Stamp | None = None

    def latest(self) -> TlsMaterial:
        """Give the newest certificates that can be used: while a renewal is half done the old ones stay."""
        with self._lock:
            try:
                stamp = self.files.stamp()
            except OSError:
                stamp = ()
            if stamp not in (self._material.stamp, self._refused):
                try:
                    self._material, self._refused = self.files.read(), None
                    _log.info("Certificate %s was renewed.", self.files.cert)
                except FailedPreconditionError as error:
                    self._refused = stamp
                    _log.warning("The certificates stay as they were: %s", error)
            return self._material


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a process, and how it shows them.

    Attributes:
        tls: Files for mutual TLS on every channel; None for none.
        token: The token of this process's role; "" for none.
        token_file: A file with it, read again for every new connection.
        insecure: Whether this process may go without TLS beyond its own machine, on its user's own word.
    """

    tls: TlsFiles | None = None
    token: str = field(default="", repr=False)
    token_file: str = ""
    insecure: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Credentials:
        """Take them from GLOBALSTEP_TLS_CERT, _TLS_KEY, _TLS_CA, _TOKEN, _TOKEN_FILE, _RUN_TOKEN and _INSECURE.

        Raises:
            FailedPreconditionError: If only some of the three files of TLS are named.

        >>> Credentials.from_environ({})
        Credentials(tls=None, token_file='', insecure=False)
        """
        names = [f"GLOBALSTEP_TLS_{part}" for part in ("CERT", "KEY", "CA")]
        files = [environ.get(name, "") for name in names]
        token_file = environ.get("GLOBALSTEP_TOKEN_FILE", "")
        return cls(
            tls_files(files[0], files[1], files[2], names),
            environ.get("GLOBALSTEP_TOKEN", "") or ("" if token_file else environ.get(RUN_TOKEN, "")),
            token_file,
            environ.get("GLOBALSTEP_INSECURE", "") not in ("", "0"),
        )

    def shown_token(self) -> str:
        """Give the token as it is now; "" for none.

        Raises:
            FailedPreconditionError: If its file cannot be read, or it is none.
        """
        if self.token:
            check_token(self.token, "GLOBALSTEP_TOKEN")
            return self.token
        if not self.token_file:
            return ""
        token = read_secret(self.token_file).strip()
        check_token(token, self.token_file)
        return token


def role_in_names(names: Iterable[str]) -> str | None:
    """Give the role that a common name and URIs speak of; None for none.

    Raises:
        UnauthenticatedError: If they name several, or one that there is not.

    >>> role_in_names(["role=worker"]), role_in_names(["ps-0", "globalstep://role/ps"]), role_in_names(["worker"])
    ('worker', 'ps', None)
    """
    found = {
        name.removeprefix(mark) for name in names for mark in (_MARK, ROLE_URI) if name.startswith(mark)
    }  # fmt: skip
    if not found:
        return None
    if len(found) > 1 or not found <= set(_ROLES):
        raise UnauthenticatedError(f"The certificate names the roles {sorted(found)}; one of {[*_ROLES]} is needed.")
    return found.pop()


def tls_files(cert: str, key: str, ca: str, names: list[str]) -> TlsFiles | None:
    """Put three names of files together: all of them, or none.

    Raises:
        FailedPreconditionError: If only some are given.
    """
    missing = [name for name, path in zip(names, (cert, key, ca), strict=True) if not path]
    if missing and len(missing) < 3:
        raise FailedPreconditionError(f"TLS needs {', '.join(names)}, all three; {' and '.join(missing)} is missing.")
    return None if missing else TlsFiles(cert, key, ca)


def read_secret(path: str) -> str:
    """Read a file with a secret.

    Raises:
        FailedPreconditionError: If it cannot be read, or others can. The text has its name, and nothing that is in it.
    """
    try:
        with open(path, encoding="ascii") as file:
            # As PostgreSQL does, a group may read what root gives it.
            found = os.fstat(file.fileno())
            others = found.st_mode & 0o007 or (found.st_mode & 0o070 and (found.st_uid or found.st_mode & 0o030))
            if stat.S_ISREG(found.st_mode) and others:
                raise FailedPreconditionError(
                    f"The token file {path} has mode {stat.S_IMODE(found.st_mode):04o}, so that others than its owner "
                    f"can read it: chmod 600 {path}"
                )
            return file.read()
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not plain ASCII"
        raise FailedPreconditionError(f"The token file {path} cannot be read: {why}.") from None


def check_token(token: str, where: str) -> None:
    """Refuse what is no token.

    Args:
        token: Letters, digits and signs, without spaces.
        where: Where it comes from, for the message.

    Raises:
        FailedPreconditionError: If it is too short to be a secret, or cannot be sent.
    """
    if len(token) < _LEAST_TOKEN_CHARACTERS or not all("!" <= letter <= "~" for letter in token):
        raise FailedPreconditionError(
            f"The token from {where} must have at least {_LEAST_TOKEN_CHARACTERS} characters, printable ones and no "
            "spaces. `openssl rand -hex 32` makes one."
        )


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone.

    Args:
        host: A name or an address; one in brackets is one. "" means all addresses.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0"), is_loopback("localhost")
    (True, True, False, True)
    """
    host = host.strip("[]")
    if host == "localhost":
        return True
    if not host:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {item[4][0] for item in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
