"""Texts with a signature: value.expiry.signature."""

import base64
import hashlib
import hmac


class BadSignature(Exception):
    """A text that we have not signed, or whose time is over."""


class Signer:
    """Signs texts.

    Args:
        key: the secret, as bytes.
        now: a function that tells the time, in seconds.
    """

    def __init__(self, key, now):
        self._key = key
        self._now = now

    def _mac(self, text):
        digest = hmac.new(self._key, text.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def sign(self, value, seconds):
        """A value that is valid for so many seconds."""
        text = f"{value}.{int(self._now() + seconds)}"
        return f"{text}.{self._mac(text)}"

    def unsign(self, signed):
        """The value of a signed text.

        Raises:
            BadSignature: it is not ours, or too old.
        """
        parts = signed.split(".")
        if len(parts) != 3:
            raise BadSignature("not a signed text")
        value, expiry, mac = parts
        if not hmac.compare_digest(mac.encode(), self._mac(f"{value}.{expiry}").encode()):
            raise BadSignature("a wrong signature")
        if int(expiry) < self._now():
            raise BadSignature("expired")
        return value
