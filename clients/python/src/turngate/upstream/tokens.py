"""Engines that take and give token ids. A prompt begins with the very ids of the answers before it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..schema import Usage, VersionSpan
from ..schema.codec import raw_json
from ..serving.call import Call
from ..serving.refusal import bad_answer, too_long, wrong_configuration
from ..serving.turns import Turn, Turns, continued, probes
from .completion import Completion, add_choice, ids_of, parse, whole
from .http import Connection
from .request import AGENTS, BOUNDS, Request, json_object


class Template(Protocol):
    """Template turns messages into token ids and back, as the model's chat template does. SGLang needs one."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], answer: bool
    ) -> Sequence[int]:
        """Return the ids of a conversation; with answer, also the ones that begin an answer."""

    def parse(self, ids: Sequence[int], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the assistant message that ids of an answer mean, with its tool calls."""


class Tokens(Protocol):
    """Tokens is an upstream that completes token ids."""

    async def complete(self, request: Request, length: int, headers: Mapping[str, str]) -> Completion:
        """Complete a built request. length is the upstream's context in tokens, 0 if unknown."""


def room(prompt: Sequence[int], length: int, asked: int) -> int:
    """Return the bound of a completion: as asked, at most the rest of the context; 0: there is none."""
    if not length:
        return asked
    left = length - len(prompt)
    if left < 1:
        raise too_long(f"the prompt has {len(prompt)} tokens, and its context {length}")
    return min(asked or left, left)


class VLLM:
    """VLLM renders, generates and parses with vLLM's own routes."""

    def __init__(self, http: Connection) -> None:
        self._http = http
        self._turns = Turns()

    async def complete(self, request: Request, length: int, headers: Mapping[str, str]) -> Completion:
        call, chat = request.call, request.body()
        asked = await self._ask("/v1/chat/completions/render", chat, headers)
        rendered = ids_of(asked.get("token_ids"), "token_ids")
        turn = self._turns.before(call)
        prompt = (await self._continued(request, turn, rendered, headers) if turn is not None else None) or rendered
        asked["token_ids"] = list(prompt)
        sampling = asked.get("sampling_params")
        if not isinstance(sampling, dict):
            raise bad_answer("sampling_params: want an object")
        sampling["max_tokens"] = room(prompt, length, request.bound) or sampling.get("max_tokens")
        answer = await self._ask("/inference/v1/generate", raw_json(asked), headers)
        got = _generated(answer, prompt)
        if got.finish_reason == "abort":
            return got
        wrapped = {"generate_response": answer, "prompt_token_ids": list(prompt), "prompt_tokens": len(prompt)}
        body = raw_json(wrapped)[:-1] + b',"chat_request":' + chat + b"}"
        said = whole(await self._http.ask("POST", "/v1/chat/completions/derender", body, headers))
        got.message, got.finish_reason = said.message, said.finish_reason
        ended = got.finish_reason != "length" and answer["choices"][0].get("stop_reason") is None
        if ended and got.ids and isinstance(got.message, dict):
            self._turns.add(call, got.message, got.prompt_ids + got.ids)
        return got

    async def _continued(
        self, request: Request, turn: Turn, whole: Sequence[int], headers: Mapping[str, str]
    ) -> Sequence[int] | None:
        """Return the prompt that continues a turn; None if the place of the later messages is not certain."""
        [until] = await self._render([request.body(request.call.messages[: turn.count + 1], answer=False)], headers)
        if turn.ids[-1] in until and list(whole[: len(until)]) == list(until):
            end = len(until) - 1 - list(reversed(until)).index(turn.ids[-1])
            return [*turn.ids, *whole[end + 1 :]]
        # The template writes an answer otherwise when messages follow.
        bodies = [request.body(m) for m in probes(request.call.messages, turn.count)]
        return continued(turn, await self._render(bodies, headers))

    async def _render(self, bodies: Sequence[bytes], headers: Mapping[str, str]) -> list[array[int]]:
        answers = await asyncio.gather(*(self._ask("/v1/chat/completions/render", b, headers) for b in bodies))
        return [ids_of(answer.get("token_ids"), "token_ids") for answer in answers]

    async def _ask(self, path: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        answer: dict[str, Any] = parse(await self._http.ask("POST", path, body, headers))
        return answer


def _generated(answer: dict[str, Any], prompt: Sequence[int]) -> Completion:
    """Read an answer of /inference/v1/generate."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise bad_answer("choices: want 1")
    got = Completion(prompt_ids=array("i", prompt))
    add_choice(got, choices[0])
    got.usage = Usage(prompt_tokens=len(prompt), completion_tokens=len(got.ids))
    for span in choices[0].get("weight_versions") or ():
        got.versions.append(VersionSpan(version=str(span["version"]), start=span["start"], end=span["end"]))
    return got


class SGLang:
    """SGLang generates with SGLang's /generate, and a template of the trainer's.

    It was never run with SGLang; a test compares its fields with the source of SGLang 0.5.23.
    """

    SAME = frozenset((
        "temperature", "top_p", "top_k", "min_p", "stop", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "logit_bias",
    ))  # fmt: skip

    def __init__(self, http: Connection, template: Template) -> None:
        self._http = http
        self._template = template
        self._turns = Turns()

    async def complete(self, request: Request, length: int, headers: Mapping[str, str]) -> Completion:
        call = request.call
        prompt = self._prompt(call)
        bound = room(prompt, length, request.bound)
        if not bound:
            raise wrong_configuration("it does not list its context: set max_tokens")
        values = {name: raw for name, raw in request.params.items() if name in self.SAME}
        sampling = {"max_new_tokens": b"%d" % bound, **values}
        if "seed" in request.params:
            sampling["sampling_seed"] = request.params["seed"]
        for name in (AGENTS & request.params.keys()) - self.SAME - {"seed", *BOUNDS}:
            request.edit(name)
            del request.params[name]
        tops = int(request.params.get("top_logprobs", b"0"))
        members = {
            "input_ids": list(prompt),
            "return_logprob": True,
            "top_logprobs_num": tops,
            "rid": headers["X-Request-Id"],
        }
        body = raw_json(members)[:-1] + b',"sampling_params":' + json_object(sampling) + b"}"
        answer = parse(await self._http.ask("POST", "/generate", body, headers))
        got = _of_sglang(answer, prompt)
        if got.finish_reason == "abort":
            return got
        got.message = self._template.parse(got.ids, call.tools)
        if got.finish_reason == "stop" and got.message.get("tool_calls"):
            got.finish_reason = "tool_calls"
        matched = answer["meta_info"]["finish_reason"].get("matched")
        if got.ids and matched == got.ids[-1]:
            self._turns.add(call, got.message, got.prompt_ids + got.ids)
        return got

    def _prompt(self, call: Call) -> Sequence[int]:
        turn = self._turns.before(call)
        if turn is not None:
            short = [self._template.render(m, call.tools, True) for m in probes(call.messages, turn.count)]
            prompt = continued(turn, short)
            if prompt is not None:
                return prompt
        return self._template.render(call.messages, call.tools, True)


def _of_sglang(answer: dict[str, Any], prompt: Sequence[int]) -> Completion:
    """Read an answer of /generate."""
    got = Completion(prompt_ids=array("i", prompt))
    try:
        meta = answer["meta_info"]
        got.finish_reason = str(meta["finish_reason"]["type"])
        entries = meta["output_token_logprobs"]
        got.logprobs = [float(entry[0]) for entry in entries]
        got.ids = ids_of([entry[1] for entry in entries], "output_token_logprobs")
        got.tops = meta.get("output_top_logprobs") or [None] * len(entries)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
        raise bad_answer(f"meta_info: want the finish reason and a log-prob for each token: {e!r}") from None
    got.usage = Usage(prompt_tokens=len(prompt), completion_tokens=len(got.ids))
    if meta.get("weight_version"):
        got.versions = [VersionSpan(version=str(meta["weight_version"]), end=len(got.ids))]
    return got
