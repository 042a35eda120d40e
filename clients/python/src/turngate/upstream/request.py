"""An agent's call in the form for the upstream."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..schema.codec import raw_json
from ..serving.call import Call
from ..serving.open_calls import FaultError
from ..serving.refusal import CONTEXT, Refusal, bad_answer, fail, wrong_configuration
from ..serving.tool import clip
from .limits import Limits

AGENTS = frozenset((
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "max_tokens", "max_completion_tokens", "reasoning_effort", "response_format",
    "tool_choice", "parallel_tool_calls",
))  # fmt: skip
"""Parameters that agents may set. Others do not reach the upstream."""

QUIET = frozenset((
    "client_metadata", "include", "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "service_tier", "store", "truncation", "user",
))  # fmt: skip
"""Parameters that do not affect the answer: they are left out without a word."""

OURS = frozenset((
    "model", "messages", "tools", "stream", "stream_options", "logprobs", "return_token_ids", "top_logprobs",
    "chat_template_kwargs",
))  # fmt: skip
"""Parameters that are set here, so the agent is never to blame for them."""

BOUNDS = ("max_completion_tokens", "max_tokens")
"""The two names of the bound of a completion; the first is newer."""

MOST_TOPS = 20
MOST_EDITS = 16

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_COMPLETION_TOO_LONG = re.compile(
    r"'?max_(?:completion_|new_)?tokens'?.* (?:is too large|cannot be greater than|must be (?:less|at most|<=))"
)
_TOPS_TOO_MANY = re.compile(r"Requested sample logprobs of \d+, which is greater than max allowed: (\d{1,9})")
_STARTED_WITHOUT = re.compile(r'"?[a-z]+"? tool choice requires --')
_OUT_OF_RANGE = re.compile(r"([a-z_]+) (?:must|cannot|should|is)\b")
_ECHO = re.compile(r" ?\(parameter=[a-z_]+(?:, value=.*)?\)$", re.DOTALL)  # vLLM adds it for programs


@dataclass(slots=True)
class Settings:
    """Settings of all requests."""

    max_tokens: int
    top_logprobs: int
    no_thinking: bool
    keep_reasoning: bool
    plain: bool
    limits: Limits


@dataclass(slots=True)
class Request:
    """Request is one call: with the parameters that training needs, and without those that the upstream refuses."""

    call: Call
    settings: Settings
    more: dict[str, bytes] = field(default_factory=dict)  # parameters of the transport, such as stream
    started: bool = False  # a piece of the answer has gone to the agent
    unbounded: bool = False  # leave out the bound of the completion
    bounded: bool = False  # the last request had a bound
    params: dict[str, bytes] = field(default_factory=dict)  # as last sent
    edits: set[str] = field(default_factory=set)

    def build(self, model: str, length: int) -> None:
        """Set the parameters. length is the upstream's context in tokens, 0 if unknown."""
        self.params, self.edits = {}, set()
        for name, raw in self.call.raw_params.items():
            if raw == b"null":
                continue
            if name in AGENTS:
                self.params[name] = raw
            elif name in ("model", "chat_template_kwargs") or name not in QUIET | OURS:
                self.edit(name)
        self._bound(length)
        self._add_ours()
        for name in self.settings.limits.refuses(time.monotonic()):
            self._leave_out(name)
        self.params["model"] = raw_json(model)
        self.params["messages"] = b"[" + b",".join(self.call.raw_messages) + b"]"
        if self.call.raw_tools:
            self.params["tools"] = self.call.raw_tools

    def body(self, messages: Sequence[Mapping[str, Any]] | None = None, answer: bool = True) -> bytes:
        """Return the body, with the call's messages or with others, and to render: with the beginning of an answer."""
        if messages is None:
            return json_object(self.params)
        more = {} if answer else {"add_generation_prompt": b"false"}
        return json_object({**self.params, "messages": raw_json(messages), **more})

    @property
    def bound(self) -> int:
        """The bound of the completion; 0: none."""
        return next((int(self.params[name]) for name in BOUNDS if name in self.params), 0)

    def _add_ours(self) -> None:
        if not self.settings.plain:
            self.params["logprobs"] = self.params["return_token_ids"] = b"true"
            tops = self._tops()
            if tops:
                self.params["top_logprobs"] = b"%d" % tops
        if self.settings.no_thinking:
            self.params["chat_template_kwargs"] = b'{"enable_thinking":false}'
        self.params.update(self.more)

    def _tops(self) -> int:
        """Return the larger number of the configuration's and the agent's, at most the upstream's limit."""
        asked = _value(self.call.raw_params.get("top_logprobs", b"0"))
        if not _number(asked) or asked < 0 or asked > MOST_TOPS:
            self.edit("top_logprobs")
        tops = max(int(min(asked, MOST_TOPS)) if _number(asked) else 0, self.settings.top_logprobs)
        most = self.settings.limits.most_tops(time.monotonic())
        if most is not None and tops > most:
            self.edit("top_logprobs")
            return most
        return tops

    def _bound(self, length: int) -> None:
        """Set the bound of the completion from the agent's request and the configuration.

        A bound that leaves no room for any prompt is left out, and so is one that the upstream found too large: then
        the rest of the context applies, which is smaller.
        """
        name, asked = "max_tokens", 0
        for n in BOUNDS:
            raw = self.params.pop(n, None)
            if raw is None:
                continue
            value = _value(raw)
            if not _number(value) or value < 1 or value != int(min(value, 1e300)):
                e = fail(400, f"the agent's {n} is {clip(raw.decode(errors='replace'), 100)}")
                e.fault.agent_message = f"{n} must be a whole number of at least 1."
                raise e
            if not asked:
                name, asked = n, int(min(value, 2**31 - 1))
        most = self.settings.max_tokens
        if most and (not asked or asked > most):
            asked = most
        self.bounded = False
        if asked and (self.unbounded or 0 < length <= asked):
            self.edit(name)
        elif asked:
            self.params[name], self.bounded = b"%d" % asked, True

    def _leave_out(self, name: str) -> None:
        """Remove a parameter that the upstream does not know. A bound is sent under its other name instead."""
        value = self.params.pop(name, None)
        if value is None:
            return
        self.edit(name)
        if name in BOUNDS:
            self.params[BOUNDS[1 - BOUNDS.index(name)]] = value

    def edit(self, name: str) -> None:
        """Note that a parameter differs from the agent's."""
        if len(self.edits) < MOST_EDITS and _PLAIN_NAME.fullmatch(name):
            self.edits.add(name)

    def sampling(self) -> bytes:
        """Return the parameters of the answer as JSON."""
        keep = OURS - {"top_logprobs", "chat_template_kwargs"}
        return json_object({name: raw for name, raw in self.params.items() if name not in keep})

    # Refusals.

    def mend(self, no: Refusal) -> bool:
        """Change the request for another try. It returns False if no change helps."""
        if no.status not in (400, 422) or self.started:
            return False
        if no.unknown:
            return self._learn(no.unknown)
        about_context, prompt = no.context()
        too_long = about_context or _COMPLETION_TOO_LONG.match(no.message) or no.param in BOUNDS
        if self.bounded and not prompt and too_long:
            self.unbounded = True
            return True
        m = _TOPS_TOO_MANY.match(no.message)
        if m is None or int(self.params.get("top_logprobs", b"0")) <= int(m[1]):
            return False
        self.settings.limits.tops, self.settings.limits.tops_at = int(m[1]), time.monotonic()
        return True

    def _learn(self, name: str) -> bool:
        """Leave out an unknown parameter from now on, unless the call or training needs it."""
        needed = OURS - {"stream_options", "chat_template_kwargs"}
        if name not in self.params or name in needed:
            return False
        self.settings.limits.refuse(name, time.monotonic())
        return True

    def blame(self, no: Refusal) -> FaultError:
        """Return the final fault of a refusal, with the words for the agent."""
        if no.fault.status != 400 or no.fault.code == CONTEXT or no.status == 405:
            return no
        fault = copy.copy(no.fault)
        name = no.unknown or no.param
        m = _OUT_OF_RANGE.match(no.message)
        if not name and m:
            name = m[1]
        if _STARTED_WITHOUT.match(no.message):
            no.fault = wrong_configuration(fault.message).fault
            return no
        if name in ("logprobs", "return_token_ids", "top_logprobs"):
            return bad_answer(f"{name}, which training needs, is not taken: {clip(no.message, 1000)}")
        if name in self.params and name in AGENTS:
            fault.agent_message = clip(" ".join(_ECHO.sub("", no.message).split()), 500)
        return FaultError(fault)


def json_object(members: dict[str, bytes]) -> bytes:
    """Return an object of members that are JSON already."""
    return b"{" + b",".join(raw_json(name) + b":" + members[name] for name in sorted(members)) + b"}"


def _value(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
