"""Replies as state: fetched, polled, ended and continued by their ids (the Responses protocol)."""
