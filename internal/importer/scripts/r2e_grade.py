"""Compares the summary that pytest wrote with expected.json: the reward is 1
when every test came out as it says, and no other ran, else 0."""

import json
import os
import re
import sys

COLOR = re.compile(r"\x1b\[[0-9;]*m|\\u001b\[\d+m")


def summary(text):
    out = {}
    _, found, rest = COLOR.sub("", text).partition("short test summary info")
    for line in rest.splitlines() if found else []:
        state, _, name = line.partition(" ")
        if state in ("PASSED", "FAILED", "ERROR") and "::" in name:
            out[".".join(name.split("::")[1:]).split(" - ")[0].strip()] = state
    return out


def main():
    with open(sys.argv[1], encoding="utf-8", errors="replace") as f:
        text = f.read()
    print(text[-200000:])
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected.json")) as f:
        expected = {COLOR.sub("", k).split(" - ")[0].strip(): v for k, v in json.load(f).items()}
    got = summary(text)
    for name in sorted(set(got) | set(expected)):
        if got.get(name) != expected.get(name):
            print("%s: %s, expected %s" % (name[:500], got.get(name), expected.get(name)))
    reward = {"reward": int(bool(expected) and got == expected)}
    if expected:
        reward["as_expected"] = sum(got.get(n) == s for n, s in expected.items()) / len(expected)
    with open("/logs/verifier/reward.json", "w") as f:
        json.dump(reward, f)
    print(reward)


if __name__ == "__main__":
    main()
