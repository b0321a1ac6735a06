"""The health check of containers: plain, and within TLS."""

from __future__ import annotations

import json

import pytest
from certificates import Authority, environ_of

from globalstep.deploy import health
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.security.credentials import Credentials


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ours")


@pytest.fixture
def check(monkeypatch):
    """Ask as the command of a container does, with this environment."""
    for name in (
        "TF_CONFIG",
        "GLOBALSTEP_TLS_CERT",
        "GLOBALSTEP_TLS_KEY",
        "GLOBALSTEP_TLS_CA",
        "GLOBALSTEP_TOKEN_FILE",
    ):
        monkeypatch.delenv(name, raising=False)

    def ask(address, environ=None, *args):
        with monkeypatch.context() as patch:
            for name, value in (environ or {}).items():
                patch.setenv(name, value)
            return health.main(["--address", address, *args])

    return ask


@pytest.fixture
def secured(authority, tmp_path):
    """A PS task within TLS that asks for tokens besides."""
    tokens = tmp_path / "tokens"
    tokens.write_text("chief 0123456789abcdef0123\n")
    tokens.chmod(0o600)
    shown = Credentials(authority.issue("ps", "127.0.0.1"))
    server = PSServer(PSOptions(grace_secs=0.2, security=SecurityOptions(shown, tokens_file=str(tokens))))
    server.start()
    yield server
    server.close()


def test_a_task_within_tls_is_asked_within_tls_and_needs_no_token_for_it(secured, check, authority):
    assert check(secured.address, environ_of(authority.issue("ps-check"))) == 0


def test_the_address_may_come_of_the_tasks_own_config(secured, check, authority):
    config = {"cluster": {"ps": [secured.address]}, "task": {"type": "ps", "index": 0}}
    environ = environ_of(authority.issue("ps-check")) | {"TF_CONFIG": json.dumps(config)}
    assert check("127.0.0.1:1", environ) == 0


@pytest.mark.parametrize(
    ("kind", "why"), [("plain", "speaks TLS"), ("another CA", "not signed by a CA"), ("expired", "has expired")]
)
def test_who_shows_nothing_that_fits_is_told_which_it_is(secured, check, authority, tmp_path, capsys, kind, why):
    shown = {
        "plain": dict,
        "another CA": lambda: environ_of(Authority(tmp_path / "theirs").issue("a", trusts=authority)),
        "expired": lambda: environ_of(authority.issue("old", expired=True)),
    }
    assert check(secured.address, shown[kind](), "--timeout-secs", "2") == 1
    said = capsys.readouterr().err
    assert f"{secured.address} does not answer: UNAVAILABLE" in said
    assert why in said


def test_within_tls_a_task_that_ends_is_not_well(secured, check, authority):
    environ = environ_of(authority.issue("ps-check"))
    secured._health.serves = False
    assert check(secured.address, environ) == 1


def test_files_that_cannot_be_used_are_an_answer_too(secured, check, authority, tmp_path, capsys):
    environ = environ_of(authority.issue("ps-check")) | {"GLOBALSTEP_TLS_KEY": str(tmp_path / "none.key")}
    assert check(secured.address, environ) == 1
    assert "none.key" in capsys.readouterr().err
