"""A pytest plugin that writes what became of each test."""

import json
import os

outcomes = {}


def pytest_runtest_logreport(report):
    if report.failed:
        outcomes[report.nodeid] = "failed"
    elif report.when == "call" or report.skipped:
        outcomes.setdefault(report.nodeid, "passed" if report.passed or hasattr(report, "wasxfail") else "skipped")


def pytest_sessionfinish():
    with open(os.environ["TURNGATE_REPORT"], "w") as f:
        json.dump(outcomes, f)
