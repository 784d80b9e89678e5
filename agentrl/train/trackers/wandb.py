"""Weights & Biases as a back end."""

from __future__ import annotations

import netrc
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from agentrl.train.trackers.base import TrackedRun, Tracker

UNFINISHED = "wandb-unfinished"
"""The key of the folder of an offline part while it is written."""
FINISHED = "wandb-step"
"""The key of the last step of the finished offline parts."""


class WandB(Tracker):
    """`metrics=[wandb]`; a resumed run goes on in the same run of W&B, which takes each step once.

    Who logs in, where to, and as which entity are wandb's own settings (`wandb login`, WANDB_*). Where nobody is logged
    in, nothing is asked: the run is kept in RUN/trackers/wandb, for `wandb sync`; a part of it that was cut off by a
    kill is removed when the run is resumed, and its steps are in the part that follows.
    """

    package = extra = "wandb"

    def __init__(self, about: TrackedRun) -> None:
        import wandb

        id_ = about.remembered("wandb-id", uuid4().hex)
        self._about, self._step = about, 0
        if unfinished := about.kept(UNFINISHED):
            shutil.rmtree(about.own / "wandb" / unfinished, ignore_errors=True)
        own = wandb.Settings()
        online = own.mode == "online" and _logged_in(own)
        self._run: Any = wandb.init(
            project=own.project or about.project,
            name=about.name,
            id=id_,
            resume="allow",
            dir=str(about.own),
            config=dict(about.settings),
            mode=None if online or own.mode != "online" else "offline",
            settings=wandb.Settings(silent=True, console="off", save_code=False, disable_git=True),
        )
        if self._run.offline:
            about.keep(UNFINISHED, Path(self._run.dir).parent.name)

    def last(self) -> int:
        """Return the server's last step; offline, the run's when it last finished: the rest is in no file for sure."""
        self._step = int(self._about.kept(FINISHED) or 0) if self._run.offline else self._run.starting_step - 1
        return self._step

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers under the run's step."""
        self._run.log(dict(numbers), step=step)
        self._step = step

    def close(self) -> None:
        """Finish, which waits for what is still to be sent."""
        self._run.finish()
        if self._run.offline:
            self._about.keep(FINISHED, str(self._step))
            self._about.keep(UNFINISHED, "")


def _logged_in(settings: Any) -> bool:
    if settings.api_key or settings.identity_token_file:
        return True
    try:
        return netrc.netrc().authenticators(str(urlsplit(settings.base_url).hostname)) is not None
    except (OSError, netrc.NetrcParseError):
        return False
