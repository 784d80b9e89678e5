"""aider: its coder edits a file by its own blocks of text, then a second question; a constant temperature and seed."""

import os
from pathlib import Path

prices = Path.home() / ".aider/caches/model_prices_and_context_window.json"
prices.parent.mkdir(parents=True)
prices.write_text('{"m": {}}')  # else it is fetched
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from aider.coders import Coder  # noqa: E402
from aider.io import InputOutput  # noqa: E402
from aider.models import Model  # noqa: E402

file = Path.home() / "a.txt"
file.write_text("one\n")
os.chdir(file.parent)
model = Model("openai/m", weak_model="openai/m")
most = int(os.environ.get("MAX_TOKENS", "2000"))
model.extra_params = {"api_base": os.environ["OPENAI_BASE_URL"], "seed": 7, "top_p": 0.9, "max_tokens": most}
model.use_temperature = 0.0
coder = Coder.create(
    main_model=model,
    edit_format="diff",
    fnames=["a.txt"],
    io=InputOutput(yes=True, pretty=False),
    use_git=False,
    map_tokens=0,
    stream=False,
    detect_urls=False,
    suggest_shell_commands=False,
)
coder.run("Change it to two.")
coder.run("And now?")
assert file.read_text() == "two\n"
