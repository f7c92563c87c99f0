"""By what a server is known: certificates that can't be used are refused, with what to do."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from virtualflow.errors import LaunchError
from virtualflow.system import identity, tls

TODAY = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def a_certificate(folder: Path, name: str = "own", begin: int = -1, end: int = 1) -> tuple[Path, Path]:
    """One of the test's own, valid from *begin* to *end*, in days from today."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(TODAY + begin * DAY)
        .not_valid_after(TODAY + end * DAY)
        .sign(key, hashes.SHA256())
    )
    return (
        write(folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
        write(folder / f"{name}.key", pem_of(key, serialization.NoEncryption())),
    )


def pem_of(key: ec.EllipticCurvePrivateKey, encryption: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def write(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    path.chmod(0o600)
    return path


def locked(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    return write(folder / "locked.key", pem_of(key, serialization.BestAvailableEncryption(b"x")))


def open_to_all(path: Path) -> Path:
    path.chmod(0o644)
    return path


def test_a_given_certificate_is_known_by_its_fingerprint_also_at_the_head_of_a_chain(tmp_path: Path) -> None:
    certificate, key = a_certificate(tmp_path)
    given = identity.chosen(certificate, key)
    issuer, _ = a_certificate(tmp_path, "issuer")
    chain = write(tmp_path / "chain.pem", certificate.read_bytes() + issuer.read_bytes())
    assert given.is_given
    assert identity.chosen(chain, key).fingerprint == given.fingerprint != identity.identity(tmp_path).fingerprint
    assert tls.server_context(given)
    assert not identity.chosen(None, None).is_given


Files = tuple[Path | None, Path | None]
WRONG: dict[str, tuple[Callable[[Path], Files], str]] = {
    "no key": (lambda folder: (a_certificate(folder)[0], None), "--tls-cert FILE and --tls-key FILE go together"),
    "no certificate": (lambda folder: (None, a_certificate(folder)[1]), "--tls-cert FILE and --tls-key FILE go"),
    "missing": (
        lambda folder: (folder / "nothing", a_certificate(folder)[1]),
        r"--tls-cert \S+nothing: the certificate can't be read: No such file.*Name a file that this user can read",
    ),
    "missing key": (lambda folder: (a_certificate(folder)[0], folder / "nothing"), r"--tls-key .*key can't be read"),
    "a folder": (lambda folder: (folder, a_certificate(folder)[1]), "that is no file"),
    "junk": (
        lambda folder: (write(folder / "junk", b"\xff junk"), a_certificate(folder)[1]),
        "no certificate in it, as PEM.*openssl x509 -inform der",
    ),
    "the key twice": (lambda folder: (a_certificate(folder)[1],) * 2, "no certificate in it, as PEM"),
    "expired": (lambda folder: a_certificate(folder, begin=-9, end=-2), r"has expired, on \d{4}-.*Renew it, or leave"),
    "too early": (lambda folder: a_certificate(folder, begin=2, end=9), r"is not valid before \d{4}-"),
    "another's key": (
        lambda folder: (a_certificate(folder)[0], a_certificate(folder, "other")[1]),
        r"the key \S+other.key is not that of the certificate \S+own.pem",
    ),
    "locked": (lambda folder: (a_certificate(folder)[0], locked(folder)), "locked with a passphrase.*openssl pkey"),
    "open": (
        lambda folder: (a_certificate(folder)[0], open_to_all(a_certificate(folder)[1])),
        "everybody on this machine can read the key: chmod 600",
    ),
    "a junk key": (
        lambda folder: (a_certificate(folder)[0], write(folder / "junk", b"junk")),
        "can't be used: .*Both are expected as PEM",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_can_not_be_used_is_refused_with_what_to_do(tmp_path: Path, case: str) -> None:
    files, message = WRONG[case]
    with pytest.raises(LaunchError, match=message):
        identity.chosen(*files(tmp_path))
