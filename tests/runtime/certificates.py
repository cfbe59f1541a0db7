"""Certificates of one authority, made in a moment."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bursar.policy.values import Tls

DAY = datetime.timedelta(days=1)


def make_certificates(folder: Path, *names: str) -> dict[str, Tls]:
    """A certificate for each name, and of 127.0.0.1."""
    authority, authority_key = _sign("authority", None, None)
    (folder / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made: dict[str, Tls] = {}
    for name in names:
        certificate, key = _sign(name, authority, authority_key)
        cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, none))
        made[name] = Tls(cert=str(cert_file), key=str(key_file), ca=str(folder / "ca.crt"))
    return made


def _sign(
    name: str, issuer: x509.Certificate | None, issuer_key: ec.EllipticCurvePrivateKey | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    import ipaddress

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return builder.sign(issuer_key or key, hashes.SHA256()), key
