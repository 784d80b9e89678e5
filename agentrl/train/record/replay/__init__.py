"""`agentrl replay`: a recorded session again up to a turn, and on from there, under the weights that it had there.

`weights` finds those weights in a checkpoint, or trains the recorded steps after the nearest one again; `replaying`
plays the session.
"""

from agentrl.train.record.replay.replaying import Replay, ReplayConfig, Result, replay

__all__ = ["Replay", "ReplayConfig", "Result", "replay"]
