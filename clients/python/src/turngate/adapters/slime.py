"""A generate function of slime whose samples are rollouts: pip install './clients/python[upstream]' beside slime.

generate = Generate(lambda sample: Task.load(sample.metadata["task"]), creds="trainer-local.nk")   # my_rollouts.py

--custom-generate-function-path my_rollouts.generate
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from ..schema import Fault
from ..serving.call import Call
from ..serving.open_calls import FaultError
from .chat import Chat, Parse, Tokenizer
from .engine import Generated, policy
from .rollouts import Connection, ConnectionOptions, Sample, ToTask

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Generate:
    """Generate runs a rollout for each sample. The SGLang router of slime answers its model calls.

    It fills the sample with the row with the most tokens of the model. A sample without a row is failed and removed
    from the loss. slime asks its reward model where the reward is not known.
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

        async def ask(call: Call, prompt: list[int]) -> Generated:
            body = {"input_ids": prompt, "sampling_params": sampling_params, "return_logprob": True}
            try:
                answer = await http.post(url, json=body, headers={"X-SMG-Routing-Key": call.rollout})
                answer.raise_for_status()
            except httpx.HTTPError as e:
                text = f"{type(e).__name__}: {e}"
                raise FaultError(Fault(stage="call", code="upstream", status=503, message=text)) from e
            meta = answer.json()["meta_info"]
            made = meta.get("output_token_logprobs") or []
            version = meta.get("weight_version")
            if version is not None and version not in seen:
                seen.append(version)
            end = meta["finish_reason"]["type"]
            if end == "abort":
                raise FaultError(Fault(stage="call", code="aborted", status=503, message="the engine aborted it"))
            return Generated([int(t[1]) for t in made], [float(t[0]) for t in made], version, cut=end == "length")

        rollouts = await self._connection.rollouts()
        episode = await rollouts.run(sample, policy(Chat(tokenizer, self._parse), ask))
        row = episode.main
        status = type(sample).Status
        if row is None:
            row = Sample([tokenizer.eos_token_id], [tokenizer.eos_token_id], [0], [0.0], [-1])
            sample.remove_sample = True
        sample.tokens = [*row.prompt_ids, *row.response_ids]
        sample.response = tokenizer.decode(row.response_ids)
        sample.response_length = len(row.response_ids)
        sample.loss_mask, sample.rollout_log_probs = row.mask, row.logprobs
        sample.reward, sample.weight_versions = episode.reward, seen
        added = {"turngate_rollout": episode.result.id, "turngate_left_out": episode.left_out}
        sample.metadata = {**sample.metadata, **added}
        ended = status.TRUNCATED if row.cut else status.COMPLETED
        sample.status = ended if 1 in row.mask else status.FAILED
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
