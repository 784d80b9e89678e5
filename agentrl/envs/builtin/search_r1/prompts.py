"""Prompts of `env=search_r1`, in the published words where there are some."""

PROMPT = (
    "Answer the given question. "
    "You must conduct reasoning inside <think> and </think> first every time you get new information. "
    "After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query </search> "
    "and it will return the top searched results between <information> and </information>. "
    "You can search as many times as your want. "
    "If you find no further external knowledge needed, you can directly provide the answer inside <answer> and "
    "</answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question: {question}\n"
)
"""The prompt of Search-R1 (arXiv:2503.09516, table 1, and its repository), word for word."""
INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
"""The reminder after a turn without an action, from the same repository, word for word."""
TOOLS_PROMPT = (
    "Answer the given question. Reason first; if you lack some knowledge, search for it, as often as you want. "
    "Give the answer inside <answer> and </answer>, without detailed illustrations. For example, "
    "<answer> Beijing </answer>. Question: {question}\n"
)
"""The prompt where searches are native calls."""
