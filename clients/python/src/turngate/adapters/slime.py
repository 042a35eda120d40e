"""A generate function of slime whose samples are rollouts: pip install './clients/python[upstream]' beside slime.

generate = Generate(lambda sample: Task.load(sample.metadata["task"]), creds="trainer-local.nk")   # my_rollouts.py

--custom-generate-function-path my_rollouts.generate
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx

from ..serving.call import Call
from ..serving.refusal import Refusal, fail, refused
from ..trajectory.ending import TRUNCATED, Ending
from .chat import Chat, Parse, Tokenizer
from .engine import Generated, policy
from .rollouts import Connection, ConnectionOptions, Sample, ToTask

if TYPE_CHECKING:
    from typing_extensions import Unpack

_STATUSES: Mapping[Ending, str] = {
    "stop": "COMPLETED",
    **dict.fromkeys(TRUNCATED, "TRUNCATED"),
    "agent": "FAILED",
    "fault": "FAILED",
}


class Generate:
    """Generate runs a rollout for each sample. The SGLang router of slime answers its model calls.

    It fills the sample with the row with the most tokens of the model. A sample without a row, or of a rollout that
    failed, is removed from the loss. A rollout that was cut off is truncated; metadata["turngate_ended"] says how.
    slime asks its reward model where the reward is not known.
    """

    def __init__(
        self,
        task: ToTask,
        *,
        tokenizer: Tokenizer | None = None,
        parse: Parse | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Prepare rollouts.

        Args:
            task: It returns the task of a sample.
            tokenizer: The policy's tokenizer. Default: of args.hf_checkpoint.
            parse: It reads the model's texts; see Chat.
            options: The server, the trainer, the agent and its sandbox; see ConnectionOptions.
        """
        self._tokenizer, self._parse = tokenizer, parse
        self._connection = Connection(task, options)
        self._http: httpx.AsyncClient | None = None

    async def __call__(self, args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
        """Fill a sample and return it."""
        tokenizer = self._tokenizer = self._tokenizer or _load(args.hf_checkpoint)
        http = self._http = self._http or httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=None)
        url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
        seen: list[str] = []

        async def send(call: Call, prompt: list[int], sampling: dict[str, Any]) -> httpx.Response:
            body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
            try:
                answer = await http.post(url, json=body, headers={"X-SMG-Routing-Key": call.rollout})
            except httpx.HTTPError as e:
                raise fail(503, f"{type(e).__name__}: {e}") from e
            if answer.status_code != 200:
                raise refused(answer.status_code, answer.reason_phrase, answer.headers, answer.content)
            return answer

        async def ask(call: Call, prompt: list[int]) -> Generated:
            try:
                answer = await send(call, prompt, sampling_params)
            except Refusal as no:
                room = no.room()
                if not room:
                    raise
                answer = await send(call, prompt, {**sampling_params, "max_new_tokens": room})
            meta = answer.json()["meta_info"]
            made = meta.get("output_token_logprobs") or []
            version = meta.get("weight_version")
            if version is not None and version not in seen:
                seen.append(version)
            ids, logprobs = [int(t[1]) for t in made], [float(t[0]) for t in made]
            return Generated(ids, logprobs, version, meta["finish_reason"]["type"])

        rollouts = await self._connection.rollouts()
        episode = await rollouts.run(sample, policy(Chat(tokenizer, self._parse), ask))
        row = episode.main
        ended = episode.ended
        status = _STATUSES[ended]
        if row is None:
            row = Sample([tokenizer.eos_token_id], [tokenizer.eos_token_id], [0], [0.0], [-1])
            status = "FAILED" if status == "COMPLETED" else status
        sample.remove_sample = 1 not in row.mask or ended == "fault"
        sample.tokens = [*row.prompt_ids, *row.response_ids]
        sample.response = tokenizer.decode(row.response_ids)
        sample.response_length = len(row.response_ids)
        sample.loss_mask, sample.rollout_log_probs = row.mask, row.logprobs
        sample.reward, sample.weight_versions = episode.reward, seen
        added = {"turngate_rollout": episode.result.id, "turngate_ended": ended, "turngate_left_out": episode.left_out}
        sample.metadata = {**sample.metadata, **added}
        sample.status = type(sample).Status[status]
        return sample

    async def aclose(self) -> None:
        """Close the connections. A later sample opens others."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()
        await self._connection.close()


def _load(checkpoint: str) -> Tokenizer:
    from transformers import AutoTokenizer

    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True)
    return tokenizer
