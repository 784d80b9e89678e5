"""The tree that a template is rendered from."""

from stencil.expressions import evaluate


class Text:
    def __init__(self, text):
        self.text = text

    def render(self, context):
        return self.text


class Value:
    def __init__(self, source):
        self.source = source

    def render(self, context):
        return str(evaluate(self.source, context))


class Set:
    def __init__(self, name, source):
        self.name, self.source = name, source

    def render(self, context):
        context[self.name] = evaluate(self.source, context)
        return ""


class Block:
    """Nodes one after the other, in one scope."""

    def __init__(self, children):
        self.children = children

    def render(self, context):
        return "".join(child.render(context) for child in self.children)


class If:
    def __init__(self, source, body):
        self.source, self.body = source, body

    def render(self, context):
        return self.body.render(context) if evaluate(self.source, context) else ""


class For:
    """A loop; inside of it, `loop.index` counts from 1."""

    def __init__(self, name, source, body):
        self.name, self.source, self.body = name, source, body

    def render(self, context):
        pieces = []
        for index, item in enumerate(evaluate(self.source, context), 1):
            context[self.name] = item
            context["loop"] = {"index": index}
            pieces.append(self.body.render(context))
        context.pop("loop", None)
        return "".join(pieces)
