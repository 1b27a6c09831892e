"""Certificates and keys for trying a federation out: a CA of your own, a server certificate, a key pair per site.

For production, certificates come from your own authority; the keys of sites may be made with this.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedkin.files import owner_only, write_atomic

DAYS = 365


def make_key(path: Path) -> Path:
    """An ECDSA-384 key pair in OpenSSH format: `path` (readable by its owner alone) and `path`.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    _write_secret(path, key.private_bytes(encoding, private, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_atomic(path.with_name(f"{path.name}.pub"), public + b"\n")
    return path


def make_certificates(folder: Path, addresses: Sequence[str]) -> Path:
    """ca.pem, server.pem and server.key for a server that is reached under these names or IP addresses."""
    authority = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedkin test authority")])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = (
        _certificate(issuer, issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, addresses[0])])
    server = (
        _certificate(subject, issuer, key.public_key())
        .add_extension(x509.SubjectAlternativeName([_name(address) for address in addresses]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    write_atomic(folder / "ca.pem", ca.public_bytes(serialization.Encoding.PEM))
    write_atomic(folder / "server.pem", server.public_bytes(serialization.Encoding.PEM))
    plain, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    _write_secret(folder / "server.key", key.private_bytes(encoding, plain, serialization.NoEncryption()))
    return folder


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=DAYS))
    )


def _name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _write_secret(path: Path, content: bytes) -> None:
    with owner_only():
        write_atomic(path, content)
