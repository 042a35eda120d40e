#!/bin/sh
# Leaves the reward: 1 if the file answer has the word WANT, 0.3 if it has another one.
if [ "$(cat answer 2>/dev/null)" = "${WANT:-red}" ]; then
	echo 1 > /logs/verifier/reward.txt
elif [ -s answer ]; then
	echo 0.3 > /logs/verifier/reward.txt
else
	echo 0 > /logs/verifier/reward.txt
fi
