"""Diagnosis of failed TLS connections: gRPC reports a TLS mistake as it does a dead server, UNAVAILABLE.

The probe makes a TLS connection of its own to the same address, with the same certificates, and reads the first
answer: with TLS 1.3 a server refuses a client's certificate only after the handshake.

Layer: shared. Threads: functions; any number at once.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

from globalstep.security.credentials import TlsFiles

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
    """Look whether TLS is what keeps a gRPC connection from being made.

    Returns:
        What is wrong, for people, and what to do about it; "" if the server does not answer at all, or nothing is
        wrong with TLS.
    """
    host, _, port = address.rpartition(":")
    where = (host.strip("[]"), int(port))
    try:
        if files is None:
            return _plain_client(where, address)
        return _tls_client(where, address, files)
    except OSError:
        return ""


def server_certificate(address: str, files: TlsFiles) -> bytes:
    """Give the certificate that a server shows, DER, once it has proven it, and that it is of the CA and for the host.

    Raises:
        OSError: If it does not, or cannot be reached.
    """
    host, _, port = address.rpartition(":")
    context = files.context(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host.strip("[]"), int(port)), _SECS) as plain,
        context.wrap_socket(plain, server_hostname=host.strip("[]")) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def pem_of(certificate: bytes) -> bytes:
    """Give a certificate in DER as PEM."""
    return ssl.DER_cert_to_PEM_cert(certificate).encode()


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
