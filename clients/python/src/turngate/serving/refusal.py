"""Refusals of engines, and the faults that follow from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..schema import Fault
from .open_calls import FaultError
from .tool import clip

CONTEXT = "context_length_exceeded"
ABORTED = "aborted"

MOST_MESSAGE = 4000
"""Longest text of a fault in bytes."""

# The beginning of a text about an unknown parameter. The text after the name may be the agent's own words.
_UNKNOWN = re.compile(
    r"(?:Unrecognized request arguments? supplied: |Unrecognized request argument: |"
    r"(?:Unknown|Unsupported|Unexpected|Unrecognized) (?:parameter|field|argument):? ['\"`]?|"
    r"property '|"
    r"\d+ validation errors?:\s*\{'type': 'extra_forbidden', 'loc': '(?:body\.)?|"
    r"\[\{'type': 'extra_forbidden', 'loc': \('body', ')([a-z_]+)"
)
# The prompt alone is too long, even with a smaller bound of the completion.
_PROMPT_TOO_LONG = re.compile(
    r"prompt contains at least \d+ input tokens|Please reduce the length of the input|"
    r"longer than the model's context length|[Pp]rompt is too long|"
    r"exceeds the (?:maximum allowed|model's maximum input|available context)|maximum prompt length|"
    r"exceeds? the context window"
)
# The prompt, the completion or their sum is too long.
_CONTEXT_TOO_LONG = re.compile(r"maximum context length|context length|context_length|max_model_len|context size")
# SGLang's words about a prompt and a bound that are too long together, with its context and the length of the prompt.
_TOGETHER = re.compile(r"maximum context length of (\d{1,9}) tokens\..* (\d{1,9}) tokens from the input messages")


class Refusal(FaultError):
    """Refusal is an error response of an engine, with the fault for its status and its words."""

    def __init__(self, status: int, data: bytes) -> None:
        self.status = status
        self.message = ""
        self.param = ""  # the parameter that it names
        self.code = ""
        self.unknown = ""  # the parameter that the upstream does not know
        self._read(data)
        super().__init__(Fault(code="upstream"))

    def _read(self, data: bytes) -> None:
        """Read OpenAI's error object, the same without the outer object (SGLang), and FastAPI's detail."""
        try:
            whole = json.loads(data)
        except (ValueError, RecursionError):
            whole = None
        if not isinstance(whole, dict):
            self.message = data.decode(errors="replace").strip()
            self.unknown = _unknown_in(self.message)
            return
        error, named = whole.get("error"), whole
        if isinstance(error, dict):
            named = error
        elif isinstance(error, str):
            named = {**whole, "message": error}
        self.message, param = _text(named, "message"), _text(named, "param")
        detail = whole.get("detail")
        if not self.message and isinstance(detail, str):
            self.message = detail
        elif not self.message and isinstance(detail, list) and detail and isinstance(detail[0], dict):
            self.message, at = _text(detail[0], "msg"), detail[0].get("loc")
            if isinstance(at, list) and len(at) > 1 and at[0] == "body":
                param = str(at[1])
                if detail[0].get("type") == "extra_forbidden" and len(at) == 2:
                    self.unknown = param
        self.code = _text(named, "code") or _text(named, "type")
        self.param = param.removeprefix("body.").split(".")[0]
        self.unknown = self.unknown or _unknown_in(self.message)

    def context(self) -> tuple[bool, bool]:
        """Report whether it is about the length of the context, and whether the prompt alone is too long."""
        alone = self.param == "input_tokens" or self.code == "exceed_context_size_error"
        if alone or _PROMPT_TOO_LONG.search(self.message):
            return True, True
        return self.code == CONTEXT or _about_context(self.message), False

    def room(self) -> int:
        """Return the tokens that a prompt leaves for a completion if only both together are too long; 0: not known."""
        m = _TOGETHER.search(self.message)
        return max(0, int(m[1]) - int(m[2])) if m else 0


def _about_context(text: str) -> bool:
    return bool(_PROMPT_TOO_LONG.search(text) or _CONTEXT_TOO_LONG.search(text))


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return value if isinstance(value, str) else ""


def _unknown_in(message: str) -> str:
    m = _UNKNOWN.match(message)
    return m[1] if m else ""


def retryable(status: int) -> bool:
    return status in (425, 429) or status >= 500


def refused(status: int, reason: str, headers: Mapping[str, str], data: bytes) -> Refusal:
    """Read a refusal. A fault of the agent's request is final; all others are retryable."""
    no = Refusal(status, data)
    text = f"it says {status} {reason}: {clip(data.decode(errors='replace').strip(), 2000)}"
    if status in (401, 403, 404):
        no.fault = wrong_configuration(text).fault
    elif 400 <= status < 500 and not retryable(status):
        no.fault = _final(no, text)
    else:
        no.fault = fail(status, text).fault
        after = headers.get("retry-after", "")
        if after.isdecimal() and len(after) < 10:
            no.fault.retry_after_ms = min(int(after), 600) * 1000
    return no


def refused_in_stream(data: bytes) -> Refusal:
    """Read a refusal that arrived as an event of a stream. Without a status it is retryable."""
    no, status = Refusal(0, data), 0
    whole = json.loads(data)
    error = whole.get("error")
    for code in (error.get("code") if isinstance(error, dict) else None, whole.get("code")):
        if isinstance(code, int) and 400 <= code <= 599:
            status = code
    no.status, text = status, f"it says in its stream: {clip(no.message, 2000)}"
    no.fault = _final(no, text) if 400 <= status < 500 and not retryable(status) else fail(status, text).fault
    return no


def raised(e: Exception) -> FaultError | None:
    """Return the final refusal that an exception of an engine's client means; None if it means none.

    Clients of HTTP keep the status of the engine, with its whole answer or its words. A client of an engine in another
    process keeps the words only.
    """
    answer = getattr(e, "response", None)
    found = (getattr(e, "status", None), getattr(e, "status_code", None), getattr(answer, "status_code", None))
    status = next((s for s in found if isinstance(s, int)), 0)
    message = getattr(e, "message", None)
    text = message if isinstance(message, str) and message else str(e)
    if not status:
        return too_long(clip(text, MOST_MESSAGE)) if _about_context(text) else None
    try:
        data = getattr(answer, "content", b"")
    except Exception:  # a stream that was not read
        data = b""
    no = refused(
        status, type(e).__name__, {}, data if isinstance(data, bytes) and data else text.encode(errors="replace")
    )
    return no if no.fault.status == 400 else None


def _final(no: Refusal, text: str) -> Fault:
    """Return the fault of a refusal after which the same request is not sent again."""
    if no.status != 405 and no.context()[0]:
        return too_long(text).fault
    return fail(400, text).fault


def too_long(text: str) -> FaultError:
    """Return the fault of a call that is longer than the model's context."""
    e = fail(400, text)
    e.fault.code, e.fault.agent_message = CONTEXT, "The conversation exceeds the model's context length."
    return e


def fail(status: int, text: str) -> FaultError:
    if not 400 <= status <= 599:
        status = 502
    return FaultError(Fault(stage="call", code="upstream", who="trainer", status=status, message=text))


def aborted() -> FaultError:
    """Return the fault of a generation that was cut off, for example by new weights."""
    e = fail(503, "it aborted the generation")
    e.fault.code = ABORTED
    return e


def bad_answer(text: str) -> FaultError:
    """Return the fault of an answer that is refused. Another try seldom helps, so a rollout fails after a few."""
    e = fail(502, "the answer is refused: " + text)
    e.fault.code = "bad_answer"
    return e


def wrong_configuration(text: str) -> FaultError:
    """Return a fault that an operator can correct while the call waits."""
    e = fail(503, text)
    e.fault.retry_after_ms = 5000
    return e
