"""Training rows, from the vectors that Go's package trajectory is tested with."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy
import pytest
import zstandard

from conftest import turngate_binary
from random_recording import Recording
from random_templates import Talk
from turngate import InvalidError, MissingPackageError, Result, Row, ShapeError, rows
from turngate.rollouts.progress import Progress
from turngate.schema import codec
from turngate.trajectory import transcript
from turngate.trajectory.token_counts import Tokens
from turngate.wire.tame import MOST_NESTING, tame

VECTORS = sorted((Path(__file__).parents[3] / "trajectory" / "testdata" / "rows").glob("*.json"))


def pack(lines: Iterable[str]) -> bytes:
    return zstandard.ZstdCompressor().compress("".join(line + "\n" for line in lines).encode())


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def listed(name: str, elements: list[str]) -> str:
    """Write a list with one element per line."""
    text = ",".join("\n    " + e for e in elements) + "\n  " if elements else ""
    return f',\n  "{name}": [{text}]'


@pytest.mark.parametrize("file", VECTORS, ids=lambda file: file.stem)
def test_golden_rows(file: Path) -> None:
    """The whole file comes out again, byte for byte."""
    text = file.read_text()
    vector = json.loads(tame(text))
    inputs, _, rest = text.partition(',\n  "lines": [')
    lines = [line.strip().removesuffix(",") for line in rest.partition("\n  ]")[0].splitlines() if line.strip()]
    result = codec.from_json(Result, vector["result"]) if vector["result"] else None
    found = rows(pack(lines), result, **vector["options"])
    got = inputs + listed("lines", lines)
    got += listed("calls", [compact(c.to_dict()) for c in found.calls])
    got += f',\n  "tokens": {compact(found.tokens.to_dict())}'
    got += listed("rows", [row.to_json() for row in found])
    got += listed("breaks", [compact(b.to_dict()) for b in found.breaks])
    got += listed("findings", [compact(f.to_dict()) for f in found.findings])
    assert got + "\n}\n" == text
    assert all(f.text for f in found.findings)
    assert all(b.text for b in found.breaks)


def test_rows_in_a_notebook_are_one_line() -> None:
    vector = json.loads(tame(next(f for f in VECTORS if f.stem == "linear").read_text()))
    found = rows(pack(map(compact, vector["lines"])), codec.from_json(Result, vector["result"]))
    assert repr(found) == "<Rows of alpha-01: 1, reward 1, 6 of 6 sampled tokens trained (100 %), 0 errors>"
    assert repr(found[0]) == "<Row 0 of alpha-01: agent, reward 1, 12 tokens, 6 trained, 3 calls>"
    assert repr(found.calls[0]) == "<RecordedCall 1: agent, stop, 3 and 2 tokens, 2 trained>"
    assert repr(Row()) == "<Row 0 of ?: ?, reward unknown, 0 tokens, 0 trained, 0 calls>"


def test_all_vectors_are_there() -> None:
    assert len(VECTORS) >= 49


def exported(files: Iterable[Path], *options: str) -> list[str]:
    """Return the rows that Go makes of transcripts."""
    export = [turngate_binary(), "rollout", "export", *options, *map(str, files)]
    return subprocess.run(export, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("merge", ["clean", "realign", "fork"])
def test_random_recordings_give_the_same_rows_as_in_go(tmp_path: Path, merge: str) -> None:
    files, own = [], []
    for seed in range(150):
        files.append(tmp_path / f"{seed}.jsonl.zst")
        files[-1].write_bytes(pack(map(compact, Recording(f"alpha-{seed}", seed).lines)))
        own += [row.to_json() for row in rows(files[-1], merge=merge, max_lost=2)]
    assert exported(files, "--merge", merge, "--max-lost", "2") == own
    assert len(own) > 150


@pytest.mark.parametrize("merge", ["clean", "realign", "fork"])
def test_every_sampled_token_is_trained_once(merge: str) -> None:
    """With the default bound, whatever template and agent do to the conversation."""
    calls = made = 0
    for seed in range(200):
        talk = Talk(f"alpha-{seed}", seed)
        found = rows(pack(map(compact, talk.lines)), merge=merge)
        trained: dict[int, list[int]] = {}
        for row in found:
            for span in row.calls:
                if span.trained:
                    assert span.call not in trained
                    trained[span.call] = row.input_ids[span.start : span.end].tolist()
        sampled = {line["call"]: line["reply"]["completion_ids"] for line in talk.lines if "reply" in line}
        assert trained == sampled
        assert sum(map(sum, (row.loss_mask for row in found))) == talk.sampled
        assert found.tokens == Tokens(talk.sampled, talk.sampled)
        calls, made = calls + len(found.calls), made + len(found)
    assert made == calls if merge == "fork" else made < calls * 0.9


@pytest.mark.parametrize("bound", [0, 3])
def test_random_templates_give_the_same_rows_as_in_go(tmp_path: Path, bound: int) -> None:
    files, own, lost = [], [], 0
    for seed in range(100):
        talk = Talk(f"alpha-{seed}", seed)
        files.append(tmp_path / f"{seed}.jsonl.zst")
        files[-1].write_bytes(pack(map(compact, talk.lines)))
        found = rows(files[-1], max_lost=bound)
        own += [row.to_json() for row in found]
        assert sum(sum(row.loss_mask) for row in found) == found.tokens.trained
        assert found.tokens.sampled == talk.sampled
        assert all(c.completion_tokens - c.trained_tokens <= bound for c in found.calls)
        losses = [f for f in found.findings if f.code == "tokens_lost"]
        assert [f.call for f in losses] == [c.call for c in found.calls if c.untrained]
        lost += talk.sampled - found.tokens.trained
    assert exported(files, "--max-lost", str(bound)) == own
    assert lost > 50 if bound else not lost


def test_arrays() -> None:
    row = next(iter(rows(pack(map(compact, Recording("alpha-1", 3).lines)))))
    arrays = row.numpy()
    assert {name: a.dtype for name, a in arrays.items()} == {
        "input_ids": numpy.dtype("int64"), "loss_mask": numpy.dtype("int8"),
        "logprobs": numpy.dtype("float32"), "versions": numpy.dtype("int32"),
    }  # fmt: skip
    assert {name: a.tolist() for name, a in arrays.items()} == {name: row.to_dict()[name] for name in arrays}


@pytest.mark.parametrize("package", ["numpy", "torch", "tqdm"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto" if package == "tqdm" else package, None)
    with pytest.raises(MissingPackageError, match=f"pip install {package}"):
        Progress(1) if package == "tqdm" else getattr(Row(), package)()


def test_tensors() -> None:
    torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")
    row = next(iter(rows(pack(map(compact, Recording("alpha-1", 3).lines)))))
    tensors = row.torch()
    assert [t.dtype for t in tensors.values()] == [torch.int64, torch.int8, torch.float32, torch.int32]
    assert {name: t.tolist() for name, t in tensors.items()} == {name: row.to_dict()[name] for name in tensors}
    assert all(t.numel() == 0 for t in Row().torch().values())


def test_options_are_checked() -> None:
    for options, field in (({"merge": "all"}, "merge"), ({"max_lost": -1}, "max_lost"), ({"roles": ["me"]}, "roles")):
        with pytest.raises(InvalidError, match=field):
            rows(b"", **options)


def test_a_rollout_without_calls_has_no_rows() -> None:
    found = rows(b"", Result(id="alpha-1", reward=0.5))
    assert (len(found), found.reward) == (0, 0.5)
    assert [f.code for f in found.errors] == ["nothing_to_train"]


def test_damaged_transcripts(tmp_path: Path) -> None:
    lines = [compact(line) for line in Recording("alpha-1", 3).lines]
    for data in (b"junk", pack(["{"]), pack(['{"call":true}']), pack(lines[:1])[:-3], pack(["[]"])):
        found = rows(data)
        assert len(found) == 0
        assert found.errors[0].code == "transcript_broken"
    with pytest.raises(FileNotFoundError):
        rows(tmp_path / "none")
    whole, noise = rows(pack(lines)), Random(1).randbytes(300_000).hex()
    cut = pack([*lines, compact({"call": 99, "request": {"messages": [noise]}})])[:-9]
    for data in (pack([*lines, "{"]), cut):
        found = rows(data)
        assert found.errors[-1].code == "transcript_broken"
        assert [row.to_json() for row in found] == [row.to_json() for row in whole]
    reply = json.loads(lines[1])
    wrong: list[Any] = [[1.5], [True], ["1"], [1 << 31], [None], [[1]], {}, 7]
    for ids in wrong:
        reply["reply"]["prompt_ids"] = ids
        assert rows(pack([lines[0], compact(reply)])).errors[0].code == "transcript_broken", ids
    deep = pack([lines[0], '{"call":1,"reply":{"message":' + "[" * 100_000 + "]" * 100_000 + "}}"])
    assert rows(deep).errors[0].code == "transcript_broken"


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = pack(map(compact, Recording("alpha-1", 3).lines))
    for name, value, code in (
        ("MOST_CALLS", 1, "too_large"),
        ("MOST_KEPT", 5000, "too_large"),
        ("MOST_POSITIONS", 1, "too_many_rows"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"turngate.trajectory.reader.{name}", value)
            assert code in [f.code for f in rows(lines).errors]
    monkeypatch.setattr("turngate.trajectory.transcript.MOST_LINE", 100)
    assert "more than 100 bytes" in rows(lines).errors[0].text


def test_no_content_of_a_transcript_raises() -> None:
    """Recordings with values of an agent in any place give their rows, or a finding."""
    values = ["9" * 5000, "-1e999", "[" * 1500 + "]" * 1500, '{"a":' * 300 + "1" + "}" * 300, "[" * 980 + "]" * 980]
    values += ['"\\ud800"', "true", "null", "18446744073709551616", "[[]]", '"\u2028"', "NaN", "[1e999]", "{}", "-0"]
    broken = 0
    for seed in range(300):
        random = Random(seed)
        lines = [compact(line) for line in Recording("alpha-1", seed).lines]
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(lines))
            places = [
                m.span() for m in re.finditer(r'(?<=[:,\[])("[^"]*"|-?[0-9.]+|null|\[\]|\{\})(?=[],}])', lines[at])
            ]
            if places:
                start, end = random.choice(places)
                lines[at] = lines[at][:start] + random.choice(values) + lines[at][end:]
        found = rows(pack(lines))
        assert sum(sum(row.loss_mask) for row in found) == found.tokens.trained
        assert len([row.to_json() for row in found]) == len(found)
        broken += any(f.code == "transcript_broken" for f in found.errors)
        with contextlib.suppress(ShapeError):
            json.dumps([codec.to_json(line) for line in transcript.lines(pack(lines))])
    assert 50 < broken < 250


def test_a_transcript_that_json_refuses_is_read() -> None:
    text = (VECTORS[0].parent / "unreadable.json").read_text()
    packed = pack(line.strip().removesuffix(",") for line in text.splitlines() if '"at":' in line)
    [first, _, second, *_] = transcript.lines(packed)
    assert first.request is not None
    assert first.request.params["user"] == "-" + "9" * 5000
    assert second.request is not None
    assert second.request.messages[1]["x"] == first.request.params["user"]
    deep = first.request.messages[1]["x"]
    for _ in range(MOST_NESTING - 5):
        [deep] = deep
    assert set(json.dumps(deep)) == set('[]"')


def test_the_benchmark(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "benchmarks" / "rows.py"
    done = subprocess.run(
        [sys.executable, script, "--rollouts", "1", "--turns", "3"], capture_output=True, text=True, check=True
    )
    assert "MB/s" in done.stdout
    assert "ratio" in done.stdout
