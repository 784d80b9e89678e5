"""Episodes: the actors of a session, and groups of sessions that are generated, forked and measured."""
