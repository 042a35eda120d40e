"""Writes the folder of a job with Harbor's own models: steps, a separate verifier, exceptions,
tasks from git and from a package, and a trajectory with a sub-agent and a continuation.

Usage: harbor_models.py DIR
"""

import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from harbor.models.agent.context import AgentContext
from harbor.models.job.config import JobConfig
from harbor.models.job.result import JobResult, JobStats
from harbor.models.task.id import GitTaskId, LocalTaskId, PackageTaskId
from harbor.models.trajectories.agent import Agent
from harbor.models.trajectories.metrics import Metrics
from harbor.models.trajectories.observation import Observation
from harbor.models.trajectories.observation_result import ObservationResult
from harbor.models.trajectories.step import Step
from harbor.models.trajectories.subagent_trajectory_ref import SubagentTrajectoryRef
from harbor.models.trajectories.trajectory import Trajectory
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import AgentInfo, ExceptionInfo, ModelInfo, StepResult, TimingInfo, TrialResult
from harbor.models.verifier.result import VerifierResult

START = datetime(2026, 11, 26, 4, 0, tzinfo=timezone.utc)


def span(begin, end):
    return TimingInfo(started_at=START + timedelta(seconds=begin), finished_at=START + timedelta(seconds=end))


def trial(job, name, task, task_id, **more):
    config = TrialConfig(
        task=task, trial_name=name, trials_dir=job, agent=AgentConfig(name="claude-code", model_name="acme/m"), job_id=ID
    )
    result = TrialResult(
        task_name=task_id.get_name(), trial_name=name, trial_uri=(job / name).as_uri(), task_id=task_id, task_checksum="0" * 64, config=config,
        agent_info=AgentInfo(name="claude-code", version="2.0", model_info=ModelInfo(name="m", provider="acme")),
        started_at=START, finished_at=START + timedelta(seconds=9), environment_setup=span(0, 1), **more,
    )
    (job / name).mkdir(parents=True)
    (job / name / "config.json").write_text(config.model_dump_json(exclude_defaults=True))
    (job / name / "result.json").write_text(result.model_dump_json(indent=4))
    return result


def context(n):
    return AgentContext(n_input_tokens=n, n_output_tokens=1, cost_usd=0.5)


def raised(kind, second):
    return ExceptionInfo(exception_type=kind, exception_message=f"a {kind}", exception_traceback="…", occurred_at=START + timedelta(seconds=second))


def main():
    job = Path(sys.argv[1]).resolve()
    steps = trial(
        job, "steps__1", TaskConfig(path="/tasks/steps"), LocalTaskId(path="/tasks/steps"), verifier_result=VerifierResult(rewards={"reward": 0.5}),
        step_results=[
            StepResult(step_name="one", agent_result=context(1), verifier_result=VerifierResult(rewards={"reward": 1}), agent_execution=span(1, 3), verifier=span(3, 4)),
            StepResult(step_name="two", agent_result=context(2), exception_info=raised("AgentTimeoutError", 6), agent_execution=span(4, 6)),
        ],
    )
    git = trial(
        job, "git__1", TaskConfig(path="tasks/x", git_url="https://example.org/repo"), GitTaskId(git_url="https://example.org/repo", path="tasks/x"),
        verifier_environment_mode="separate", agent_result=context(3), verifier_result=VerifierResult(rewards={"style": 1, "speed": 0.25}),
        agent_execution=span(1, 2), verifier=span(2, 3),
    )
    package = trial(
        job, "package__1", TaskConfig(name="org/name", ref="1"), PackageTaskId(org="org", name="name", ref="1"), exception_info=raised("SomeNewError", 2),
        agent_setup=span(1, 5),
    )
    agent = Agent(name="claude-code", version="2.0", model_name="acme/m")
    ids = Metrics(prompt_tokens=1, completion_tokens=1, prompt_token_ids=[1], completion_token_ids=[2], logprobs=[-0.5])
    sub = Trajectory(trajectory_id="sub", agent=agent, steps=[Step(step_id=1, source="user", message="find"), Step(step_id=2, source="agent", message="found")])
    first = Trajectory(
        session_id="s", agent=agent, continued_trajectory_ref="trajectory.cont-1.json", subagent_trajectories=[sub],
        steps=[
            Step(step_id=1, source="user", message="go"),
            Step(
                step_id=2, source="agent", message="ask", metrics=ids,
                observation=Observation(results=[ObservationResult(content="asked", subagent_trajectory_ref=[SubagentTrajectoryRef(trajectory_id="sub")])]),
            ),
        ],
    )
    rest = Trajectory(session_id="s", agent=agent, steps=[Step(step_id=1, source="user", message="summary"), Step(step_id=2, source="agent", message="end", metrics=ids)])
    at = job / "git__1" / "agent"
    at.mkdir()
    (at / "trajectory.json").write_text(first.model_dump_json(exclude_none=True))
    (at / "trajectory.cont-1.json").write_text(rest.model_dump_json(exclude_none=True))

    config = JobConfig(job_name=job.name, jobs_dir=job.parent, agents=[AgentConfig(name="claude-code", model_name="acme/m")])
    (job / "config.json").write_text(config.model_dump_json(exclude_defaults=True))
    done = [steps, git, package]
    result = JobResult(id=ID, started_at=START, n_total_trials=3, stats=JobStats.from_trial_results(done, n_total_trials=3))
    (job / "result.json").write_text(result.model_dump_json(indent=4))


ID = "00000000-0000-4000-8000-000000000001"

main()
