"""Certificates of the HTTP endpoint: one small authority per deployment, one server certificate per entry process.

Clients trust `secrets/ca.crt` (its path is in endpoint.json). The authority's key never leaves the deployment's
folder, and it can sign nothing below itself but server certificates.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from exahpc.errors import LinkError
from exahpc.wire.folder import Folder, write_atomic

_SKEW = timedelta(days=1)  # clocks of nodes differ
_AUTHORITY_LIFE = timedelta(days=3650)
_SERVER_LIFE = timedelta(days=397)  # the longest that strict clients accept; each start of an entry issues anew


def ensure_authority(folder: Folder) -> Path:
    """Make the deployment's authority if it has none yet. Returns the path of its certificate."""
    certificate, secret = folder.path / "secrets" / "ca.crt", folder.path / "secrets" / "ca.key"
    if certificate.exists() and secret.exists():
        return certificate
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"exahpc deployment {folder.path.name}"[:64])])
    made = (
        _builder(name, name, key.public_key(), _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_atomic(secret, _pem(key))
    write_atomic(certificate, made.public_bytes(serialization.Encoding.PEM))
    return certificate


def issue_server(
    folder: Folder, name: str, hosts: Iterable[str], *, into: Path | None = None
) -> tuple[Path, Path]:
    """A server certificate for `hosts` (host names and addresses; localhost is added), signed by the authority.

    Written as NAME.crt and NAME.key, both 0600, into secrets/ or another private directory. Returns their paths.
    Raises LinkError when the deployment has no authority, or its files do not belong together.
    """
    secrets = folder.path / "secrets"
    try:
        authority = x509.load_pem_x509_certificate((secrets / "ca.crt").read_bytes())
        signer = serialization.load_pem_private_key((secrets / "ca.key").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise LinkError(f"{secrets} holds no usable TLS authority ({error}): run `exahpc up` again") from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != authority.public_key():
        raise LinkError(
            f"{secrets}/ca.crt and ca.key do not belong together: remove both and run `exahpc up` again"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    names = list(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"]))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    made = (
        _builder(subject, authority.subject, key.public_key(), _SERVER_LIFE)
        .add_extension(x509.SubjectAlternativeName([_general(n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),  # type: ignore[arg-type]
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    into = into or secrets
    paths = into / f"{name}.crt", into / f"{name}.key"
    write_atomic(paths[1], _pem(key))
    write_atomic(paths[0], made.public_bytes(serialization.Encoding.PEM))
    return paths


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
