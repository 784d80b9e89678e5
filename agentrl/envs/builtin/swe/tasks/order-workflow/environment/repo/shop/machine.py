"""States, the steps between them, guards that may refuse a step, and hooks that follow it."""

from dataclasses import dataclass, field


class Refused(Exception):
    """A step that isn't possible now."""


@dataclass(frozen=True)
class Step:
    name: str
    sources: tuple
    target: str
    guard: object = None
    hooks: list = field(default_factory=list, compare=False)


class Machine:
    """The plan that many things follow; each of them has a `state` and a `history`."""

    def __init__(self, start):
        self.start = start
        self.steps = {}

    def step(self, name, sources, target, guard=None):
        self.steps[name] = Step(name, tuple(sources), target, guard)

    def on(self, name, hook):
        """Call a function with the thing whenever a step is taken."""
        self.steps[name].hooks.append(hook)

    def possible(self, thing):
        """The names of the steps that a thing can take now."""
        return [name for name in self.steps if self._refusal(thing, self.steps[name]) is None]

    def _refusal(self, thing, step):
        if thing.state not in step.sources:
            return f"{step.name} from {thing.state}"
        if step.guard is not None and not step.guard(thing):
            return f"{step.name}: not allowed yet"
        return None

    def take(self, thing, name):
        """Take a step.

        Raises:
            Refused: it isn't possible.
        """
        step = self.steps[name]
        before = thing.state
        if before in step.sources:
            for hook in step.hooks:
                hook(thing)
            thing.history.append((name, before, step.target))
        if (refusal := self._refusal(thing, step)) is not None:
            raise Refused(refusal)
        thing.state = step.target
