"""Reading a chat from a network stream."""

from chat.lines import LineReader
from chat.messages import Message, messages

__all__ = ["LineReader", "Message", "messages"]
