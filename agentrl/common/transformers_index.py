"""transformers' attention interface, behind which its list of models is made once instead of twice.

Its packages `transformers` and `transformers.models` both read the files of some 560 folders for that list, a third of
a second of CPU each, since its own cache holds 128 of them. The second list is the first one with other names.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers.utils import import_utils

PACKAGE = "transformers.models"


def derive_index() -> dict[Any, dict[str, Any]]:
    """Return the list that `transformers.models` makes, from the one that `transformers` has made."""
    known = import_utils.define_import_structure(Path(transformers.__file__).parent / "models", prefix="models")
    start = "models."
    parts = {
        needs: {name.removeprefix(start): objects for name, objects in names.items() if name.startswith(start)}
        for needs, names in known.items()
    }
    return {needs: names for needs, names in parts.items() if names}


def import_models() -> None:
    """Import `transformers.models` with that list; a transformers that makes it otherwise makes it twice."""
    if PACKAGE in sys.modules:
        return
    try:
        make, found = import_utils.define_import_structure, derive_index()
    except (AttributeError, TypeError):
        return
    own = str(Path(transformers.__file__).parent / "models" / "__init__.py")

    def known(path: Any, *more: Any, **named: Any) -> Any:
        return found if path == own else make(path, *more, **named)

    import_utils.define_import_structure = known
    try:
        importlib.import_module(PACKAGE)
    finally:
        import_utils.define_import_structure = make


import_models()
AttentionInterface: Any = transformers.AttentionInterface
