#!/bin/sh
# Runs in the working directory after the agent has ended. The reward is the
# number in reward.txt, or "reward" of an object in reward.json.
if [ "$(cat sum.txt)" = 36 ]; then
	echo 1 >/logs/verifier/reward.txt
else
	echo 0 >/logs/verifier/reward.txt
fi
