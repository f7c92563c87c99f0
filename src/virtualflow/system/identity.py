"""By what a server is known: a certificate with its key, made here on first use, or given by its owner."""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from virtualflow.errors import LaunchError
from virtualflow.system.home import home

VALID = datetime.timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, in files. *is_given*: they are the owner's, and not of our making."""

    certificate: Path
    key: Path
    is_given: bool = False

    @property
    def fingerprint(self) -> str:
        try:
            return fingerprint(ssl.PEM_cert_to_DER_cert(_first_certificate(self.certificate.read_text())))
        except (OSError, ValueError) as error:
            self._refuse(error)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have *context* use it. Raises LaunchError if it can't be used."""
        try:
            context.load_cert_chain(self.certificate, self.key, _no_passphrase)
        except (OSError, ValueError) as error:
            self._refuse(error)

    def _refuse(self, error: Exception) -> NoReturn:
        if self.is_given:
            raise LaunchError(
                f"the certificate {self.certificate} and the key {self.key} can't be used: {error}"
            ) from error
        raise LaunchError(
            f"the certificate in {self.certificate.parent} can't be used: {error}. Remove that folder, and a new one "
            "is made; then copy the token file again to all machines that use it."
        ) from error


def fingerprint(certificate: bytes) -> str:
    """Of a certificate in DER."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def identity(folder: Path | None = None) -> Identity:
    """This machine's own for this user, made on first use."""
    folder = folder or home() / "tls"
    own = Identity(folder / "certificate.pem", folder / "key.pem")
    if not own.certificate.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            key, certificate = _new_certificate()
            _write_once(own.key, key)
            _write_once(own.certificate, certificate)
        except OSError as error:
            raise LaunchError(f"cannot keep a certificate in {folder}: {error.strerror}. Set VF_HOME.") from error
    return own


def chosen(certificate: Path | str | None, key: Path | str | None) -> Identity:
    """The one of these files, or this machine's own without them. Raises LaunchError if it can't be used, and why."""
    if certificate is None and key is None:
        return identity()
    if certificate is None or key is None:
        raise LaunchError("--tls-cert FILE and --tls-key FILE go together: a certificate is of no use without its key")
    given = Identity(Path(certificate).absolute(), Path(key).absolute(), is_given=True)
    _check_dates(given.certificate, _read(given.certificate, "--tls-cert", "the certificate"))
    _check_key(given)
    return given


def _read(path: Path, option: str, what: str) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise LaunchError(f"{option} {path}: that is no file. Name the file that holds {what}, as PEM.")
        return path.read_bytes()
    except OSError as error:
        raise LaunchError(
            f"{option} {path}: {what} can't be read: {error.strerror}. Name a file that this user can read."
        ) from error


def _check_dates(path: Path, text: bytes) -> None:
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(text)
    except ValueError as error:
        raise LaunchError(
            f"--tls-cert {path}: there is no certificate in it, as PEM (-----BEGIN CERTIFICATE-----). Of one in DER, "
            f"`openssl x509 -inform der -in {path.name}` makes that."
        ) from error
    now = datetime.datetime.now(datetime.UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise LaunchError(
            f"--tls-cert {path}: the certificate has expired, on {end:%Y-%m-%d}. Renew it, or leave out --tls-cert and "
            "--tls-key: this machine's own is then used."
        )
    if now < begin:
        raise LaunchError(f"--tls-cert {path}: the certificate is not valid before {begin:%Y-%m-%d %H:%M} UTC")


def _check_key(given: Identity) -> None:
    text = _read(given.key, "--tls-key", "the key")
    if given.key.stat().st_mode & stat.S_IROTH:
        raise LaunchError(f"--tls-key {given.key}: everybody on this machine can read the key: chmod 600 {given.key}")
    if b"ENCRYPTED" in text:
        raise LaunchError(
            f"--tls-key {given.key}: the key is locked with a passphrase, which nobody could enter when the server "
            f"starts. `openssl pkey -in {given.key.name} -out open.pem` writes it without; keep that file to yourself."
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(given.certificate, given.key, _no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise LaunchError(
                f"the key {given.key} is not that of the certificate {given.certificate}: --tls-key names the key that "
                "the certificate was made with"
            ) from error
        raise LaunchError(
            f"the certificate {given.certificate} and the key {given.key} can't be used: {error.reason or error}. Both "
            "are expected as PEM."
        ) from error


def _no_passphrase() -> NoReturn:
    raise ValueError("the key is locked with a passphrase")  # OpenSSL would ask at the terminal


def _first_certificate(text: str) -> str:
    """Of a file that may hold a chain, or the key too."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = text.partition(begin)
    inner, ended, _ = rest.partition(end)
    if not found or not ended:
        raise ValueError("there is no certificate in it")
    return f"{begin}{inner}{end}\n"


def _new_certificate() -> tuple[bytes, bytes]:
    """The key and the certificate, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "virtualflow")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + VALID)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret, certificate.public_bytes(serialization.Encoding.PEM)


def _write_once(path: Path, text: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
        os.fsync(file.fileno())
    partial.replace(path)
