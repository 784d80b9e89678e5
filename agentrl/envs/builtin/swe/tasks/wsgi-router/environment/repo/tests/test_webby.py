import unittest

from webby import App, Response


def ask(app, method, path):
    seen = {}

    def start(status, headers):
        seen.update(status=status, headers=dict(headers))

    body = b"".join(app({"REQUEST_METHOD": method, "PATH_INFO": path}, start))
    return seen["status"], seen["headers"], body.decode()


class WebbyTest(unittest.TestCase):
    def setUp(self):
        self.app = App()
        self.app.route("/")(lambda request: "home")
        self.app.route("/users/<name>")(lambda request, name: f"user {name}")
        self.app.route("/users", "POST")(lambda request: Response("made", headers={"X-Made": "1"}))
        self.app.route("/broken")(lambda request: 1 / 0)

    def test_pages(self):
        self.assertEqual(ask(self.app, "GET", "/")[2], "home")
        self.assertEqual(ask(self.app, "GET", "/users/ada")[2], "user ada")

    def test_methods(self):
        status, headers, body = ask(self.app, "POST", "/users")
        self.assertEqual((status, headers["X-Made"], body), ("200 OK", "1", "made"))

    def test_failures(self):
        self.assertEqual(ask(self.app, "GET", "/nothing")[0], "404 Not Found")
        self.assertEqual(ask(self.app, "GET", "/broken")[0], "500 Internal Server Error")
