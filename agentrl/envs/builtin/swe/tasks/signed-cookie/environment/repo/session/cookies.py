"""The cookie of a session: a user and some notes."""

import base64
import binascii
import json

from session.signing import BadSignature, Signer

WEEK = 7 * 86400


class SessionCookie:
    def __init__(self, key, now):
        self._signer = Signer(key, now)

    def make(self, user, notes=None, seconds=WEEK):
        """The cookie's text: the user to be read by everybody, notes encoded behind it."""
        packed = base64.urlsafe_b64encode(json.dumps(notes or {}).encode()).decode()
        return self._signer.sign(f"{user}|{packed}", seconds)

    def read(self, text):
        """(user, notes) of a cookie, or None where it is to be ignored."""
        try:
            value = self._signer.unsign(text)
        except BadSignature:
            return None
        user, _, packed = value.rpartition("|")
        return user, json.loads(base64.urlsafe_b64decode(packed))
