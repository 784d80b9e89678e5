import unittest

from settings import SettingsError, parse


class ReaderTest(unittest.TestCase):
    def test_reads_a_section(self):
        settings = parse("[web]\nport = 80\nhost = here\n")
        self.assertEqual(settings.get("web", "port"), "80")
        self.assertEqual(settings.keys("web"), ["port", "host"])

    def test_keys_ignore_case(self):
        self.assertEqual(parse("Name = x").get("", "NAME"), "x")

    def test_comments_are_left_out(self):
        settings = parse("# top\n[a] ; which\nkey = value # why\ncolour = a#b\n")
        self.assertEqual(settings.get("a", "key"), "value")
        self.assertEqual(settings.get("a", "colour"), "a#b")

    def test_a_stray_line_is_an_error(self):
        with self.assertRaises(SettingsError):
            parse("[a]\nnonsense\n")


if __name__ == "__main__":
    unittest.main()
