"""The encoding of text: files of runs, models and tasks are UTF-8, whatever a machine's locale is."""

from __future__ import annotations

import locale
import sys


def reads_utf8() -> bool:
    """Return whether Python reads text files as UTF-8 where a call does not say."""
    return bool(sys.flags.utf8_mode) or locale.getencoding().lower().replace("-", "") == "utf8"
