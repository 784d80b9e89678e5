"""Policies behind an API: they are measured as any other, and never trained, since an API gives no tokens.

Their sessions hold messages and no tokens, as those of scripts do, and count what the provider says was used.
"""

from agentrl.rollout.remote.actor import RemoteActor, check_api, is_remote, remote_actor

__all__ = ["RemoteActor", "check_api", "is_remote", "remote_actor"]
