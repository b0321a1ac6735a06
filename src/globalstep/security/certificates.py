"""Certificates: the role that one names, whether a server's names a PS task, and why a TLS connection fails.

A role is the common name, `role=ps`, or the URI `globalstep://role/ps`; nothing else counts.

Layer: shared. Threads: functions, any number at once; a ServerRole is thread-safe.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

from globalstep.errors import UnauthenticatedError
from globalstep.security.credentials import ROLE_URI, TlsFiles, TlsMaterial, role_in_names

_EXTENSIONS, _URI = 0xA3, 0x86
_COMMON_NAME, _ALTERNATIVE_NAME = bytes([0x55, 0x04, 0x03]), bytes([0x55, 0x1D, 0x11])
_CONTEXT = 0xA0


def role_of_certificate(certificate: bytes) -> str | None:
    """Give the role that a certificate names; None for none.

    Raises:
        UnauthenticatedError: As role_in_names; or if it is no certificate.
    """
    try:
        if certificate.lstrip().startswith(b"-----") or b"-----BEGIN" in certificate:
            text = certificate.decode("ascii")
            begin, end = text.index(ssl.PEM_HEADER), text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
            certificate = ssl.PEM_cert_to_DER_cert(text[begin:end])
        return role_in_names(_names(certificate))
    except (ValueError, IndexError, StopIteration) as error:
        raise UnauthenticatedError(f"This is no certificate: {error!r}.") from None


def _names(der: bytes) -> list[str]:
    ((_, certificate),) = _fields(der)
    fields = list(_fields(next(_fields(certificate))[1]))
    # [version,] serial number, algorithm, issuer, validity, subject, key, ...
    subject = fields[5 if fields[0][0] == _CONTEXT else 4][1]
    names = []
    for _, attributes in _fields(subject):
        for _, attribute in _fields(attributes):
            (_, kind), (_, value) = _fields(attribute)
            if kind == _COMMON_NAME:
                names.append(value.decode(errors="replace"))
    # As gRPC has it: of several common names the first.
    names = names[:1]
    for tag, value in fields:
        if tag == _EXTENSIONS:
            for _, extension in _fields(next(_fields(value))[1]):
                parts = list(_fields(extension))
                if parts[0][1] == _ALTERNATIVE_NAME:
                    octets = next(_fields(parts[-1][1]))[1]
                    uris = (item.decode(errors="replace") for kind, item in _fields(octets) if kind == _URI)
                    names += [uri for uri in uris if uri.startswith(ROLE_URI)]
    return names


def _fields(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Give the tags and contents of the values in DER, one behind the other."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            more = length & 0x7F
            length, at = int.from_bytes(der[at : at + more]), at + more
        if at + length > len(der):
            raise ValueError("it is cut off")
        yield tag, der[at : at + length]
        at += length


_SECS = 1.0
#: How an HTTP/2 client begins: the preface and an empty SETTINGS frame. A server answers with a SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4
#: X509_V_ERR_... of OpenSSL.
_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_HOST = (62, 64)
_HOW_TO = "docs/security.md says how to make certificates."
#: Words of the alerts by which a server refuses -> what they mean.
_ALERTS = {
    "CERTIFICATE_REQUIRED": "it asks for a certificate, and this process showed none",
    "UNKNOWN_CA": "the certificate of this process is not signed by a CA that it knows",
    "CERTIFICATE_EXPIRED": "the certificate of this process has expired",
    "CERTIFICATE_REVOKED": "the certificate of this process was revoked",
    "BAD_CERTIFICATE": "the certificate of this process is not valid to it",
    "CERTIFICATE_UNKNOWN": "the certificate of this process is not valid to it",
    "ACCESS_DENIED": "the certificate of this process is not valid to it",
    "HANDSHAKE_FAILURE": "both sides have no cipher or kind of certificate in common",
    "DECRYPT_ERROR": "the key of this process does not go with its certificate",
    "PROTOCOL_VERSION": "both sides have no version of TLS in common",
}


def find_tls_mistake(address: str, files: TlsFiles | None) -> str:
    """Look whether TLS is what keeps a gRPC connection from being made: gRPC reports that as it does a dead server.

    The probe makes a TLS connection of its own to the same address, with the same certificates, and reads the first
    answer: with TLS 1.3 a server refuses a client's certificate only after the handshake.

    Returns:
        What is wrong, for people, and what to do about it; "" if the server does not answer at all, or nothing is
        wrong with TLS.
    """
    where = _where(address)
    try:
        return _plain_client(where, address) if files is None else _tls_client(where, address, files)
    except OSError:
        return ""


def server_certificate(address: str, files: TlsFiles) -> bytes:
    """Give the certificate that a server shows, DER, once it has proven it, and that it is of the CA and for the host.

    Raises:
        OSError: If it does not, or cannot be reached.
    """
    where = _where(address)
    context = files.context(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(where, _SECS) as plain,
        context.wrap_socket(plain, server_hostname=where[0]) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def _where(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _plain_client(where: tuple[str, int], address: str) -> str:
    """Nothing is wrong unless the server speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(where, _SECS) as plain:
        try:
            with context.wrap_socket(plain):
                pass
        except ssl.SSLError as error:
            if "ALERT" not in (error.reason or ""):
                return ""
    return (
        f"{address} speaks TLS, and this process does not: name its certificate, key and CA in GLOBALSTEP_TLS_CERT, "
        f"GLOBALSTEP_TLS_KEY and GLOBALSTEP_TLS_CA. {_HOW_TO}"
    )


def _tls_client(where: tuple[str, int], address: str, files: TlsFiles) -> str:
    context = files.context(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(where, _SECS) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=where[0]) as secured:
                # A gRPC server speaks first, unless it refuses; most do so without an alert.
                if secured.recv(1):
                    return ""
                return _refused(_own_fault(files), address, files)
        except ssl.SSLCertVerificationError as error:
            return _not_believed(error, address, files)
        except ssl.SSLError as error:
            reason = error.reason or ""
            for alert, meaning in _ALERTS.items():
                if "ALERT" in reason and alert in reason:
                    return _refused(meaning, address, files)
    return _plain_server(where, address)


def _refused(why: str, address: str, files: TlsFiles) -> str:
    return f"{address} refuses this process: {why}. It showed {files.cert} (GLOBALSTEP_TLS_CERT). {_HOW_TO}"


def _own_fault(files: TlsFiles) -> str:
    """Say what a server finds wrong with this process's certificate: it is verified here as a server does it."""
    server = files.context(ssl.PROTOCOL_TLS_SERVER)
    client = files.context(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    try:
        # TLS 1.3 needs two turns of each side, TLS 1.2 three.
        for _ in range(3):
            for side in sides:
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            return _ALERTS["CERTIFICATE_EXPIRED"]
        if error.verify_code == _NOT_YET_VALID:
            return "the certificate of this process is not valid yet"
        return f"the certificate of this process is not signed by a CA of {files.ca}: {error.verify_message}"
    return _ALERTS["UNKNOWN_CA"]


def _not_believed(error: ssl.SSLCertVerificationError, address: str, files: TlsFiles) -> str:
    what = f"is not signed by a CA of {files.ca} (GLOBALSTEP_TLS_CA): {error.verify_message}"
    if error.verify_code == _EXPIRED:
        what = "has expired: renew it; a PS task takes up the new files by itself"
    elif error.verify_code == _NOT_YET_VALID:
        what = "is not valid yet: compare both machines' clocks"
    elif error.verify_code in _WRONG_HOST:
        what = (
            f"is for other hosts ({error.verify_message}): it must have {address.rpartition(':')[0]} among its subject "
            "alternative names"
        )
    return f"The certificate of {address} {what}. {_HOW_TO}"


def _plain_server(where: tuple[str, int], address: str) -> str:
    """The server broke TLS off without an alert: look whether it speaks gRPC without."""
    with socket.create_connection(where, _SECS) as plain:
        plain.settimeout(_SECS)
        plain.sendall(_PREFACE)
        answer = b""
        with contextlib.suppress(OSError):
            while len(answer) < 9 and (more := plain.recv(9 - len(answer))):
                answer += more
    if len(answer) == 9 and answer[3] == _SETTINGS:
        return (
            f"{address} does not speak TLS, and this process does: start the PS task with --tls-cert, --tls-key and "
            f"--tls-ca, or GLOBALSTEP_TLS_CERT, _KEY and _CA. {_HOW_TO}"
        )
    return ""


def server_mistake(own: bytes, certificate: bytes, where: str) -> str:
    """Say what is wrong with the certificate of a server that should be a PS task; "" for nothing.

    Args:
        own: This process's certificate, PEM: where it names no role, nothing is asked of the server's.
        certificate: The server's, DER.
        where: The server, for the text.
    """
    try:
        if role_of_certificate(own) is None:
            return ""
        role = role_of_certificate(certificate)
    except UnauthenticatedError as error:
        return f"{where}: {error.message}"
    if role == "ps":
        return ""
    named = f"role {role!r}" if role else "no role"
    return (
        f"The certificate of {where} names {named}; a PS task's names 'ps' (CN=role=ps), and this process's own names "
        "a role, so it talks to PS tasks only. Nothing was shown to it. docs/security.md says how to make certificates."
    )


class ServerRole:
    """The server at one address, as a client knows it whose own certificate names a role. Thread-safe.

    gRPC tells a client nothing about the certificate that a server shows. So a connection is made first that says
    nothing: if its certificate is of the CA, for the host, and names role `ps`, the channel is made for that very
    certificate, and a handshake with any other fails. Nothing is shown to a server without one.

    Attributes:
        asked: Whether the server has shown its certificate since `forget`, or need not.
        mistake: The fault of the server's certificate, as far as is known; "" for none.
    """

    def __init__(self, address: str, files: TlsFiles) -> None:
        self._address = address
        self._files = files
        # Each is read and written by itself: no lock is needed.
        self.asked, self.mistake = False, ""

    def forget(self) -> None:
        """Ask anew, the next time: it may have been started again, with another certificate."""
        self.asked = False

    def roots(self, material: TlsMaterial, look: bool = True) -> bytes:
        """Give what a channel to the server believes, PEM.

        Args:
            material: This process's certificates.
            look: Ask the server; without, no server is trusted yet.
        """
        try:
            concerned = role_of_certificate(material.cert) is not None
        except UnauthenticatedError:
            concerned = True
        if not concerned:
            self.asked, self.mistake = True, ""
            return material.ca
        shown = None
        if look:
            with contextlib.suppress(OSError):  # the call will say so
                shown = server_certificate(self._address, self._files)
        mistake = server_mistake(material.cert, shown, self._address) if shown is not None else ""
        self.asked, self.mistake = shown is not None and not mistake, mistake
        # With its own certificate as the only one that is believed, no handshake succeeds.
        return ssl.DER_cert_to_PEM_cert(shown).encode() if shown is not None and not mistake else material.cert
