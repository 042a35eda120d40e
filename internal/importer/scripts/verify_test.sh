#!/bin/sh
# Runs each check in a file of its own. The reward is the part that succeeds,
# unless a check writes another into reward.txt.
total=0
good=0
for check in /tests/checks/*.sh; do
	total=$((total + 1))
	if "$(command -v bash || echo sh)" "$check"; then
		good=$((good + 1))
	else
		echo "${check##*/} failed with $?"
	fi
done
reward=/logs/verifier/reward.txt
if [ ! -s "$reward" ] && [ -s "$HOME/logs/verifier/reward.txt" ]; then
	cp "$HOME/logs/verifier/reward.txt" "$reward"
fi
if [ ! -s "$reward" ] && [ ! -s /logs/verifier/reward.json ]; then
	awk -v good="$good" -v total="$total" 'BEGIN { print good / total }' >"$reward"
fi
