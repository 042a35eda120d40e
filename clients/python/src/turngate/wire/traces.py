"""Traces of OpenTelemetry, whose package is optional: pip install 'turngate[otel]'."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

try:
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _PROPAGATOR: TraceContextTextMapPropagator | None = None
else:
    _PROPAGATOR = TraceContextTextMapPropagator()

NAMES = "traceparent", "tracestate"
"""Headers of a trace, as W3C Trace Context defines them."""

MOST = 512
"""Longest header that is read."""


def of(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a trace among others."""
    if "traceparent" not in headers:
        return {}
    return {n: v for n in NAMES if isinstance(v := headers.get(n), str) and len(v) <= MOST}


def current() -> dict[str, str]:
    """Return the headers of the current span; none if there is no span."""
    out: dict[str, str] = {}
    if _PROPAGATOR is not None:
        _PROPAGATOR.inject(out)
    return out


@contextlib.contextmanager
def under(trace: Mapping[str, str]) -> Iterator[None]:
    """Begin tasks whose parent is the span that headers name; no span if there are none."""
    if _PROPAGATOR is None:
        yield
        return
    token = attach(_PROPAGATOR.extract(trace, Context()))
    try:
        yield
    finally:
        detach(token)
