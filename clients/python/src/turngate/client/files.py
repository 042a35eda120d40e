"""The files of a trainer's rollouts: artifacts, transcripts, and training rows."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable

from ..errors import NotFoundError
from ..schema import Artifact, Result, TranscriptLine
from ..trajectory import transcript
from ..trajectory.reader import DEFAULT_ROLES, Rows, rows
from ..wire import names
from ..wire.objects import Objects


class Files(abc.ABC):
    """Files are the methods of a client that read files."""

    name: str
    _objects: Objects

    @abc.abstractmethod
    async def result(self, rollout: str) -> Result:
        """Return the stored result of a rollout."""

    async def artifact(self, artifact: Artifact) -> AsyncGenerator[bytes, None]:
        """Yield a file of a rollout in pieces. Its sha256 is checked at the end.

        Raises:
            NotFoundError: The server has deleted it.
            DigestError: The content is another. Drop the pieces.
        """
        async for piece in self._objects.chunks(names.artifacts_bucket(self.name), artifact.sha256):
            yield piece

    async def read_artifact(self, artifact: Artifact) -> bytes:
        """Return a file of a rollout. Errors are those of artifact."""
        return b"".join([piece async for piece in self.artifact(artifact)])

    async def read_transcript(self, rollout: Result | str) -> bytes:
        """Return the transcript of a rollout, or of its result, in its stored form. A file of it is called
        transcript.jsonl.zst; turngate.rows and `turngate rollout` read it.

        Raises:
            NotFoundError: The rollout has none or has not ended, or the server has deleted it.
        """
        result = await self.result(rollout) if isinstance(rollout, str) else rollout
        for a in result.artifacts:
            if result.transcript and a.name == result.transcript:
                return await self.read_artifact(a)
        raise NotFoundError(f"rollout {result.id} has no transcript")

    async def transcript(self, rollout: Result | str) -> AsyncIterator[TranscriptLine]:
        """Yield the lines of the transcript of a rollout, or of its result.

        Raises:
            NotFoundError: The rollout has none or has not ended, or the server has deleted it.
            ShapeError: It is damaged.
        """
        for line in transcript.lines(await self.read_transcript(rollout)):
            yield line

    async def rows(
        self,
        rollout: Result | str,
        *,
        merge: str = "realign",
        max_lost: int = 0,
        roles: Iterable[str] = DEFAULT_ROLES,
        without_logprobs: bool = False,
    ) -> Rows:
        """Return the training rows of a rollout, or of its result; see turngate.rows for the options.

        A rollout that made no model call has no rows. A damaged transcript is no error: the rows end there, and
        findings have the reason.

        Raises:
            NotFoundError: The rollout has not ended, or the server has deleted its transcript.
            InvalidError: An option is not valid.
        """
        result = await self.result(rollout) if isinstance(rollout, str) else rollout
        data = await self.read_transcript(result) if result.transcript else b""

        def make() -> Rows:
            return rows(data, result, merge=merge, max_lost=max_lost, roles=roles, without_logprobs=without_logprobs)

        return await asyncio.to_thread(make)  # the event loop keeps calls alive
