"""Roles in certificates: in one place of them only, asked for on both sides, by PS tasks with real certificates."""

from __future__ import annotations

import contextlib
import random
import ssl
import warnings
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from certificates import Authority
from counting_run import initialize, state, step_push
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID
from served_tasks import starting

from globalstep.errors import OpError, PermissionDeniedError, UnauthenticatedError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.service.settler import asking
from globalstep.runtime.clock import ManualClock
from globalstep.security.certificates import role_of_certificate
from globalstep.security.credentials import Credentials, TlsFiles
from globalstep.security.secure_channel import PATIENCE_SECS, SecureChannel
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import GrpcTransport

TOKEN = "chief-0123456789abcdef"


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ours")


@pytest.fixture
def serving():
    with starting() as start:
        yield lambda tls, bind="127.0.0.1:0", **more: start(
            bind=bind, security=SecurityOptions(Credentials(tls), **more)
        )[0]


def issue(authority, name, *others, common_name="node-7"):
    """A certificate of any names, as a CA makes it that copies what it is asked for."""
    made = authority.ca.issue_cert("client.test")
    leaf = x509.load_pem_x509_certificate(made.cert_chain_pems[0].bytes())
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    signer = serialization.load_pem_private_key(authority.ca.private_key_pem.bytes(), None)
    root = x509.load_pem_x509_certificate(authority.ca.cert_pem.bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(root.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(leaf.not_valid_before_utc)
            .not_valid_after(leaf.not_valid_after_utc)
            .add_extension(x509.SubjectAlternativeName(list(others)), critical=False)
            .sign(signer, hashes.SHA256())
        )
    paths = [authority.folder / f"{name}.{kind}" for kind in ("pem", "key", "ca")]
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    contents = (certificate.public_bytes(serialization.Encoding.PEM), private, authority.ca.cert_pem.bytes())
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return TlsFiles(*map(str, paths))


def call(server, tls, method, request):
    with contextlib.closing(GrpcTransport(server.address, 0, credentials=Credentials(tls))) as connection:
        return connection.unary(method, request, 5.0).result()


BEGIN = pb.BeginRequest(incarnation=2**50, shards=1, owner="a", open=True)


# ---- Where a role may stand -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "others",
    [
        [x509.RFC822Name("role=chief@x.test")],
        [x509.UniformResourceIdentifier("role=chief")],
        [x509.DNSName("role=chief")],
        [x509.UniformResourceIdentifier("https://x.test/globalstep://role/chief")],
    ],
    ids=["email", "uri", "dns", "within a uri"],
)
def test_a_role_in_any_other_name_is_none(serving, authority, others):
    server = serving(authority.issue("ps", "127.0.0.1", role="ps"))
    asker = issue(authority, "asker", *others)
    with open(asker.cert, "rb") as file:
        assert role_of_certificate(file.read()) is None
    with pytest.raises(UnauthenticatedError, match="shows no role"):
        call(server, asker, "Begin", BEGIN)
    assert server.shard.view().incarnation == 0


@pytest.mark.parametrize("role", ["chief", "standby", "worker", "ps"])
@pytest.mark.parametrize("where", ["common name", "uri"])
def test_a_role_in_its_places(serving, authority, role, where):
    server = serving(authority.issue("ps", "127.0.0.1", role="ps"))
    if where == "uri":
        mine = issue(authority, "mine", x509.UniformResourceIdentifier(f"globalstep://role/{role}"))
    else:
        mine = authority.issue("mine", role=role)
    with open(mine.cert, "rb") as file:
        assert role_of_certificate(file.read()) == role
    allowed = role in ("chief", "standby")
    with contextlib.nullcontext() if allowed else pytest.raises(PermissionDeniedError, match=f"Role '{role}'"):
        call(server, mine, "Begin", BEGIN)


def test_two_roles_are_none(serving, authority):
    server = serving(authority.issue("ps", "127.0.0.1", role="ps"))
    uri = x509.UniformResourceIdentifier("globalstep://role/chief")
    with pytest.raises(OpError, match="names the roles"):
        call(server, issue(authority, "two", uri, common_name="role=worker"), "Begin", BEGIN)


@pytest.mark.parametrize("cut", [0, 1, 40, 200, -1])
def test_what_is_no_certificate_is_refused(authority, cut):
    with open(authority.issue("x", role="ps").cert) as file:
        der = ssl.PEM_cert_to_DER_cert(file.read().split(ssl.PEM_FOOTER)[0] + ssl.PEM_FOOTER)
    assert role_of_certificate(der) == "ps"
    with pytest.raises(UnauthenticatedError, match="no certificate"):
        role_of_certificate(der[:cut])


# ---- Asked for ------------------------------------------------------------------------------------


def test_a_task_whose_certificate_names_a_role_asks_for_one(serving, authority):
    server = serving(authority.issue("ps", "127.0.0.1", role="ps"))
    for method, request in {
        "Begin": BEGIN,
        "Stop": pb.EndRequest(force=True),
        "Status": pb.StatusRequest(brief=True),
    }.items():
        with pytest.raises(UnauthenticatedError, match="shows no role"):
            call(server, authority.issue("monitoring"), method, request)
    assert not server.control.ended.is_set()


def test_a_task_whose_certificate_names_none_asks_for_none(serving, authority):
    server = serving(authority.issue("ps", "127.0.0.1"))
    assert call(server, authority.issue("anybody"), "Begin", BEGIN) == pb.Done()


class Impostor:
    """Serves at an address with a certificate that names its host, and keeps what it is shown."""

    def __init__(self, tls):
        self.shown = []
        material = tls.read()
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((self,))
        own = grpc.ssl_server_credentials([(material.key, material.cert)], material.ca, True)
        self.address = f"127.0.0.1:{self._server.add_secure_port('127.0.0.1:0', own)}"
        self._server.start()

    def service(self, details):
        self.shown.append(dict(details.invocation_metadata))

    def close(self):
        self._server.stop(0).wait()


@pytest.mark.parametrize("role", ["worker", "chief", None])
def test_what_is_no_ps_task_by_its_certificate_is_shown_nothing(authority, role):
    clock = ManualClock()
    shown = Credentials(authority.issue("chief", role="chief"), TOKEN)
    with contextlib.closing(Impostor(authority.issue("impostor", "127.0.0.1", role=role))) as impostor:
        with contextlib.closing(GrpcTransport(impostor.address, 0, clock=clock, credentials=shown)) as connection:
            names = f"names role '{role}'" if role else "names no role"
            with pytest.raises(UnavailableError, match=names):
                connection.unary("Status", pb.StatusRequest(brief=True), 5.0).result()
            clock.advance(PATIENCE_SECS + 1)
            with pytest.raises(UnauthenticatedError, match=names):
                connection.unary("Status", pb.StatusRequest(brief=True), 5.0).result()
        with pytest.raises(OpError):
            asking(lambda: Credentials(authority.issue("ps", role="ps"), TOKEN))(impostor.address, pb.SettleRequest())
        assert impostor.shown == []
        # Whose own certificate names no role does not look.
        plain = Credentials(authority.issue("plain"), TOKEN)
        with (
            contextlib.closing(GrpcTransport(impostor.address, 0, credentials=plain)) as connection,
            pytest.raises(OpError),
        ):
            connection.unary("Status", pb.StatusRequest(brief=True), 5.0).result()
        assert TOKEN in str(impostor.shown)


def test_an_impostor_that_lets_the_look_pass_is_shown_nothing(serving, authority):
    """The first connection goes on to the PS task; what is made after it is for that task's certificate alone."""
    server = serving(authority.issue("ps", "127.0.0.1", role="ps"))
    with contextlib.closing(Impostor(authority.issue("impostor", "127.0.0.1", role="worker"))) as impostor:
        secured = SecureChannel(server.address, Credentials(authority.issue("chief", role="chief"), TOKEN))
        roots = secured._server.roots(secured._tls.latest())
        secured.address = impostor.address
        secured._server.roots = lambda *args: roots
        with secured.make() as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/a/b")(b"", timeout=5, metadata=secured.begin("Status").metadata)
        assert impostor.shown == []


@pytest.mark.parametrize("transport", ["grpc", "auto"])
def test_a_run_whose_certificates_all_name_roles(serving, authority, transport):
    servers = [serving(authority.issue(f"ps{at}", "127.0.0.1", role="ps")) for at in range(2)]
    with contextlib.ExitStack() as stack:
        clients = []
        for role in ("chief", "worker"):
            shown = Credentials(authority.issue(role, role=role))
            transports = [
                GrpcTransport(server.address, at, transport, credentials=shown) for at, server in enumerate(servers)
            ]
            clients.append(ClusterClient(transports, rng=random.Random(5)))
            stack.callback(clients[-1].close)
        chief, worker = clients
        chief.begin(open=True, sequencer=1)
        initialize(chief)
        worker.refresh()
        worker.push(step_push())
        assert state(worker)["global_step"] == 1
        # A task that shows a renewed certificate is looked at anew.
        for at in range(2):
            authority.issue(f"ps{at}", "127.0.0.1", role="ps")
        for client in clients:
            for connection in client.run.transports:
                connection.break_off(UnavailableError("a test"))
                connection._secured._server.forget()
        worker.push(step_push())
        assert state(worker)["global_step"] == 2
