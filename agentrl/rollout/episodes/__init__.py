"""Who plays a session, and how groups of sessions are generated, forked and measured."""
