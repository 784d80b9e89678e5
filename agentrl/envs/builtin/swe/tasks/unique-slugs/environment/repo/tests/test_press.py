import unittest

from press import Slugs, slug


class PressTest(unittest.TestCase):
    def test_slugs(self):
        self.assertEqual(slug("Hello,  World!"), "hello-world")
        self.assertEqual(slug("Stra\u00dfe & Caf\u00e9"), "strasse-cafe")
        self.assertEqual(slug("It's"), "its")
        self.assertEqual(slug("???"), "untitled")

    def test_the_same_title_again(self):
        slugs = Slugs()
        self.assertEqual([slugs.add("News") for _ in range(3)], ["news", "news-2", "news-3"])
        self.assertIn("news-2", slugs)
