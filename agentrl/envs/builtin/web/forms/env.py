"""`env=web_forms`: fill in forms on the web as asked, with a browser.

Forms check what is typed, have choices, boxes and several pages, and some fields are there only after another one was
answered. The first form that is sent ends the episode; its record is compared with what was asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentrl.envs.base import reward
from agentrl.envs.builtin.web.env import WebEnv
from agentrl.envs.builtin.web.forms.catalogue import YES
from agentrl.envs.builtin.web.forms.site import FormSite
from agentrl.envs.builtin.web.forms.tasks import credit, forms_of, tasks
from agentrl.envs.builtin.web.page import Element
from agentrl.types import Message, Session, Task


class WebForms(WebEnv[FormSite]):
    """Fill in forms on a site on localhost so that the record is what was asked.

    Args:
        level: 1 to 3; without it they are mixed.
        seed: which tasks there are.
        browser: `text`, which needs nothing, or `chromium`, a real one by playwright.
        view: a page's `text`, a `picture` of it with the same numbers (in Chromium), or `both`.
    """

    max_turns = 30

    def tasks(self, split: str = "train") -> Iterator[Task]:
        return tasks(self.seed, self.level, split)

    def new_site(self, task: Task) -> FormSite:
        return FormSite(forms_of(task.data))

    @reward
    def filled(self, session: Session) -> float:
        """The share of the record that is as asked; 0 where nothing was sent."""
        return credit(self.site.record, self._task.data)

    @reward(weight=0.0)
    def all_right(self, session: Session) -> float:
        """Return whether all of it is, logged."""
        return float(credit(self.site.record, self._task.data) == 1)

    def expert(self, messages: Sequence[Message]) -> str | Message:
        for element in self.browser.page.elements:
            call = self._fill(element)
            if call is not None:
                return call
        for words in ("Continue", "Send", self.site.forms[self._task["form"]].title):
            if self.seen(words) is not None:
                return self.click_on(words)
        return self.call("open", url="/")

    def _fill(self, element: Element) -> Message | None:
        """The call that brings a field to what was asked; None where it is."""
        asked = self._task["values"].get(element.name)
        if asked is None:
            return None
        if element.kind in ("text", "choice"):
            typed = element.value == asked
            return None if typed else self.call("type", number=element.number, text=asked)
        on = asked == YES if element.kind == "checkbox" else asked == element.value
        if element.on == on or (element.kind == "radio" and not on):
            return None
        return self.call("click", number=element.number)
