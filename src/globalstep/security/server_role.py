"""Check of a server's certificate: whether it names a PS task, for clients whose own certificate names a role.

gRPC tells a client nothing about the certificate that a server shows. So a connection is made first that says nothing:
if its certificate is of the CA, for the host, and names role `ps`, the channel is made for that very certificate, and a
handshake with any other fails. Nothing is shown to a server without one.

Layer: shared. Threads: a ServerRole is thread-safe.
"""

from __future__ import annotations

import threading

from globalstep.errors import UnauthenticatedError
from globalstep.security.certificate_role import role_of_certificate
from globalstep.security.credentials import TlsFiles, TlsMaterial
from globalstep.security.tls_probe import pem_of, server_certificate


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
        found = role_of_certificate(certificate)
    except UnauthenticatedError as error:
        return f"{where}: {error.message}"
    if found == "ps":
        return ""
    named = f"role {found!r}" if found else "no role"
    return (
        f"The certificate of {where} names {named}; a PS task's names 'ps' (CN=role=ps), and this process's own names "
        "a role, so it talks to PS tasks only. Nothing was shown to it. docs/security.md says how to make certificates."
    )


class ServerRole:
    """What is known of the server at one address. Thread-safe."""

    def __init__(self, address: str, files: TlsFiles) -> None:
        self._address = address
        self._files = files
        # Guards the attributes below; a leaf. The server is asked outside of it.
        self._lock = threading.Lock()
        self._asked = False
        self._mistake = ""

    @property
    def mistake(self) -> str:
        """What is wrong with the server's certificate, as far as is known; "" for nothing."""
        with self._lock:
            return self._mistake

    @property
    def asked(self) -> bool:
        """Whether the server has shown its certificate since `forget`, or need not."""
        with self._lock:
            return self._asked

    def forget(self) -> None:
        """Ask anew, the next time: it may have been started again, with another certificate."""
        with self._lock:
            self._asked = False

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
            with self._lock:
                self._asked, self._mistake = True, ""
            return material.ca
        found = None
        if look:
            try:
                found = server_certificate(self._address, self._files)
            except OSError:
                found = None  # the call will say so
        mistake = server_mistake(material.cert, found, self._address) if found is not None else ""
        with self._lock:
            self._asked, self._mistake = found is not None and not mistake, mistake
        # With its own certificate as the only one that is believed, no handshake succeeds.
        return pem_of(found) if found is not None and not mistake else material.cert
