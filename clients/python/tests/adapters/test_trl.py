"""TRL's GRPOTrainer on a CPU, with rollouts of a real worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scripted

from conftest import Server
from turngate import Call, Reply, Task
from turngate.client.sync import SyncClient

trl = pytest.importorskip("trl", reason="SKIPPED: trl is not installed; make adapters installs it")

import endings  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402

from turngate.adapters.trl import RolloutFunc, TrainedModel, reward  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny.tokenizer()


@pytest.fixture
def model() -> Any:
    return tiny.model()


@pytest.fixture
def client(server: Server) -> Iterator[SyncClient]:
    with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:
        yield client


def read(text: str, call: Call) -> dict[str, Any]:
    """A model that writes "good" first has solved the task."""
    if call.messages[-1]["role"] == "tool":
        return {"content": text}
    good = text.strip().startswith("good")
    return {**scripted.act("Hello, world!" if good else "Good night!"), "content": text}


def train(
    client: SyncClient, model: Any, tokenizer: Any, tasks: Path, tmp_path: Path, rollouts: Any, **more: Any
) -> Any:
    prompts = [{"prompt": str(tasks / "hello")}] * 4
    args = trl.GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=2, learning_rate=0.05,
        beta=0.0, disable_tqdm=True, **more,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=model, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer, rollout_func=rollouts,
    )  # fmt: skip
    trainer.train()
    return trainer


def test_the_trained_model_answers(client: SyncClient, model: Any, tokenizer: Any, tasks: Path, tmp_path: Path) -> None:
    rollouts = RolloutFunc(client, Task.load, TrainedModel(read), sandbox="local")
    seen: list[dict[str, Any]] = []
    worst = 0.0

    def checked(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        nonlocal worst
        out = rollouts(prompts, trainer)
        assert len(prompts) == 8
        for prompt, answer, mask, logprobs in zip(
            out["prompt_ids"], out["completion_ids"], out["env_mask"], out["logprobs"], strict=True
        ):
            assert len(answer) == len(mask) == len(logprobs)
            with torch.no_grad():
                logits = trainer.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            again = torch.log_softmax(logits, -1)[torch.arange(len(answer)), answer]
            ours = [(a, b) for a, b, m in zip(again.tolist(), logprobs, mask, strict=True) if m]
            worst = max(worst, *(abs(a - b) for a, b in ours))
        seen.append(out)
        return out

    trainer = train(client, model, tokenizer, tasks, tmp_path, checked, max_steps=3)
    assert len(seen) == 3
    assert worst < 1e-4
    assert all(mask[0] == 1 for out in seen for mask in out["env_mask"])
    assert any(0 in mask for out in seen for mask in out["env_mask"])  # a tool's result is context
    assert all(r in (0.0, 1.0) for out in seen for r in out["turngate_reward"])
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert [entry["reward"] for entry in logged] == [pytest.approx(sum(out["turngate_reward"]) / 8) for out in seen]


def test_rollouts_that_fail_have_no_reward(
    client: SyncClient, model: Any, tokenizer: Any, tasks: Path, tmp_path: Path
) -> None:
    def policy(call: Call) -> Reply:
        if int(call.rollout[-1], 16) == 0:
            return Reply(message={"role": "assistant", "content": "no ids"}, finish_reason="stop")
        return scripted.answer(call, "Hello, world!")

    outs: list[dict[str, Any]] = []
    rollouts = RolloutFunc(client, Task.load, policy, sandbox="local")

    def kept(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        outs.append(rollouts(prompts, trainer))
        return outs[-1]

    train(client, model, tokenizer, tasks, tmp_path, kept, max_steps=1)
    [out] = outs
    assert out["turngate_rows"] == [0, 1, 1, 1, 1, 1, 1, 1]  # the two equal prompts are one group
    assert out["env_mask"][0] == [0]
    assert out["prompt_ids"][1] == scripted.PROMPT
    assert out["completion_ids"][1] == [*scripted.IDS[3:], tokenizer.eos_token_id]  # or TRL took it for cut off
    assert out["env_mask"][1] == [*scripted.MASK[3:], 0]
    assert out["logprobs"][1] == [*scripted.LOGPROBS[3:], 0.0]


def test_trl_counts_the_rollouts_that_were_cut_off(
    client: SyncClient, model: Any, tokenizer: Any, tasks: Path, tmp_path: Path
) -> None:
    ways = {i: way for i, way in enumerate(endings.WAYS) if way not in ("timeout", "fault")}
    eos = tokenizer.eos_token_id

    def policy(call: Call) -> Reply:
        second = call.messages[-1]["role"] == "tool"
        way = ways.get(int(call.rollout[-1], 16), "stop")
        if second and way in ("context", "agent"):
            raise endings.RefusedError(endings.TOO_LONG if way == "context" else "top_p must be above 0")
        reply = scripted.answer(call, "Hello, world!")
        reply.completion_ids, reply.logprobs = [*reply.completion_ids, eos], [*reply.logprobs, -0.25]
        reply.versions = []
        if second:
            reply.prompt_ids = [*scripted.PROMPT, *scripted.ACT, eos, *scripted.SEEN]
        elif way == "length":
            reply.finish_reason = "length"
        return reply

    outs: list[dict[str, Any]] = []
    rollouts = RolloutFunc(client, lambda prompt: endings.task(Path(prompt), "stop"), policy, sandbox="local")

    def kept(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        outs.append(rollouts(prompts, trainer))
        return outs[-1]

    trainer = train(client, model, tokenizer, tasks, tmp_path, kept, max_steps=1, mask_truncated_completions=True)
    [out] = outs
    assert out["turngate_ended"] == ["stop", "length", "context", "stop", "stop", "agent", "stop", "stop"]
    assert [ids[-1] == eos for ids in out["completion_ids"]] == [
        e not in ("length", "context") for e in out["turngate_ended"]
    ]
    assert [mask[-1] for mask in out["env_mask"]] == [1, 0, 0, 1, 1, 1, 1, 1]
    [ratio] = [entry["completions/clipped_ratio"] for entry in trainer.state.log_history if "reward" in entry]
    assert ratio == 2 / 8


def test_a_prompt_beyond_the_context_of_the_trained_model(
    client: SyncClient, tokenizer: Any, tasks: Path, tmp_path: Path
) -> None:
    model = tiny.model()
    model.config.max_position_embeddings = 8
    outs: list[dict[str, Any]] = []
    rollouts = RolloutFunc(client, Task.load, TrainedModel(read), sandbox="local")

    def kept(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        outs.append(rollouts(prompts, trainer))
        return outs[-1]

    train(client, model, tokenizer, tasks, tmp_path, kept, max_steps=1)
    assert set(outs[0]["turngate_ended"]) == {"context"}
