"""The data types: data and their invariants, no I/O.

Glossary
    Task       one problem, out of a dataset or a generator.
    Message    one entry of a conversation, in the OpenAI chat shape.
    Turn       what an engine generates: token ids, their log-probabilities, their policy versions, why it ended.
    Node       one message's own tokens in a session's tree; the path from the root is what the engine saw.
    Session    one episode: a tree of nodes (or several), its task, its rewards, how it ended.
    Group      the sessions of one task and seed, which are each other's baseline.
    Agent      a role in an environment: most have one, and each of several has paths of its own in a session.
    Policy     a model that generates an agent's turns (`agentrl.rollout.episodes.policies`); versions count its
    updates.
    Engine     generates tokens: a torch model in this process, SGLang, vLLM.

Everything is imported from here; `messages`, `generation`, `nodes` and `session` are its parts. Token ids,
log-probabilities and masks are plain lists: neither numpy nor torch is needed.
"""

from agentrl.types.generation import (
    LEAST_TEMPERATURE,
    MOST_PROBABLE,
    Arrival,
    Capabilities,
    Chunk,
    Engine,
    FinishReason,
    Health,
    PauseMode,
    Placed,
    Sampling,
    Tokenizer,
    TopLogprobs,
    Turn,
    VersionSpan,
    begin_turn,
    collect,
)
from agentrl.types.messages import (
    FunctionCall,
    Message,
    Part,
    StepResult,
    Task,
    Text,
    ToolCall,
    as_messages,
    image,
    order_results,
    parse_arguments,
)
from agentrl.types.nodes import AGENT, GREEDY, MAIN, OVERLONG, Branch, Node, RewardState, Status
from agentrl.types.session import Group, Session

__all__ = [
    "AGENT",
    "Arrival",
    "Branch",
    "Capabilities",
    "Chunk",
    "Engine",
    "FinishReason",
    "FunctionCall",
    "Group",
    "Health",
    "GREEDY",
    "LEAST_TEMPERATURE",
    "MAIN",
    "MOST_PROBABLE",
    "Message",
    "Node",
    "OVERLONG",
    "Part",
    "PauseMode",
    "Placed",
    "RewardState",
    "Sampling",
    "Session",
    "Status",
    "StepResult",
    "Task",
    "Text",
    "Tokenizer",
    "ToolCall",
    "TopLogprobs",
    "Turn",
    "VersionSpan",
    "as_messages",
    "begin_turn",
    "collect",
    "image",
    "order_results",
    "parse_arguments",
]
