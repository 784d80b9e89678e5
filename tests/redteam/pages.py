"""Texts that would like to be more than text where the viewer or a report shows them: markup, scripts, links, names.

Each is written into every field of a run that a browser is shown: names, settings, metrics, tasks, messages, calls,
results, errors, rewards, notes. `CANARY` is where one of them would ask, and `window.attacked` what one would set.
"""

from __future__ import annotations

from tests.redteam.attack import attacks

CANARY = "canary.invalid"
RUN = "window.attacked=1"

SCRIPTS = attacks(
    "a script of it runs, a request leaves the viewer, or a link leads anywhere but to the viewer",
    [
        f"<script>{RUN}</script>",
        f"<img src=x onerror={RUN}>",
        f'"><svg onload={RUN}>',
        f"' autofocus onfocus={RUN} x='",
        f"</title></style></textarea></script></pre><script>{RUN}</script>",
        f"-->]]><script>{RUN}</script>",
        f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
        f"<math><mtext><table><mglyph><style><img src onerror={RUN}>",
        f"&lt;script&gt;{RUN}&lt;/script&gt;&#60;img src onerror={RUN}&#62;",
        f"javascript:{RUN}",
        f"\tJaVaScRiPt:{RUN}",
        f"data:text/html,<script>{RUN}</script>",
        f"[link](javascript:{RUN}) <javascript:{RUN}>",
        f"<link rel=stylesheet href=//{CANARY}/a><meta http-equiv=refresh content='0;url=//{CANARY}'>",
        f"<base href=//{CANARY}/><form action=//{CANARY}><input autofocus>",
        f"//{CANARY}/x",
        f"https://{CANARY}/a.png",
        f"![image](https://{CANARY}/a.png) <video src=//{CANARY}/b>",
        f"red;background:url(//{CANARY}/c)",
        f"</style><style>@import '//{CANARY}/d';",
        f"{{{{constructor.constructor('{RUN}')()}}}}${{{RUN}}}",
        "__proto__",
        "constructor",
        "%E0%A4%A",
        "../../api/runs?#/compare?run=",
    ],
)
