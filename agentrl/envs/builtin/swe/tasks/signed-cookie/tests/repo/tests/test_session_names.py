import unittest

from session import BadSignature, SessionCookie, Signer


class NamesTest(unittest.TestCase):
    def setUp(self):
        self.time = 1000
        self.cookie = SessionCookie(b"key", lambda: self.time)

    def test_dots_and_bars_in_names(self):
        for user in ("j.doe", "a.b.c", ".", "x|y", "123.456"):
            self.assertEqual(self.cookie.read(self.cookie.make(user)), (user, {}))

    def test_the_second_of_expiry(self):
        text = self.cookie.make("ada", seconds=10)
        self.time = 1009
        self.assertEqual(self.cookie.read(text), ("ada", {}))
        self.time = 1010
        self.assertIsNone(self.cookie.read(text))

    def test_signed_nonsense_is_ignored(self):
        signer = Signer(b"key", lambda: self.time)
        for value in ("ada|abc", "ada|!!!!", "ada|e30x", "ada"):
            self.assertIsNone(self.cookie.read(signer.sign(value, 60)))

    def test_too_few_parts(self):
        for text in ("", "a", "a.5"):
            with self.assertRaises(BadSignature):
                Signer(b"key", lambda: 0).unsign(text)

    def test_a_signature_of_other_letters(self):
        with self.assertRaises(BadSignature):
            Signer(b"key", lambda: 0).unsign("a.9.\u00fc")
