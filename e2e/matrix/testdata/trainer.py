"""A trainer whose template leaves out earlier thinking: by adapters.chat.Chat, or by a handler with a Conversation.

Usage: trainer.py chat|handler URL CREDS TASK AGENT...
It runs each agent once and prints a JSON line with the tokens that were sampled, and those that are trained.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from typing import Any

from turngate import Call, Client, Conversation, Reply, Task
from turngate.adapters.chat import Chat

TURNS = 4
SHELLS = ("bash", "Bash", "exec_command", "run_shell_command", "Execute", "shell")


class Bytes:
    """Bytes is a tokenizer: a token is a byte, or one of two marks. Its template is like Qwen3's."""

    eos_token_id = 1000

    def apply_chat_template(self, conversation: Any, **options: Any) -> list[int]:
        ids = self._turn("system", json.dumps(options.get("tools") or []))
        for m in conversation:
            text = m["content"]
            if m["role"] == "assistant":
                text = text.rpartition("</think>")[2].strip()  # and reasoning_content is left out
            for call in m.get("tool_calls") or []:
                f = call["function"]
                text += f"\n<tool_call>\n{json.dumps({'name': f['name'], 'arguments': f['arguments']})}\n</tool_call>"
            ids += self._turn(m["role"], text)
        return [*ids, 1001, *b"assistant\n"] if options.get("add_generation_prompt") else ids

    def _turn(self, role: str, text: str) -> list[int]:
        return [1001, *f"{role}\n{text}".encode(), 1000, 10]

    def decode(self, token_ids: Any, **options: Any) -> str:
        return bytes(t for t in token_ids if t < 256).decode()


def sample(call: Call) -> list[int]:
    """Return the tokens of the model's answer: thinking, and a tool call with white space of its own."""
    name, key = shell_of(call)
    turn = sum(m["role"] == "tool" for m in call.messages)
    if not name:
        text = "A title"
    elif turn >= TURNS:
        text = "<think>\nAll steps are done.\n</think>\n\nAll done."
    else:
        arguments = {"description": "a step", key: f"echo turn{turn} >> hello.txt"}
        said = json.dumps({"name": name, "arguments": arguments}, separators=(" , ", ":"))
        thought = "Let me think about this step. " * 6
        text = f"<think>\n{thought}\n</think>\n\nStep {turn}.\n<tool_call>\n{said}\n</tool_call>"
    return [*text.encode(), Bytes.eos_token_id]


def shell_of(call: Call) -> tuple[str, str]:
    for tool in call.tools:
        f = tool["function"]
        if f["name"] in SHELLS:
            properties = f["parameters"]["properties"]
            return f["name"], next(k for k in ("command", "cmd") if k in properties)
    return "", ""


def read(text: str, call: Call) -> dict[str, Any]:
    """Read an answer with thinking and at most one tool call."""
    thought, _, rest = text.removeprefix("<think>").rpartition("</think>")
    said = re.search(r"<tool_call>\n(.*)\n</tool_call>", rest)
    message: dict[str, Any] = {"role": "assistant", "content": rest.partition("<tool_call>")[0].strip()}
    if thought:
        message["reasoning_content"] = thought.strip()
    if said:
        f = json.loads(said[1])
        f["arguments"] = json.dumps(f["arguments"])
        message["tool_calls"] = [{"id": f"call_{call.key.call}", "type": "function", "function": f}]
    return message


async def main(how: str, url: str, creds: str, path: str, *agents: str) -> None:
    sampled: Counter[str] = Counter()
    chat, conversation = Chat(Bytes(), read), Conversation(Bytes())

    async def by_chat(call: Call) -> Reply:
        prompt, ids = chat.prompt_ids(call), sample(call)
        return chat.reply(call, prompt, ids, [-0.1] * len(ids))

    async def by_hand(call: Call) -> Reply:
        prompt, ids = conversation.prompt_ids(call), sample(call)
        message = read(Bytes().decode(ids), call)
        finish = "tool_calls" if "tool_calls" in message else "stop"
        logprobs = [-0.1] * len(ids)
        return Reply(message=message, finish_reason=finish, prompt_ids=prompt, completion_ids=ids, logprobs=logprobs)

    async def answer(call: Call) -> Reply:
        reply = await (by_chat if how == "chat" else by_hand)(call)
        if call.tag == "agent":
            sampled[call.rollout] += len(reply.completion_ids)
        return reply

    async with await Client.connect(url, creds, "local") as client:
        client.serve(answer)
        for agent in agents:
            await client.submit_group(Task.load(path), agent=agent, sandbox="local", group=f"{how}-{agent}")
        async for result in client.results():
            rows = await client.rows(result)
            line = {
                "agent": result.agent,
                "reward": result.reward,
                "calls": result.calls["agent"].count,
                "sampled": sampled[result.id],
                "trained": sum(sum(row.loss_mask) for row in rows),
                "rows": len(rows),
                "fault": result.fault.message if result.fault else "",
            }
            print(json.dumps(line))


asyncio.run(main(*sys.argv[1:]))
