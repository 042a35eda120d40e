"""A policy that speaks a few words of shell: its tokens, its network, and its answers to an agent's calls."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from turngate import Call, Reply, VersionSpan

COLOURS = ("red", "green", "blue")
FILES = ("answer", "notes", "other")
SPECIAL = ("<pad>", "<user>", "<assistant>", "<tool>", "<end>", "<call>", "<unknown>")
WORDS = ("write", "to", "echo", ">", "cat", "ls", "done", "(no", "output)", *COLOURS, *FILES)
TOKENS = SPECIAL + WORDS
ID = {token: i for i, token in enumerate(TOKENS)}
PAD, END, CALL, UNKNOWN = ID["<pad>"], ID["<end>"], ID["<call>"], ID["<unknown>"]

LONGEST = 8
"""Most tokens of an answer, and most words of an instruction or of a tool's output."""

TURNS = 3
CONTEXT = (TURNS + 1) * 2 * (LONGEST + 2)


class Network(nn.Module):
    """Network is a transformer of 46,000 weights."""

    def __init__(self, width: int = 48, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(TOKENS), width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.2)
        nn.init.normal_(self.places.weight, std=0.2)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the log-probs of the next token at each place."""
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(ids) + self.places(torch.arange(length))
        x = self.norm(self.layers(x, mask=mask, is_causal=True))
        return functional.log_softmax(x @ self.tokens.weight.T, dim=-1)

    def of_tokens(self, ids: Tensor) -> Tensor:
        """Return the log-prob of each token after the ones before it; 0 for the first."""
        chosen = self(ids[:, :-1]).gather(2, ids[:, 1:, None])[:, :, 0]
        return functional.pad(chosen, (1, 0))


def words_of(text: str) -> list[int]:
    """Return the tokens of a text that is not the policy's own."""
    return [ID[word] if word in WORDS else UNKNOWN for word in text.split()[:LONGEST]]


def prompt_of(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the tokens of a conversation: the policy's chat template. It leaves the system message out."""
    out: list[int] = []
    for m in messages:
        if m["role"] == "user":
            out += [ID["<user>"], *words_of(m["content"])]
        elif m["role"] == "tool":
            out += [ID["<tool>"], *words_of(m["content"])]
        elif m["role"] == "assistant":
            command = json.loads(m["tool_calls"][0]["function"]["arguments"])["command"]
            out += [ID["<assistant>"], CALL, *(ID[token] for token in command.split()), END]
    return [*out, ID["<assistant>"]]


def message_of(ids: Sequence[int]) -> dict[str, Any]:
    """Return the message that an answer's tokens mean: a command for the agent's shell, or a text."""
    body = [TOKENS[i] for i in ids if i != END]
    if not body or ids[0] != CALL:
        return {"role": "assistant", "content": " ".join(body)}
    function = {"name": "bash", "arguments": json.dumps({"command": " ".join(body[1:])})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


class Policy:
    """Policy answers calls with the newest weights, and keeps those of every version."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.network = Network()
        learn_to_speak(self.network, random.Random(seed))
        self.version = 1
        self.versions = {1: copy.deepcopy(self.network.state_dict())}
        self._sampling = torch.Generator().manual_seed(seed)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Answer with new weights from now on."""
        self.network.load_state_dict(weights)
        self.version += 1
        self.versions[self.version] = copy.deepcopy(self.network.state_dict())

    async def answer(self, call: Call) -> Reply:
        """Sample an answer: the handler for Client.serve."""
        prompt = prompt_of(call.messages)
        ids, logprobs = self.sample(prompt)
        message = message_of(ids)
        return Reply(
            message=message,
            finish_reason="length" if ids[-1] != END else "tool_calls" if "tool_calls" in message else "stop",
            prompt_ids=prompt,
            completion_ids=ids,
            logprobs=logprobs,
            versions=[VersionSpan(version=f"step-{self.version}", end=len(ids))],
        )

    @torch.no_grad()
    def sample(self, prompt: Sequence[int]) -> tuple[list[int], list[float]]:
        """Sample tokens, and return them with their log-probs."""
        ids, logprobs = list(prompt), list[float]()
        while len(logprobs) < LONGEST:
            of_next = self.network(torch.tensor([ids]))[0, -1]
            token = int(torch.multinomial(of_next.exp(), 1, generator=self._sampling))
            ids.append(token)
            logprobs.append(float(of_next[token]))
            if token == END:
                break
        return ids[len(prompt) :], logprobs


def learn_to_speak(network: Network, rng: random.Random, steps: int = 150) -> None:
    """Teach a new network the form of commands. They have the instruction's word more often than by chance."""
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(steps):
        texts = []
        for _ in range(32):
            colour = rng.choice(COLOURS)
            asked = [ID["<user>"], *words_of(f"write {colour} to answer"), ID["<assistant>"]]
            word = colour if rng.random() < 0.3 else rng.choice(COLOURS)
            said = f"echo {word} > {rng.choice(FILES)}" if rng.random() < 0.9 else "ls"
            output = [ID["<tool>"], *words_of("(no output)"), ID["<assistant>"]]
            texts.append([*asked, CALL, *words_of(said), END, *output, ID["done"], END])
        ids = padded(texts)
        loss = -(network.of_tokens(ids) * (ids != PAD)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def padded(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Return sequences as one tensor, filled up on the right."""
    longest = max(map(len, sequences))
    return torch.tensor([[*s, *[PAD] * (longest - len(s))] for s in sequences])
