"""The web viewer, `agentrl view`: runs, their curves and their sessions in a browser, read-only.

`app` answers requests from files that runs write anyway (`runs`, `series`, `conversations`); `guard` says who may ask;
`static/` is the page itself, written by hand, without a build step and without anything from elsewhere.
"""
