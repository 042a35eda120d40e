"""Answers of upstreams in the form of OpenAI chat, with the token ids that vLLM and SGLang add for return_token_ids."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InvalidError
from ..schema import Delta, Reply, Usage, VersionSpan
from ..schema.codec import raw_json
from ..serving.call import check_reply
from ..serving.message import sum_of
from ..serving.refusal import aborted, bad_answer, refused_in_stream
from .request import Request
from .tool_calls import PiecesOfCalls, with_text_arguments

SGL_HEADERS = ("X-SGLExt-Return-Input-IDs", "X-SGLExt-Return-Output-IDs")
"""Make SGLang add the token ids to a stream. Other servers ignore them."""


@dataclass(slots=True)
class Completion:
    """Completion is an answer, or the part of one that has arrived."""

    message: Any = None
    finish_reason: str = ""
    prompt_ids: array[int] = field(default_factory=lambda: array("i"))
    ids: array[int] = field(default_factory=lambda: array("i"))
    logprobs: list[float] | None = None
    tops: list[Any] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    versions: list[VersionSpan] = field(default_factory=list)  # if the upstream names them

    def reply(self, request: Request, version: str) -> Reply:
        """Return the reply, with the message for the agent and the data for training.

        Raises:
            FaultError: The answer is not usable.
        """
        if self.finish_reason == "abort":
            raise aborted()
        if not self.finish_reason:
            raise bad_answer("finish_reason: it is missing")
        if not request.settings.plain:  # name the parameters that the upstream dropped silently
            if not self.ids or not self.prompt_ids:
                request.edit("return_token_ids")
            if self.logprobs is None:
                request.edit("logprobs")
        reply = Reply(
            message=self.message, finish_reason=self.finish_reason, usage=self.usage, sampling=request.sampling(),
            edits=sorted(request.edits), prompt_ids=self.prompt_ids, completion_ids=self.ids,
            logprobs=self.logprobs if self.logprobs and self.ids else (),
            versions=self._versions(version), keep_reasoning=request.settings.keep_reasoning,
        )  # fmt: skip
        if reply.logprobs and "top_logprobs" in request.params:
            reply.top_logprobs = raw_json(self.tops)
        try:
            check_reply(reply)
        except InvalidError as e:
            raise bad_answer(str(e)) from None
        return reply

    def _versions(self, version: str) -> list[VersionSpan]:
        """Return the trainer's name of the version, but the upstream's if it changed in the middle of the answer."""
        if not version or len(self.versions) > 1:
            return self.versions
        return [VersionSpan(version=version, end=len(self.ids))]


def parse(data: bytes | str) -> Any:
    """Return the JSON object of an upstream.

    Raises:
        FaultError: It is none.
    """
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise bad_answer(f"it cannot be read: {e}") from None
    if not isinstance(value, dict):
        raise bad_answer(f"it cannot be read: it is a {type(value).__name__}, want an object")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def whole(data: bytes) -> Completion:
    """Read an answer that came at once."""
    got = Completion()
    value = parse(data)
    choices = value.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise bad_answer(f"choices: {len(choices) if isinstance(choices, list) else 'none'} came, want 1")
    _add_meta(got, value)
    add_choice(got, choices[0])
    got.message = with_text_arguments(choices[0].get("message"))
    return got


def _add_meta(got: Completion, value: dict[str, Any]) -> None:
    if value.get("prompt_token_ids"):  # of a stream, in the first chunk
        got.prompt_ids = ids_of(value["prompt_token_ids"], "prompt_token_ids")
    extra = value.get("sglext")  # in the last chunk of a stream of SGLang
    if isinstance(extra, dict):
        if extra.get("input_ids") and not got.prompt_ids:
            got.prompt_ids = ids_of(extra["input_ids"], "sglext.input_ids")
        outputs = extra.get("output_ids")
        if isinstance(outputs, list) and len(outputs) == 1 and not got.ids:
            got.ids = ids_of(outputs[0], "sglext.output_ids")
    usage = value.get("usage")
    if isinstance(usage, dict):
        prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        if not isinstance(prompt, int) or not isinstance(completion, int):
            raise bad_answer("usage: want counts")
        got.usage = Usage(prompt_tokens=prompt, completion_tokens=completion)


def add_choice(got: Completion, choice: dict[str, Any]) -> tuple[array[int], list[float]]:
    """Add the ids and log-probs of a choice, and return them."""
    if choice.get("finish_reason"):
        got.finish_reason = str(choice["finish_reason"])
    if choice.get("prompt_token_ids") and not got.prompt_ids:  # SGLang's place for them
        got.prompt_ids = ids_of(choice["prompt_token_ids"], "prompt_token_ids")
    ids, values = ids_of(choice.get("token_ids") or choice.get("response_token_ids") or [], "token_ids"), []
    got.ids.extend(ids)
    if choice.get("logprobs") is not None:
        try:
            for entry in choice["logprobs"].get("content") or []:
                values.append(float(entry["logprob"]))
                got.tops.append(entry.get("top_logprobs"))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise bad_answer("logprobs: want the content of OpenAI's log-probs") from None
        got.logprobs = [*(got.logprobs or ()), *values]
    return ids, values


def ids_of(value: Any, name: str) -> array[int]:
    """Return token ids as an array."""
    try:
        return array("i", value)
    except (TypeError, OverflowError, ValueError) as e:
        raise bad_answer(f"{name}: {e}") from None


@dataclass(slots=True)
class Joined:
    """Joined is the part of a streamed answer that has arrived."""

    got: Completion = field(default_factory=Completion)
    deltas: list[Delta] = field(default_factory=list)
    role: str = "assistant"
    more: dict[str, Any] = field(default_factory=dict)  # other members of the message
    calls: PiecesOfCalls = field(default_factory=PiecesOfCalls)

    def add(self, data: str) -> Delta | None:
        """Add a chunk, and return the piece for the agent.

        Raises:
            FaultError: It is a refusal, or not readable.
        """
        chunk = parse(data)
        if chunk.get("error") or chunk.get("object") == "error":
            raise refused_in_stream(data.encode())
        _add_meta(self.got, chunk)
        choices = chunk.get("choices") or []
        if not isinstance(choices, list) or len(choices) > 1:
            raise bad_answer("choices: a chunk has several, want 1")
        if not choices:
            return None
        ids, logprobs = add_choice(self.got, choices[0])
        said = choices[0].get("delta") or {}
        if not isinstance(said, dict):
            raise bad_answer("delta: want an object")
        said = {name: value for name, value in said.items() if value is not None}
        if not said and not ids:
            return None
        if "tool_calls" in said:
            try:
                said["tool_calls"] = self.calls.add(said["tool_calls"])
            except ValueError as e:
                raise bad_answer(f"delta: {e}") from None
        for name, value in said.items():
            if name == "role":
                self.role = str(value)
            elif name not in ("content", "reasoning_content", "reasoning", "refusal", "tool_calls"):
                self.more[name] = value
        delta = Delta(delta=said, completion_ids=ids, logprobs=logprobs if ids else ())
        self.deltas.append(delta)
        return delta

    def finish(self) -> Completion:
        """Return the answer in the form without a stream."""
        if not self.got.finish_reason:
            raise bad_answer("finish_reason: the stream ended without one")
        try:
            message = sum_of(map(_one_reasoning, self.deltas)).message
        except (AttributeError, TypeError) as e:
            raise bad_answer(f"delta: {e}") from None
        if message.get("reasoning_content") and not any(d.delta.get("reasoning_content") for d in self.deltas):
            message["reasoning"] = message.pop("reasoning_content")  # the engine's own name
        self.got.message = {**self.more, **message, "role": self.role}
        return self.got


def _one_reasoning(delta: Delta) -> Delta:
    """Return a delta with its reasoning as reasoning_content. Engines use either name, or send the text under both."""
    if "reasoning" not in delta.delta:
        return delta
    said = dict(delta.delta)
    reasoning = said.pop("reasoning")
    if not said.get("reasoning_content"):
        said["reasoning_content"] = reasoning
    return replace(delta, delta=said)
