"""The gateway's certificate and its settings for HTTPS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from agentrl.errors import ConfigError


@dataclass(frozen=True)
class Tls:
    """Serve HTTPS.

    Args:
        certificate: a PEM file: the certificate, and those between it and its authority.
        key: a PEM file with its private key, without a password.

    Raises:
        OSError: a file can't be read, or (ssl.SSLError) they are no certificate and its key.
    """

    certificate: str
    key: str

    def __post_init__(self) -> None:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key, "")

    @classmethod
    def of(cls, certificate: str | None, key: str | None, section: str = "") -> Tls | None:
        """Load the files of the settings `tls_certificate` and `tls_key`; None where these are not set: HTTP.

        Raises:
            ConfigError: the files can't be read, or are no certificate and its key.
        """
        if certificate is None and key is None:
            return None
        named = f"{section}tls_certificate={certificate} {section}tls_key={key}"
        if certificate is None or key is None:
            raise ConfigError(f"{named}: HTTPS needs both, and HTTP neither")
        try:
            return cls(certificate, key)
        except OSError as error:
            raise ConfigError(f"{named}: not a certificate and its private key in PEM files: {error}") from None

    def trusted(self) -> ssl.SSLContext:
        """Return the SSL context of a client that trusts this certificate, and no other, at any address."""
        context = ssl.create_default_context(cafile=self.certificate)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context
