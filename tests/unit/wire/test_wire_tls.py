"""Laws of the endpoint's certificates."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from exahpc.errors import LinkError
from exahpc.wire.folder import Folder
from exahpc.wire.tls import ensure_authority, issue_server


def made(path: Path, *hosts: str) -> tuple[Folder, Path, Path]:
    folder = Folder.create(path, "")
    ensure_authority(folder)
    return folder, *issue_server(folder, "server-0", hosts)


def handshake(trust: Path, certificate: Path, key: Path, name: str) -> None:
    """A TLS handshake over a socket pair; raises what the client sees."""
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve() -> None:
        try:
            context.wrap_socket(ours, server_side=True).close()
        except (ssl.SSLError, OSError):
            ours.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = ssl.create_default_context(cafile=str(trust))
    if hasattr(ssl, "VERIFY_X509_STRICT"):
        client.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        with client.wrap_socket(theirs, server_hostname=name):
            pass
    finally:
        theirs.close()
        thread.join()


@pytest.mark.parametrize("name", ["head7.cluster", "10.1.2.3", "localhost", "127.0.0.1"])
def test_clients_that_trust_the_authority_accept_every_name_of_the_head(tmp_path: Path, name: str) -> None:
    _, certificate, key = made(tmp_path / "d", "head7.cluster", "10.1.2.3")
    handshake(tmp_path / "d" / "secrets" / "ca.crt", certificate, key, name)


def test_another_name_or_another_deployments_authority_is_refused(tmp_path: Path) -> None:
    _, certificate, key = made(tmp_path / "d", "head7")
    made(tmp_path / "other", "head7")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "d" / "secrets" / "ca.crt", certificate, key, "head8")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "other" / "secrets" / "ca.crt", certificate, key, "head7")


def test_an_authority_is_made_once_and_every_file_is_private(tmp_path: Path) -> None:
    folder, certificate, key = made(tmp_path / "d", "h")
    before = (tmp_path / "d" / "secrets" / "ca.crt").read_bytes()
    assert ensure_authority(folder).read_bytes() == before
    for path in (certificate, key, *(tmp_path / "d" / "secrets").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_files_that_are_no_pair_are_named(tmp_path: Path) -> None:
    folder, _, _ = made(tmp_path / "d", "h")
    other, _, _ = made(tmp_path / "e", "h")
    (folder.path / "secrets" / "ca.key").write_bytes((other.path / "secrets" / "ca.key").read_bytes())
    with pytest.raises(LinkError, match="belong together"):
        issue_server(folder, "server-0", ["h"])
    (folder.path / "secrets" / "ca.crt").unlink()
    with pytest.raises(LinkError, match="authority"):
        issue_server(folder, "server-0", ["h"])
