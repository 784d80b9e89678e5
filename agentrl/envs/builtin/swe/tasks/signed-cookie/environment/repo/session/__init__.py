"""Sessions that live in a signed cookie."""

from session.cookies import SessionCookie
from session.signing import BadSignature, Signer

__all__ = ["BadSignature", "SessionCookie", "Signer"]
