#!/bin/sh
# Leaves the reward: 1 if the file says what it should, else 0.
if [ "$(cat hello.txt)" = "Hello, world!" ]; then
	echo 1 > /logs/verifier/reward.txt
else
	echo 0 > /logs/verifier/reward.txt
fi
