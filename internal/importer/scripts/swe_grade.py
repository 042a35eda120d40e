"""Runs the tests that tests.json names and writes the reward: 1 when every one
of them passes, else 0. Test names stay data: no shell reads them."""

import json
import os
import re
import shutil
import subprocess
import sys

TESTS = os.path.dirname(os.path.abspath(__file__))
REPORT = "/tmp/turngate-test-report.json"


def run(args, **more):
    print("+", " ".join(args)[:2000], flush=True)
    return subprocess.run(args, **more)


def text_of(args):
    done = run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode("utf-8", "replace")
    print(text[-200000:], flush=True)
    return text


def restore(spec):
    """Puts the tests themselves in place, over what the agent made of them, and
    tells whether that worked."""
    patch = os.path.join(TESTS, "test.patch")
    if not os.path.exists(patch):
        return True
    for name in spec["test_files"]:
        if spec["base_commit"] and not checkout(spec["base_commit"], name):
            remove(name)  # a new file of the patch
            checkout(spec["base_commit"], name)
    if succeeds(["git", "apply", "--whitespace=nowarn", patch]):
        return True
    return succeeds(["patch", "--batch", "--forward", "-p1", "-i", patch])


def succeeds(args):
    try:
        return run(args).returncode == 0
    except OSError as e:
        print(e)
        return False


def checkout(commit, name):
    return succeeds(["git", "checkout", "-q", commit, "--", name])


def remove(name):
    try:
        if os.path.isdir(name) and not os.path.islink(name):
            shutil.rmtree(name)
        elif os.path.lexists(name):
            os.remove(name)
    except OSError as e:
        print(e)


def with_pytest(spec):
    files = sorted({n.split("::")[0] for n in spec["fail_to_pass"] + spec["pass_to_pass"] if "::" in n})
    files = [f for f in files if os.path.exists(f)] or [f for f in spec["test_files"] if os.path.exists(f)]
    remove(REPORT)
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([TESTS] + ([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [])), TURNGATE_REPORT=REPORT)
    run([sys.executable, "-m", "pytest", "-p", "turngate_report", "-q", "-rN", "--continue-on-collection-errors"] + ["./" + f for f in files], env=env)
    try:
        with open(REPORT) as f:
            report = json.load(f)
        return report if isinstance(report, dict) else {}
    except (OSError, ValueError, RecursionError) as e:
        print("no report of the tests:", e)
        return {}


def with_django(spec):
    labels = sorted({re.sub(r"\.py$", "", n[len("tests/"):]).replace("/", ".") for n in spec["test_files"] if n.startswith("tests/") and n.endswith(".py")})
    out = {}
    for line in text_of([sys.executable, "tests/runtests.py", "--verbosity", "2", "--settings=test_sqlite", "--parallel", "1"] + labels).splitlines():
        m = re.match(r"^(.*?) \.\.\. (ok|FAIL|ERROR|skipped|expected failure)", line)
        if m:
            out[m.group(1)] = "passed" if m.group(2) in ("ok", "skipped", "expected failure") else "failed"
    return out


def with_sympy(spec):
    out = {}
    for line in text_of([sys.executable, "bin/test", "-C", "--verbose"] + spec["test_files"]).splitlines():
        m = re.match(r"^(test_\S+) (ok|f|F|E|s|w)\b", line)
        if m:
            out[m.group(1)] = "passed" if m.group(2) in ("ok", "s", "w", "f") else "failed"
    return out


def passed(name, report):
    """A name that log parsers cut at a space stands for all that begin so."""
    if name in report:
        return report[name] == "passed"
    if "[" in name and not name.endswith("]"):
        found = [r for n, r in report.items() if n.startswith(name)]
    elif "::" not in name:
        found = [r for n, r in report.items() if n.split("::")[-1] == name]
    else:
        found = []
    return bool(found) and all(r == "passed" for r in found)


def main():
    with open(os.path.join(TESTS, "tests.json")) as f:
        spec = json.load(f)
    runner = {"django": with_django, "sympy": with_sympy}.get(spec["runner"], with_pytest)
    report = {}  # no test passes
    if restore(spec):
        try:
            report = runner(spec)
        except OSError as e:
            print("the tests do not run:", e)
    else:
        print("the test patch does not apply")
    reward = {"reward": 1}
    for kind in ("fail_to_pass", "pass_to_pass"):
        names = spec[kind]
        good = 0
        for n in names:
            if passed(n, report):
                good += 1
            else:
                print(kind, "does not pass:", n[:500])
        if names:
            reward[kind] = good / len(names)
        if good < len(names):
            reward["reward"] = 0
    with open("/logs/verifier/reward.json", "w") as f:
        json.dump(reward, f)
    print(reward)


if __name__ == "__main__":
    main()
