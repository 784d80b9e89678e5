"""Models and tokenizers: where weights come from.

resolve(name)      a Hugging Face folder for a known model's name or a local path, fetched if need be
get(name)          fetch a known model into the cache
KNOWN              what is known, as data
tiny.build(...)    a model of half a million parameters, made on the spot
tokenizers         Hugging Face tokenizers behind our protocol
"""

from agentrl.models.fetch import KNOWN, KnownModel, Progress
from agentrl.models.registry import cache_folder, check, get, resolve

__all__ = ["KNOWN", "KnownModel", "Progress", "cache_folder", "check", "get", "resolve"]
