"""Language models: one protocol, and what answers or wraps it.

What is asked becomes a `Request` (of `Message`, `Tool` and a schema). It goes through each
`Wrapper` to the `LM` that answers it with a `Completion`. While a `Run` is under way, its `Record`
and `Budget` stand before that `LM`: one over a `Journal`, the other over an `Account`.
"""

from pullback.text.lm._account import Account, Spending
from pullback.text.lm._completion import Call, Chunk, Completion, Finish, Usage
from pullback.text.lm._journal import Journal
from pullback.text.lm._llama_cpp import LlamaCpp
from pullback.text.lm._lm import LM, Wrapper
from pullback.text.lm._openai import OpenAI
from pullback.text.lm._record import Cached, Record, Replay
from pullback.text.lm._request import Content, Image, Message, Request, Text, Tool, ToolCall
from pullback.text.lm._run import Plan, Run, current_run
from pullback.text.lm._scripted import Misbehaving, Scripted
from pullback.text.lm._secrets import keep_secret, scrub
from pullback.text.lm._steps import Budget, Limit, Retry, Traced

__all__ = [
    "LM",
    "Account",
    "Budget",
    "Cached",
    "Call",
    "Chunk",
    "Completion",
    "Content",
    "Finish",
    "Image",
    "Journal",
    "Limit",
    "LlamaCpp",
    "Message",
    "Misbehaving",
    "OpenAI",
    "Plan",
    "Record",
    "Replay",
    "Request",
    "Retry",
    "Run",
    "Scripted",
    "Spending",
    "Text",
    "Tool",
    "ToolCall",
    "Traced",
    "Usage",
    "Wrapper",
    "current_run",
    "keep_secret",
    "scrub",
]
