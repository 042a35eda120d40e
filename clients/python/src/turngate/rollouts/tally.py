"""Results of groups, and the groups that have enough of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import InvalidError
from ..schema import Result
from .failures import TREATMENTS, Failure, Treatment, treatment
from .results import Results
from .submissions import Submissions

Treatments = Mapping[Failure, Treatment]


class Tally:
    """Tally counts the usable results of groups."""

    def __init__(self, enough: int, treatments: Treatments = TREATMENTS) -> None:
        if enough < 0:
            raise InvalidError("enough", enough, "want a number of results, or 0 for all")
        self._enough, self._treatments = enough, treatments
        self._usable: dict[str, int] = {}

    def add(self, result: Result) -> bool:
        """Count a result, and report whether it is usable and its group has enough."""
        group = result.group
        if not self._enough or not group or treatment(result, self._treatments) != "train":
            return False
        self._usable[group] = self._usable.get(group, 0) + 1
        return self._usable[group] >= self._enough

    def forget(self, group: str) -> None:
        """Drop the count of a group that has ended."""
        self._usable.pop(group, None)


class Wanted:
    """Wanted are the results of a group, or of all rollouts, until none of them is outstanding."""

    def __init__(
        self,
        results: Results,
        submissions: Submissions,
        cancel: Callable[[str], None],
        group: str,
        enough: int,
        treatments: Treatments,
    ) -> None:
        self._results, self._submissions = results, submissions
        self._cancel = cancel  # called with each group that has enough
        self._group = group
        self._tally = Tally(enough, treatments)

    @property
    def outstanding(self) -> int:
        """Number of wanted rollouts without a delivered result."""
        return len(self._submissions.members(self._group))

    async def next(self) -> Result | None:
        """Wait for the next result; None: no wanted rollout is outstanding.

        Raises:
            ClosedError: The client is closed.
        """
        result = await self._results.next_of(self._group)
        # From here on nothing is awaited: otherwise a caller that is cancelled would lose the result.
        if result is not None:
            if self._tally.add(result):
                self._cancel(result.group)
            if not self._submissions.members(result.group):
                self._tally.forget(result.group)
        return result
