"""`agentrl rescore`: stored sessions scored anew, without generating, as a result of its own."""
