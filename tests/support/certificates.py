"""Certificates for tests, made by trustme."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme

from globalstep.security.credentials import TlsFiles


class Authority:
    """A CA that writes what it issues to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = trustme.CA()

    def issue(
        self, name: str, *hosts: str, role: str | None = None, expired: bool = False, trusts: Authority | None = None
    ) -> TlsFiles:
        """Write NAME.pem, NAME.key and NAME.ca; a later one of the same name takes their place, file by file."""
        now = datetime.datetime.now(datetime.UTC)
        made = self.ca.issue_cert(
            *(hosts or ("client.test",)),
            common_name=f"role={role}" if role else None,
            not_after=now - datetime.timedelta(days=1) if expired else None,
        )
        files = TlsFiles(*(str(self.folder / f"{name}.{kind}") for kind in ("pem", "key", "ca")))
        chain = b"".join(pem.bytes() for pem in made.cert_chain_pems)
        contents = (chain, made.private_key_pem.bytes(), (trusts or self).ca.cert_pem.bytes())
        for path, content in zip((files.cert, files.key, files.ca), contents, strict=True):
            fresh = Path(path + ".new")
            fresh.write_bytes(content)
            fresh.replace(path)
        return files


def environ_of(files: TlsFiles) -> dict[str, str]:
    """The environment that names the files."""
    return {"GLOBALSTEP_TLS_CERT": files.cert, "GLOBALSTEP_TLS_KEY": files.key, "GLOBALSTEP_TLS_CA": files.ca}
