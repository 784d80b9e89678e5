import unittest

from webby import App


def ask(app, method, path):
    seen = {}

    def start(status, headers):
        seen.update(status=status, headers=dict(headers))

    body = b"".join(app({"REQUEST_METHOD": method, "PATH_INFO": path}, start))
    return seen["status"], seen["headers"], body.decode()


class RoutesTest(unittest.TestCase):
    def setUp(self):
        self.app = App()
        self.app.route("/<kind>/<name>")(lambda request, kind, name: f"{kind}: {name}")
        self.app.route("/users/<name>")(lambda request, name: f"user {name}")
        self.app.route("/<kind>/new")(lambda request, kind: f"new {kind}")
        self.app.route("/users/new")(lambda request: "form")
        self.app.route("/users", "POST")(lambda request: "made")
        self.app.route("/users", "DELETE")(lambda request: "gone")

    def test_a_fixed_path_wins(self):
        self.assertEqual(ask(self.app, "GET", "/users/new")[2], "form")

    def test_the_leftmost_fixed_segment_decides(self):
        self.assertEqual(ask(self.app, "GET", "/users/ada")[2], "user ada")
        self.assertEqual(ask(self.app, "GET", "/things/new")[2], "new things")
        self.assertEqual(ask(self.app, "GET", "/things/x")[2], "things: x")

    def test_a_wrong_method(self):
        status, headers, _ = ask(self.app, "GET", "/users")
        self.assertEqual((status, headers["Allow"]), ("405 Method Not Allowed", "DELETE, POST"))
        self.assertEqual(ask(self.app, "PUT", "/users/new")[1]["Allow"], "GET, HEAD")

    def test_no_such_path(self):
        self.assertEqual(ask(self.app, "POST", "/a/b/c")[0], "404 Not Found")

    def test_head(self):
        status, headers, body = ask(self.app, "HEAD", "/users/new")
        self.assertEqual((status, headers["Content-Length"], body), ("200 OK", "4", ""))
