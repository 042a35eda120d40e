"""Prompts that begin with the sampled ids of earlier answers."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from turngate import Call, Conversation, Key, Reply
from turngate.schema.codec import raw_json
from turngate.serving.kept_answer import Answer

BEGIN, END, OTHER_END, MERGED = 1_000_001, 1_000_002, 1_000_003, 1_000_004
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


@dataclass
class Letters:
    """Letters is a tokenizer with a token for each letter, and a chat template that changes earlier answers."""

    eos_token_id: int | None = END
    strips: bool = False  # thinking of answers before the last message of a user
    sorts: bool = False  # the keys of arguments
    trims: bool = False
    merges: bool = False  # "ll" is one token when it is read again
    end: int | None = END  # written behind an answer
    refuses: bool = False  # conversations that do not begin as the call

    def ids(self, text: str) -> list[int]:
        if not self.merges:
            return list(map(ord, text))
        out: list[int] = []
        for piece in text.split("ll"):
            out += [*([MERGED] if out or piece != text.split("ll")[0] else []), *map(ord, piece)]
        return out

    def apply_chat_template(self, conversation: Any, **options: Any) -> list[int]:
        assert options["add_generation_prompt"]
        if self.refuses and conversation[-1]["content"] == "\u2042":
            raise ValueError("the template refuses it")
        last_user = max(i for i, m in enumerate(conversation) if m["role"] == "user")
        out = self.ids(json.dumps(options["tools"]))
        for i, m in enumerate(conversation):
            out += [BEGIN, *self.ids(m["role"] + "\n" + self.text(m, i > last_user))]
            out += [] if m["role"] == "assistant" and self.end is None else [self.end or END]
            out += self.ids("\n")
        return [*out, BEGIN, *self.ids("assistant\n")]

    def text(self, m: Mapping[str, Any], new: bool) -> str:
        out = ""
        if m.get("reasoning_content") and (new or not self.strips):
            out += f"<think>{m['reasoning_content']}</think>"
        out += str(m["content"]).strip() if self.trims else str(m["content"])
        for tool in m.get("tool_calls") or ():
            function = tool["function"]
            out += f"<call>{function['name']} {json.dumps(function['arguments'], sort_keys=self.sorts)}</call>"
        return out


class Agent:
    """Agent calls, and writes answers anew before it sends them again."""

    def __init__(self, conversation: Conversation, tokenizer: Letters, seed: int = 0) -> None:
        self.conversation, self.tokenizer, self.random = conversation, tokenizer, random.Random(seed)
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "do it"}]
        self.tools: list[dict[str, Any]] = TOOLS
        self.number = 0

    def call(self) -> Call:
        self.number += 1

        async def send(*_: object) -> None: ...

        call = Call(Key("alpha-1", 1, self.number), Answer(Key("alpha-1", 1, self.number), "g", None), send)  # type: ignore[arg-type]
        call.raw_messages = [raw_json(m) for m in self.messages]
        call.raw_tools, call.raw_params = raw_json(self.tools) if self.tools else b"", {}
        call._parsed = [None] * len(self.messages)
        return call

    async def turn(self, finish_reason: str = "", tool: bool = True) -> tuple[list[int], list[int]]:
        """Ask once, and return the prompt and the sampled ids."""
        call = self.call()
        prompt = self.conversation.prompt_ids(call)
        thought, said = f"hm  {self.number} all", f"well, step {self.number} \n"
        arguments = f'{{"b":  "all {self.number}", "a": [1,2]}}'
        text = f"<think>{thought}</think>{said}" + (f"<call>bash {arguments}</call>" if tool else "")
        ids = [ord(c) for c in text] + ([] if finish_reason == "length" else [END])
        message: dict[str, Any] = {"role": "assistant", "content": said, "reasoning_content": thought}
        if tool:
            function = {"name": "bash", "arguments": arguments}
            message["tool_calls"] = [{"id": f"c{self.number}", "type": "function", "function": function}]
        finish_reason = finish_reason or ("tool_calls" if tool else "stop")
        await call.reply(Reply(message=message, finish_reason=finish_reason, prompt_ids=prompt, completion_ids=ids))
        self.messages.append(self.again(message))
        if tool:
            self.messages.append({"role": "tool", "tool_call_id": f"c{self.number}", "content": f"all {self.number}"})
        if not tool or self.random.random() < 0.3:
            self.messages.append({"role": "user", "content": f"more {self.number}, {END}"})
        return prompt, ids

    def again(self, message: dict[str, Any]) -> dict[str, Any]:
        out = dict(message)
        if self.random.random() < 0.5:
            del out["reasoning_content"]
        if self.random.random() < 0.5:
            out["content"] = out["content"].strip()
        if "tool_calls" in out and self.random.random() < 0.5:
            [tool] = out["tool_calls"]
            function = {**tool["function"], "arguments": json.dumps(json.loads(tool["function"]["arguments"]))}
            out["tool_calls"] = [{**tool, "function": function}]
        return out


def starts(prompt: Sequence[int], before: tuple[list[int], list[int]]) -> bool:
    ids = [*before[0], *before[1]]
    return list(prompt[: len(ids)]) == ids


async def test_no_sampled_token_is_lost_with_any_template() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        flags = {name: rng.random() < 0.5 for name in ("strips", "sorts", "trims", "merges")}
        tokenizer = Letters(**flags)
        agent = Agent(Conversation(tokenizer), tokenizer, seed)
        before = await agent.turn(tool=rng.random() < 0.7)
        for _ in range(4):
            behind = agent.messages[len(agent.call().raw_messages) - 1]
            now = await agent.turn(tool=rng.random() < 0.7)
            assert starts(now[0], before), (seed, flags)
            rest = now[0][len(before[0]) + len(before[1]) :]
            text = "".join(chr(i) for i in rest if i not in (BEGIN, END, MERGED))
            assert behind["content"].replace("ll" if tokenizer.merges else "\0", "") in text, (seed, flags)
            assert text.endswith("assistant\n")
            assert rest.count(BEGIN) == rest.count(END) + 1, (seed, flags)
            before = now


@pytest.mark.parametrize("tool", [False, True])
async def test_an_answer_that_was_cut_gets_the_end_of_the_template(tool: bool) -> None:
    tokenizer = Letters(strips=True)
    agent = Agent(Conversation(tokenizer), tokenizer)
    before = await agent.turn("length", tool)
    now = await agent.turn()
    assert starts(now[0], before)
    assert now[0][len(before[0]) + len(before[1])] == END


async def test_ends_of_a_template_that_are_not_sampled() -> None:
    for tokenizer, ends, kept in (
        (Letters(end=OTHER_END), [OTHER_END], True),  # as <|eom_id|> and <|eot_id|> of Llama
        (Letters(end=OTHER_END), [], False),  # it is not certain where the call ends
        (Letters(end=None, eos_token_id=None), [], False),
    ):
        agent = Agent(Conversation(tokenizer, ends=ends), tokenizer)
        before, now = await agent.turn(), await agent.turn()
        assert starts(now[0], before) is kept
    tokenizer = Letters(end=None)
    agent = Agent(Conversation(tokenizer), tokenizer)
    before, now = await agent.turn(tool=False), await agent.turn()
    assert starts(now[0], before)


async def test_a_call_that_does_not_continue_an_answer_is_rendered_whole() -> None:
    tokenizer = Letters(sorts=True)
    conversation = Conversation(tokenizer)
    agent = Agent(conversation, tokenizer)
    before = await agent.turn()
    agent.messages[1] = {"role": "user", "content": "a summary"}
    whole = Conversation(tokenizer).prompt_ids(agent.call())
    now = await agent.turn()
    assert not starts(now[0], before)
    assert now[0] == whole
    tokenizer.refuses = True
    assert not starts((await agent.turn())[0], now)


async def test_a_call_with_other_tools_is_rendered_whole() -> None:
    """The ids of earlier prompts have the tools that the agent offered then."""
    tokenizer = Letters(sorts=True)
    agent = Agent(Conversation(tokenizer), tokenizer)
    before = await agent.turn()
    for tools in ([], [*TOOLS, *TOOLS]):
        agent.tools = tools
        whole = Conversation(tokenizer).prompt_ids(agent.call())
        assert agent.conversation.prompt_ids(agent.call()) == whole
        assert not starts(whole, before)
    agent.tools = TOOLS
    assert starts(agent.conversation.prompt_ids(agent.call()), before)
