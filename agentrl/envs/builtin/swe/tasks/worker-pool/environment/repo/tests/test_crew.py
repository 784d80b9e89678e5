import unittest

from crew import Pool


class CrewTest(unittest.TestCase):
    def test_results(self):
        pool = Pool(workers=1)
        for number in range(5):
            pool.submit(pow, number, 2)
        self.assertEqual(pool.results(), [0, 1, 4, 9, 16])
        pool.close()

    def test_no_jobs(self):
        self.assertEqual(Pool().results(), [])

    def test_more_jobs_later(self):
        pool = Pool(workers=1)
        pool.submit(str, 1)
        self.assertEqual(pool.results(), ["1"])
        pool.submit(str, 2)
        self.assertEqual(pool.results(), ["1", "2"])

    def test_a_closed_pool(self):
        pool = Pool(workers=1)
        pool.close()
        with self.assertRaises(RuntimeError):
            pool.submit(str, 1)
