"""Retrieval of passages for environments that search: a corpus, an index of it, and an HTTP server.

A corpus is a JSONL file of passages; an index is a folder whose manifest has the hashes of all that it consists of, so
that a run never searches something else than it was given. The server has the interface of Search-R1 (Jin et al.,
arXiv:2503.09516): `POST /retrieve {"queries", "topk", "return_scores"}`. `Service` starts one, restarts it when it
dies, and ends it with this process; a `RetrievalClient` sends queries to any.
"""
