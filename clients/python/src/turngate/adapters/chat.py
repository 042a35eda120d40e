"""Calls as token ids, and generated ids as answers, for engines that take tokens."""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..schema import Reply, Usage, VersionSpan
from ..serving.call import Call
from ..serving.conversation import Conversation
from ..serving.conversation import Tokenizer as Renderer

_TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)


class Tokenizer(Renderer, Protocol):
    """Tokenizer is the used part of a tokenizer of transformers with a chat template."""

    def decode(self, token_ids: Any, **options: Any) -> Any: ...


Parse = Callable[[str, Call], Mapping[str, Any]]
"""It returns the assistant message of OpenAI's chat that a generated text means."""


class Chat:
    """Chat makes the prompts of calls with a tokenizer's chat template, and answers of the ids that a model generated.

    A prompt begins with the ids of earlier answers as they were sampled; see Conversation.
    """

    def __init__(self, tokenizer: Tokenizer, parse: Parse | None = None, **options: Any) -> None:
        """Prepare rendering.

        Args:
            tokenizer: A tokenizer with a chat template.
            parse: It reads the model's texts. Default: read_tool_calls.
            options: Variables of the chat template, and ends of Conversation.
        """
        self._tokenizer = tokenizer
        self._parse = parse or read_tool_calls
        self._conversation = Conversation(tokenizer, **options)

    def prompt_ids(self, call: Call) -> list[int]:
        """Return the tokens of the call's messages and tools; see Conversation.prompt_ids."""
        return self._conversation.prompt_ids(call)

    def reply(
        self,
        call: Call,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        version: str | int | Sequence[int] | None = None,
        cut: bool = False,
    ) -> Reply:
        """Return the answer that the ids mean.

        Args:
            call: The answered call.
            prompt_ids: The tokens that the engine got.
            completion_ids: The tokens that it generated, with the one that ended them.
            logprobs: One per generated token; empty if they are not known.
            version: Version of the policy, or one for each generated token.
            cut: The answer reached the limit of its length.
        """
        text = self._tokenizer.decode(list(completion_ids), skip_special_tokens=True)
        message = dict(self._parse(text, call))
        message.setdefault("role", "assistant")
        n = len(completion_ids)
        return Reply(
            message=message,
            finish_reason="length" if cut else "tool_calls" if message.get("tool_calls") else "stop",
            usage=Usage(prompt_tokens=len(prompt_ids), completion_tokens=n),
            prompt_ids=list(prompt_ids),
            completion_ids=list(completion_ids),
            logprobs=[float(x) for x in logprobs],
            versions=_spans(version, n),
        )


def _spans(version: str | int | Sequence[int] | None, n: int) -> list[VersionSpan]:
    if version is None:
        return []
    if isinstance(version, str | int):
        return [VersionSpan(version=str(version), start=0, end=n)]
    spans, at = [], 0
    for name, same in itertools.groupby(version):
        end = at + len(list(same))
        spans.append(VersionSpan(version=str(name), start=at, end=end))
        at = end
    return spans


def read_tool_calls(text: str, call: Call) -> dict[str, Any]:
    """Read tool calls between <tool_call> and </tool_call>, as Qwen and Hermes models write them.

    A call that is no JSON object with a name stays text.
    """
    calls = []
    for match in _TOOL_CALL.finditer(text):
        try:
            said = json.loads(match[1])
            function = {"name": str(said["name"]), "arguments": json.dumps(said.get("arguments") or {})}
        except (ValueError, TypeError, KeyError, AttributeError):
            return {"role": "assistant", "content": text}
        calls.append({"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": function})
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": _TOOL_CALL.sub("", text).strip(), "tool_calls": calls}
