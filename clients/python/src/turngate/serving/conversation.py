"""The prompts of calls as token ids, with earlier answers as they were sampled."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..schema import Reply
from ..schema.codec import parse_json
from ..wire.link import log
from .call import Call
from .turns import Turns, continued, probes


class Tokenizer(Protocol):
    """Tokenizer is the used part of a tokenizer of transformers with a chat template."""

    eos_token_id: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


class Conversation:
    """Conversation renders calls with a tokenizer's chat template, and keeps the ids of earlier answers.

    A template often writes an answer otherwise than the model sampled it: without its thinking, with other white space,
    in other tokens. The prompt of a call that continues an earlier one begins with the earlier prompt and the sampled
    answer; the template renders the messages behind it. So all answers of a conversation are in one training row.

        conversation = Conversation(tokenizer)

        async def policy(call: Call) -> Reply:
            prompt = conversation.prompt_ids(call)
            ids, logprobs = await engine.generate(prompt)
            return Reply(message=read(ids), prompt_ids=prompt, completion_ids=ids, logprobs=logprobs)

    One object serves all rollouts. It takes the sampled ids from the reply that the handler returns. A call whose
    tools or earlier messages the agent has changed, such as a summary, is rendered whole.
    """

    def __init__(self, tokenizer: Tokenizer, *, ends: Iterable[int] = (), **options: Any) -> None:
        """Prepare rendering.

        Args:
            tokenizer: A tokenizer with a chat template.
            ends: Tokens that end an answer, in addition to the tokenizer's eos_token_id, such as <|eom_id|> of Llama.
            options: Variables of the chat template.
        """
        self._tokenizer = tokenizer
        self._options = options
        self._turns = Turns()
        eos = tokenizer.eos_token_id
        self._ends = {*ends, *(eos if isinstance(eos, list | tuple) else () if eos is None else (eos,))}

    def prompt_ids(self, call: Call) -> list[int]:
        """Return the tokens of a call's messages and tools, and those that begin an answer."""
        turn = self._turns.before(call)
        prompt = None
        if turn is not None:
            try:
                rendered = [self._render(call, m) for m in probes(call.messages, turn.count)]
                prompt = continued(turn, rendered, self._ends)
            except Exception as e:  # a template may refuse the probes; it says so in an exception of any kind
                log.debug("call %s is rendered whole: %s", call.key, e)
        if prompt is None:
            prompt = self._render(call, call.messages)
        call._on_reply[self] = lambda reply: self._answered(call, prompt, reply)
        return list(prompt)

    def _answered(self, call: Call, prompt: Sequence[int], reply: Reply) -> None:
        if len(reply.completion_ids):
            message = parse_json(reply.message, "message") if isinstance(reply.message, bytes) else reply.message
            ids = array("i", [*prompt, *reply.completion_ids])
            self._turns.add(call, message, ids, reply.finish_reason != "length")

    def _render(self, call: Call, messages: Iterable[Mapping[str, Any]]) -> list[int]:
        options = {"tools": list(call.tools) or None, "add_generation_prompt": True, "tokenize": True}
        ids = self._tokenizer.apply_chat_template(
            [_rendered(m) for m in messages], **options, return_dict=False, **self._options
        )
        return [int(i) for i in ids]


def _rendered(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates want it: with texts, and with the arguments of tools as objects."""
    out = dict(message)
    content = out.get("content")
    if content is None:
        out["content"] = ""
    elif isinstance(content, list) and all(p.get("type") == "text" for p in content):
        out["content"] = "".join(p["text"] for p in content)
    if out.get("tool_calls"):
        out["tool_calls"] = [_with_object(t) for t in out["tool_calls"]]
    return out


def _with_object(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(tool.get("function") or {})
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return dict(tool)
    return {**tool, "function": {**function, "arguments": arguments}}
