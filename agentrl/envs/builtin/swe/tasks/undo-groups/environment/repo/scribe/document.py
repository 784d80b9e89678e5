"""A document: its text, and two stacks of groups of edits."""

from contextlib import contextmanager

from scribe.edit import Edit


class Document:
    def __init__(self, text=""):
        self.text = text
        self._done = []
        self._undone = []
        self._group = None

    def replace(self, at, length, new):
        """Replace `length` characters at `at`."""
        if not 0 <= at <= at + length <= len(self.text):
            raise IndexError(f"{at} to {at + length} of {len(self.text)} characters")
        self._do(Edit(at, self.text[at : at + length], new))

    def insert(self, at, new):
        self.replace(at, 0, new)

    def replace_all(self, old, new):
        """Replace every occurrence, as one step; how many there were."""
        count = position = 0
        with self.group():
            while (position := self.text.find(old, position)) >= 0:
                self.replace(position, len(old), new)
                position += len(new)
                count += 1
        return count

    @contextmanager
    def group(self):
        """What is done inside is one step."""
        if self._group is not None:
            yield
            return
        self._group = []
        try:
            yield
        finally:
            group, self._group = self._group, None
            if group:
                self._done.append(group)

    def _do(self, edit):
        self.text = edit.apply(self.text)
        if self._group is not None:
            self._group.append(edit)
        else:
            self._done.append([edit])

    def undo(self):
        """Take back the last step; whether there was one."""
        if not self._done:
            return False
        group = self._done.pop()
        for edit in group:
            at, old, new = edit.at, edit.old, edit.new
            self.text = self.text[:at] + old + self.text[at + len(new) :]
        self._undone.append(group)
        return True

    def redo(self):
        """Do the last step again that was taken back; whether there was one."""
        if not self._undone:
            return False
        group = self._undone.pop()
        for edit in group:
            self.text = edit.apply(self.text)
        self._done.append(group)
        return True
