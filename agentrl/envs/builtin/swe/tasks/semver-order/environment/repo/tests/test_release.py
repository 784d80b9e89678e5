import unittest

from release import Version, allows, latest


class ReleaseTest(unittest.TestCase):
    def test_text(self):
        for text in ("1.2.3", "1.0.0-rc.1", "1.0.0+abc", "1.0.0-a.b+c"):
            self.assertEqual(str(Version.parse(text)), text)

    def test_order(self):
        self.assertLess(Version.parse("1.2.3"), Version.parse("1.3.0"))

    def test_constraints(self):
        self.assertTrue(allows(">=1.2.0 <2.0.0", Version.parse("1.5.0")))
        self.assertFalse(allows(">=1.2.0 <2.0.0", Version.parse("2.0.0")))

    def test_the_latest(self):
        self.assertEqual(str(latest(["1.0.0", "1.2.0", "1.3.0-rc.1"])), "1.2.0")
        self.assertIsNone(latest(["1.0.0"], ">1.0.0"))
