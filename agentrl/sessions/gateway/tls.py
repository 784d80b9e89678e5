"""What the gateway serves HTTPS with."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


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

    def trusted(self) -> ssl.SSLContext:
        """What a client trusts that reaches this certificate, and no other, at any address."""
        context = ssl.create_default_context(cafile=self.certificate)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context
