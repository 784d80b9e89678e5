import unittest

from session import BadSignature, SessionCookie, Signer


class SessionTest(unittest.TestCase):
    def setUp(self):
        self.time = 1000
        self.cookie = SessionCookie(b"key", lambda: self.time)

    def test_there_and_back(self):
        text = self.cookie.make("ada", {"theme": "dark"})
        self.assertEqual(self.cookie.read(text), ("ada", {"theme": "dark"}))

    def test_changed(self):
        text = self.cookie.make("ada")
        self.assertIsNone(self.cookie.read(text.replace("ada", "eve")))
        self.assertIsNone(self.cookie.read("nonsense"))

    def test_too_old(self):
        text = self.cookie.make("ada", seconds=10)
        self.time += 11
        self.assertIsNone(self.cookie.read(text))

    def test_another_key(self):
        with self.assertRaises(BadSignature):
            Signer(b"other", lambda: 0).unsign(self.cookie.make("ada"))
