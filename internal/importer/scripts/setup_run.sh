#!/bin/sh
# Runs the task's setup commands in their order; one that fails ends the build.
for step in /opt/task-setup/steps/*.sh; do
	"$(command -v bash || echo sh)" "$step" || exit 1
done
