"""Looking at runs: `agentrl view` in a browser, and the commands that print them in a terminal.

`app` answers requests from files that runs write anyway (`runs`, `series`, `conversations`); `guard` says who may ask;
`static/` is the page itself, written by hand, without a build step and without anything from elsewhere. `commands` has
the command line; `attach`, `listing`, `difference` and `report` are what it prints and writes.
"""
