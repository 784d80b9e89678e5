import unittest

from press import Slugs, slug


class UniqueTest(unittest.TestCase):
    def test_titles_that_look_alike(self):
        slugs = Slugs()
        titles = ["\u00dcber uns", "Uber uns", "uber-uns!"]
        self.assertEqual([slugs.add(title) for title in titles], ["uber-uns", "uber-uns-2", "uber-uns-3"])

    def test_a_number_of_its_own(self):
        slugs = Slugs()
        self.assertEqual([slugs.add(t) for t in ("News", "News 2", "News", "News 2")], ["news", "news-2", "news-3", "news-2-2"])

    def test_what_was_taken_before(self):
        slugs = Slugs(taken=["news", "news-2"])
        self.assertEqual(slugs.add("News"), "news-3")
        self.assertEqual(len(slugs), 3)

    def test_cut_between_words(self):
        self.assertEqual(slug("one two three four", longest=10), "one-two")
        self.assertEqual(slug("one two three", longest=7), "one-two")
        self.assertEqual(slug("one two three", longest=8), "one-two")

    def test_a_first_word_that_is_too_long(self):
        self.assertEqual(slug("extraordinary events", longest=5), "extra")

    def test_nothing_is_lost_that_fits(self):
        self.assertEqual(slug("a" * 40), "a" * 40)
