"""Sources of groups that generate nothing: conversations of files, and recorded sessions.

`columns` says which columns of a row are taken for what, `messages` reads a conversation out of them, `trees` writes
conversations into sessions (rows that share a prefix into one tree), `files` and `runs` have the rows and the sessions,
and `reading` hands them to the stream of groups.
"""
