"""TLS between workers (`cluster.encrypted`): a certificate for each listener, which goes with its address.

There is no authority and no file: who may call a worker gets its address from the process that started it, through Ray
where that is elsewhere, and accepts the certificate in it and no other. Its private key stays in the worker.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from agentrl.errors import require_extra

_SHARE = 1 << 20
"""Bytes that are encrypted at once; what is received meanwhile is decrypted in between."""
_VALID = timedelta(days=3650)
"""Before and after now: nodes' clocks may differ, and a run ends before that."""


def own_certificate() -> tuple[ssl.SSLContext, str]:
    """Return what a listener serves TLS with, and its new certificate (PEM).

    Raises:
        MissingExtra: the library that makes certificates is not installed.
    """
    with require_extra("ray", "cryptography"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "agentrl worker")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    made = builder.not_valid_before(now - _VALID).not_valid_after(now + _VALID).sign(key, hashes.SHA256())
    certificate = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with open(os.memfd_create("certificate"), "wb") as file:  # the key is never on a disk
        file.write(secret + certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context, certificate.decode()


class EncryptedSocket:
    """A connected socket whose data is encrypted, for a thread that receives and another that sends.

    OpenSSL's state is for one thread at a time, and a thread that waits for data must not keep others from sending: the
    state is under a lock, and the socket is read outside of it.

    Args:
        sock: the socket, with the time limit of the handshake.
        certificate: what the other end must have (PEM).

    Raises:
        OSError: the other end does not have it, or breaks off.
    """

    def __init__(self, sock: socket.socket, certificate: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # it is this certificate, wherever the worker is
        context.load_verify_locations(cadata=certificate)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self._socket, self._state, self._sending = sock, threading.Lock(), threading.Lock()
        self._received, self._encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._encrypted)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
            else:
                break
        self._flush()

    def recv_into(self, buffer: memoryview) -> int:
        """Receive at most as much as there is room for; 0 where the other end closed the connection."""
        while True:
            with self._state:
                try:
                    count: Any = self._tls.read(len(buffer), buffer)  # the number of bytes, where there is a buffer
                    return int(count)
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    with suppress(OSError):
                        self.shutdown(socket.SHUT_RDWR)  # the other end waits for that
                    return 0
            self._receive()

    def sendall(self, data: bytes) -> None:
        """Send all of the data."""
        view = memoryview(data)
        with self._sending:
            for start in range(0, len(view), _SHARE):
                with self._state:
                    self._tls.write(view[start : start + _SHARE])
                self._flush()

    def settimeout(self, seconds: float | None) -> None:
        """See `socket.socket`."""
        self._socket.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """See `socket.socket`."""
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> None:
        data = self._socket.recv(1 << 18)
        with self._state:
            if data:
                self._received.write(data)
            else:
                self._received.write_eof()

    def _flush(self) -> None:
        with self._state:
            data = self._encrypted.read()
        self._socket.sendall(data)
