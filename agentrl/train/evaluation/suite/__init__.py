"""Suites: one policy measured on several tasks, and compared with another one.

`parts` reads a suite's file, as one configuration for each part. `content` has the digests of what decides a part's
sessions: what was measured before is not measured again. `play` measures, `results` is what is kept of it
(`result.json`), `report` shows it as a table, Markdown and a picture, and `compare` tests two results task by task.
"""
