"""Reads a job's folder with Harbor's own models and its viewer's API.

Usage: harbor_job.py JOB. Prints a line of JSON with what was counted; an
exception says which file is not valid.
"""

import json
import sys
from pathlib import Path

from fastapi.testclient import TestClient
from harbor.models.job.config import JobConfig
from harbor.models.job.lock import JobLock, TrialLock
from harbor.models.job.result import JobResult
from harbor.models.trajectories.trajectory import Trajectory
from harbor.models.trial.artifact_manifest import ArtifactManifest
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.viewer.server import create_app


def check(model, path):
    try:
        return model.model_validate_json(path.read_text())
    except Exception as e:
        raise SystemExit(f"{path}: {e}")


def main():
    job = Path(sys.argv[1]).resolve()
    seen = {"trials": 0, "rewards": [], "trajectories": 0, "errors": {}, "modes": {}, "steps": {}}
    config = check(JobConfig, job / "config.json")
    lock = check(JobLock, job / "lock.json")
    result = check(JobResult, job / "result.json")
    assert config.job_name == job.name, config.job_name
    assert len(lock.trials) == result.n_total_trials, (len(lock.trials), result.n_total_trials)
    trials = [d for d in sorted(job.iterdir()) if (d / "config.json").exists() or (d / "result.json").exists()]  # as Harbor's viewer lists them
    for d in trials:
        check(TrialConfig, d / "config.json")
        check(TrialLock, d / "lock.json")
        trial = check(TrialResult, d / "result.json")
        assert trial.trial_name == d.name and trial.config.job_id == result.id
        ArtifactManifest(entries=json.loads((d / "artifacts" / "manifest.json").read_text()))
        seen["trials"] += 1
        if trial.exception_info is not None:
            seen["errors"][trial.task_name] = trial.exception_info.exception_type
        if trial.verifier_environment_mode is not None:
            seen["modes"][trial.task_name] = trial.verifier_environment_mode.value
        if trial.step_results:
            seen["steps"][trial.task_name] = [
                s.verifier_result and s.verifier_result.rewards for s in trial.step_results
            ]
        assert (d / "exception.txt").exists() == (trial.exception_info is not None)
        if trial.verifier_result is not None:
            seen["rewards"].append({"task": trial.task_name, "numbers": trial.verifier_result.rewards})
        trajectory = d / "agent" / "trajectory.json"
        if trajectory.exists():
            check(Trajectory, trajectory)
            seen["trajectories"] += 1
    assert result.stats.n_completed_trials == seen["trials"]
    failed = [t for e in result.stats.evals.values() for names in e.exception_stats.values() for t in names]
    assert result.stats.n_errored_trials == len(failed) >= len(seen["errors"]), failed
    seen["cancelled"] = result.stats.n_cancelled_trials
    seen["cost"] = result.stats.cost_usd or 0

    web = TestClient(create_app(job.parent))

    def get(path):
        answer = web.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.json()

    base = f"/api/jobs/{job.name}"
    assert any(j["name"] == job.name for j in get("/api/jobs")["items"])
    get(base)
    get(base + "/config")
    listed = get(base + "/trials")
    assert listed["total"] == seen["trials"], listed["total"]
    for d in trials:
        for page in ("", "/trajectory", "/verifier-output", "/files", "/artifacts", "/agent-logs"):
            get(f"{base}/trials/{d.name}{page}")
    print(json.dumps(seen))


main()
