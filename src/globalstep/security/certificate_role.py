"""Roles in certificates: the common name, `role=ps`, or the URI `globalstep://role/ps`; nothing else counts.

Layer: shared. Threads: functions are pure.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator

from globalstep.errors import UnauthenticatedError

#: How a URI begins that names a role.
ROLE_URI = "globalstep://role/"
_MARK = "role="
_ROLES = ("chief", "standby", "worker", "ps")
_EXTENSIONS, _URI = 0xA3, 0x86
_COMMON_NAME, _ALTERNATIVE_NAME = bytes([0x55, 0x04, 0x03]), bytes([0x55, 0x1D, 0x11])
_CONTEXT = 0xA0


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
                    found = next(_fields(parts[-1][1]))[1]
                    uris = (item.decode(errors="replace") for kind, item in _fields(found) if kind == _URI)
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
