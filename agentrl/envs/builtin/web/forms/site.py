"""The site's pages: a list of forms, a form's pages with what is wrong on them, and a record once it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.envs.builtin.web import markup
from agentrl.envs.builtin.web.forms.catalogue import NO, YES, Field, Form

MAX_VALUE = 200
"""Characters of a value that are kept."""
BUTTONS = {"choice": markup.choice, "radio": markup.radio}


class FormSite:
    """One visitor's session.

    Attributes:
        record: the form's name and its values, once it is sent.
    """

    host = "forms.test"

    def __init__(self, forms: Sequence[Form]) -> None:
        self.forms = {form.name: form for form in forms}
        self.record: dict[str, Any] | None = None
        self._drafts: dict[str, dict[str, str]] = {}
        self._refused: list[str] = []

    @property
    def ended(self) -> bool:
        """Whether a form was sent."""
        return self.record is not None

    def state(self) -> dict[str, Any]:
        """The record, drafts, and the page that was refused."""
        return {"record": self.record, "drafts": self._drafts, "refused": self._refused}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.record, self._drafts, self._refused = state["record"], state["drafts"], list(state["refused"])

    # ------------------------------------------------------------------------------ pages

    def get(self, path: str, query: Mapping[str, str]) -> str | None:
        """The list of forms (one form shows itself), a form's page, or that it was sent."""
        if path == "/sent" and self.record is not None:
            return markup.document("Thank you", markup.text("The form was sent."))
        if path == "/" and len(self.forms) > 1:
            links = (markup.link(f"/{form.name}/1", form.title) for form in self.forms.values())
            return markup.document("Forms", markup.items(links))
        found = self._place(f"/{next(iter(self.forms))}/1" if path == "/" else path)
        return None if found is None else self._page(*found)

    def _page(self, form: Form, number: int) -> str:
        draft = self._draft(form)
        fields = form.page(number, draft)
        wrong = [] if self._refused[:1] != [f"/{form.name}/{number}"] else self._refused[1:]
        lines = [_shown(field, draft.get(field.name, field.initial)) for field in fields]
        notes = [markup.text(f"Please correct {words}.") for words in wrong]
        last = number == len(form.pages)
        title = form.title if len(form.pages) == 1 else f"{form.title}, page {number} of {len(form.pages)}"
        body = markup.form(f"/{form.name}/{number}", *lines, markup.button("Send" if last else "Continue"))
        return markup.document(title, *notes, body)

    # ------------------------------------------------------------------------------ what can be done

    def post(self, path: str, fields: Mapping[str, str]) -> str | None:
        """Keep a page's values, and go on where all are right; the last page sends the form."""
        found = self._place(path)
        if found is None:
            return None
        if self.record is not None:
            return "/sent"
        form, number = found
        draft = self._draft(form)
        here = form.page(number, draft)
        draft |= {field.name: " ".join(fields.get(field.name, "").split())[:MAX_VALUE] for field in here}
        wrong = [_refusal(field) for field in here if not field.accepts(draft[field.name])]
        self._refused = [path, *wrong] if wrong else []
        if wrong:
            return path
        if number < len(form.pages):
            return f"/{form.name}/{number + 1}"
        return self._send(form, draft, path)

    def _send(self, form: Form, draft: dict[str, str], path: str) -> str:
        """Make the record; a page that was left out or that no longer fits is shown instead."""
        for number in range(1, len(form.pages) + 1):
            if not all(field.accepts(draft.get(field.name, "")) for field in form.page(number, draft)):
                return f"/{form.name}/{number}"
        values = {field.name: draft.get(field.name, NO) for field in form.fields(draft)}
        self.record = {"form": form.name, "values": values}
        return "/sent"

    def _draft(self, form: Form) -> dict[str, str]:
        return self._drafts.setdefault(form.name, {})

    def _place(self, path: str) -> tuple[Form, int] | None:
        """The form and the page of a path."""
        name, _, number = path.removeprefix("/").partition("/")
        form = self.forms.get(name)
        if form is None or number not in map(str, range(1, len(form.pages) + 1)):
            return None
        return form, int(number)


def _shown(field: Field, value: str) -> str:
    label = f"{field.label} ({field.hint})" if field.hint else field.label
    if field.kind == "checkbox":
        return markup.checkbox(field.name, label, value == YES)
    if field.kind == "text":
        return markup.field(field.name, label, value)
    return BUTTONS[field.kind](field.name, label, field.options, value)


def _refusal(field: Field) -> str:
    return f"{field.label}: {field.hint}" if field.hint else field.label
