"""Looking at runs, read-only: `agentrl view` in a browser, `agentrl top|sessions|diff|report` in the terminal.

`app` answers requests from files that runs write anyway (`runs`, `series`, `conversations`); `guard` says who may ask;
`static/` is the page itself, written by hand, without a build step and without anything from elsewhere. `commands` has
the command line; `attach`, `listing`, `difference` and `report` are what it prints and writes.
"""
