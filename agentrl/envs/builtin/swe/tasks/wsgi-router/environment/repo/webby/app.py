"""A WSGI application."""

from webby.request import Request, Response
from webby.routes import Routes


class App:
    def __init__(self):
        self.routes = Routes()

    def route(self, pattern, method="GET"):
        """Decorator: this function answers the requests of a pattern."""

        def register(handler):
            self.routes.add(method, pattern, handler)
            return handler

        return register

    def answer(self, request):
        handler, request.values = self.routes.find(request.method, request.path)
        if handler is None:
            return Response("not found", 404)
        result = handler(request, **request.values)
        return result if isinstance(result, Response) else Response(str(result))

    def __call__(self, environ, start_response):
        request = Request(environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/"))
        try:
            response = self.answer(request)
        except Exception as error:
            response = Response(f"error: {type(error).__name__}", 500)
        body = response.body.encode()
        headers = {"Content-Type": "text/plain; charset=utf-8", **response.headers, "Content-Length": str(len(body))}
        start_response(response.line, list(headers.items()))
        return [body]
