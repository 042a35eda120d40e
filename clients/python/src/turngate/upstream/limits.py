"""What refusals show of an upstream."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Limits:
    """Limits are what refusals show of an upstream. They expire, since another version may be started."""

    forget: float
    unknown: dict[str, float]  # unknown parameters, with the time of the refusal
    tops: int = 0  # largest top_logprobs of the upstream
    tops_at: float = -1.0  # below 0: not known

    def refuse(self, name: str, now: float) -> None:
        if len(self.unknown) < 32:
            self.unknown[name] = now

    def refuses(self, now: float) -> list[str]:
        self.unknown = {name: at for name, at in self.unknown.items() if now - at <= self.forget}
        return sorted(self.unknown)

    def most_tops(self, now: float) -> int | None:
        return self.tops if 0 <= self.tops_at >= now - self.forget else None
