import unittest

from release import Version, latest

IN_ORDER = (
    "0.9.0 0.10.0 1.0.0-1 1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 "
    "1.0.0-rc.1 1.0.0 1.0.1 1.2.0 1.10.0 2.0.0 10.0.0"
).split()


class OrderTest(unittest.TestCase):
    def test_numbers_are_numbers(self):
        self.assertEqual(str(latest(["1.9.0", "1.10.0"])), "1.10.0")

    def test_all_in_order(self):
        self.assertEqual([str(v) for v in sorted(map(Version.parse, reversed(IN_ORDER)))], IN_ORDER)

    def test_a_release_comes_after_its_candidates(self):
        self.assertEqual(str(latest(["1.0.0-rc.9", "1.0.0", "1.0.0-rc.10"], pre=True)), "1.0.0")
        self.assertEqual(str(latest(["1.0.0-rc.9", "1.0.0-rc.10"], pre=True)), "1.0.0-rc.10")

    def test_builds_play_no_part(self):
        one, other = Version.parse("1.0.0+a"), Version.parse("1.0.0+b")
        self.assertEqual(one, other)
        self.assertEqual(hash(one), hash(other))
        self.assertEqual(str(one), "1.0.0+a")
