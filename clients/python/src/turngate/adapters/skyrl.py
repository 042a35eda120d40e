"""A generator of SkyRL whose trajectories are rollouts: pip install ./clients/python beside skyrl.

class Exp(BasePPOExp):
    def get_generator(self, cfg, tokenizer, inference_engine_client):
        return TurngateGenerator(inference_engine_client, tokenizer, lambda row: Task.load(row["task"]), creds=creds)
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput

from ..serving.call import Call
from ..trajectory.ending import ENDINGS, TRUNCATED
from .chat import Chat, Parse
from .engine import Generated, policy
from .rollouts import Connection, ConnectionOptions, Episode, Sample, ToTask

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TurngateGenerator(GeneratorInterface):
    """TurngateGenerator runs a rollout for each prompt, and a group of them for prompts with the same instance_id.
    SkyRL's engines answer the model calls.

    A trajectory is the row with the most tokens of the model. A rollout without a row, or with an unknown reward, is
    masked; its reward is then the mean of its prompt's other rollouts, which leaves their mean as it is. One that was
    cut off has the stop reason length, one that failed error.
    """

    def __init__(
        self,
        engines: Any,
        tokenizer: Any,
        task: ToTask,
        *,
        parse: Parse | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Prepare rollouts.

        Args:
            engines: SkyRL's client of its inference engines.
            tokenizer: The policy's tokenizer.
            task: It returns the task of a row: its env_extras, with its prompt as "prompt".
            parse: It reads the model's texts; see Chat.
            options: The server, the trainer, the agent and its sandbox; see ConnectionOptions.
        """
        self._engines, self._end = engines, int(tokenizer.eos_token_id)
        self._chat = Chat(tokenizer, parse)
        self._connection = Connection(task, options)

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """Run a rollout for each prompt; the order is kept."""
        sampling = input_batch.get("sampling_params")

        async def ask(call: Call, prompt: list[int]) -> Generated:
            out = await self._engines.generate(
                {
                    "prompts": None,
                    "prompt_token_ids": [prompt],
                    "sampling_params": sampling,
                    "session_ids": [call.rollout],
                }
            )
            logprobs = out.get("response_logprobs")
            return Generated(out["response_ids"][0], logprobs[0] if logprobs else (), end=out["stop_reasons"][0])

        extras = input_batch.get("env_extras") or [{} for _ in input_batch["prompts"]]
        rows = [{"prompt": p, **e} for p, e in zip(input_batch["prompts"], extras, strict=True)]
        rollouts = await self._connection.rollouts()
        ids = input_batch.get("trajectory_ids")
        names = [i.instance_id for i in ids] if ids else [str(i) for i in range(len(rows))]
        places = collections.defaultdict(list)
        for i, name in enumerate(names):
            places[name].append(i)
        wanted = [(rows[at[0]], len(at)) for at in places.values()]
        groups = await rollouts.groups(wanted, policy(self._chat, ask))
        made = {i: e for at, group in zip(places.values(), groups, strict=True) for i, e in zip(at, group, strict=True)}
        episodes = [made[i] for i in range(len(rows))]
        samples = [self._sample(e) for e in episodes]
        return GeneratorOutput(
            prompt_token_ids=[s.prompt_ids for s in samples],
            response_ids=[s.response_ids for s in samples],
            rewards=_rewards(episodes, names),
            loss_masks=[s.mask for s in samples],
            stop_reasons=[_stop_reason(e, s) for e, s in zip(episodes, samples, strict=True)],
            rollout_metrics={
                "turngate/unknown_rewards": sum(e.reward is None for e in episodes),
                "turngate/tokens_left_out": sum(e.left_out for e in episodes),
                **{f"turngate/ended_{name}": sum(e.ended == name for e in episodes) for name in ENDINGS},
            },
            rollout_logprobs=[s.logprobs for s in samples],
            trajectory_ids=ids,
            rollout_expert_indices=None,
            is_last_step=None,
            trajectory_generation_times=[sum(p.ms for p in e.result.phases) / 1000 for e in episodes],
        )

    async def aclose(self) -> None:
        """Close the connection. A later batch opens another one."""
        await self._connection.close()

    def _sample(self, episode: Episode) -> Sample:
        sample = episode.main or Sample([self._end], [self._end], [0], [0.0], [-1])
        if episode.reward is None:
            sample.mask = [0] * len(sample.mask)
        return sample


def _stop_reason(episode: Episode, sample: Sample) -> str:
    """Return SkyRL's word: its overlong filter leaves out all trajectories but those with stop."""
    if episode.ended in TRUNCATED:
        return "length"
    return "stop" if episode.ended == "stop" and 1 in sample.mask else "error"


def _rewards(episodes: Sequence[Episode], names: Sequence[str]) -> list[float]:
    known = collections.defaultdict(list)
    for episode, name in zip(episodes, names, strict=True):
        if episode.reward is not None:
            known[name].append(episode.reward)
    means = {name: sum(rewards) / len(rewards) for name, rewards in known.items()}
    return [means.get(n, 0.0) if e.reward is None else e.reward for e, n in zip(episodes, names, strict=True)]
