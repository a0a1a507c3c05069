"""Language models: one protocol, and what answers or wraps it."""

from pullback.text.lm._blocks import Content, Image, Text, Tool, ToolCall
from pullback.text.lm._completion import Chunk, Completion, Finish, Usage
from pullback.text.lm._limit import Limit
from pullback.text.lm._lm import LM
from pullback.text.lm._message import Message
from pullback.text.lm._openai import OpenAI
from pullback.text.lm._request import Request
from pullback.text.lm._retry import Retry
from pullback.text.lm._scripted import Scripted
from pullback.text.lm._wrapper import Wrapper

__all__ = [
    "LM",
    "Chunk",
    "Completion",
    "Content",
    "Finish",
    "Image",
    "Limit",
    "Message",
    "OpenAI",
    "Request",
    "Retry",
    "Scripted",
    "Text",
    "Tool",
    "ToolCall",
    "Usage",
    "Wrapper",
]
