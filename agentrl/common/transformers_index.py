"""transformers' attention interface, behind which its list of models is made once instead of twice.

Its packages `transformers` and `transformers.models` both read the files of some 560 folders for that list, a third of
a second of CPU each, since its own cache holds 128 of them. The second list is the first one with other names. There is
no public way to say so, so a function of its is replaced while the second package is imported. The lists are the same
in 4.57, 5.0 and 5.24; where a version's list has another form, it is made twice, and a warning says so.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.utils import import_utils

logger = logging.getLogger(__name__)
PACKAGE = "transformers.models"
FOLDER = Path(transformers.__file__).parent / "models"


def derive_index() -> dict[Any, dict[str, Any]]:
    """Return the list that `transformers.models` makes, from the one that `transformers` has made.

    Raises:
        ValueError: that one has another form, or names models that have no folder.
    """
    known = import_utils.define_import_structure(FOLDER, prefix="models")
    start = "models."
    if not isinstance(known, Mapping) or not all(isinstance(names, Mapping) for names in known.values()):
        raise ValueError("the list has another form")
    parts = {
        needs: {name.removeprefix(start): objects for name, objects in names.items() if name.startswith(start)}
        for needs, names in known.items()
    }
    named = {name.partition(".")[0] for names in parts.values() for name in names}
    if odd := sorted(named - {path.name for path in FOLDER.iterdir()}) or not named:
        raise ValueError(f"the list names models without a folder: {odd}" if named else "the list names no model")
    return {needs: names for needs, names in parts.items() if names}


def import_models() -> None:
    """Import `transformers.models` with that list; a transformers that makes it otherwise makes it twice."""
    if PACKAGE in sys.modules:
        return
    try:
        make, found = import_utils.define_import_structure, derive_index()
    except Exception as error:  # whatever another version's functions raise
        logger.warning(
            "transformers %s makes its list of models in a way that is not known here, and so twice, which takes some "
            "0.3 s at each start: %s",
            *(getattr(transformers, "__version__", "?"), error),
        )
        return
    own = str(FOLDER / "__init__.py")

    def known(path: Any, *more: Any, **named: Any) -> Any:
        return found if path == own and not more and not named else make(path, *more, **named)

    import_utils.define_import_structure = known
    try:
        importlib.import_module(PACKAGE)
    finally:
        import_utils.define_import_structure = make


import_models()
AttentionInterface: Any = transformers.AttentionInterface
