#!/bin/bash
# Everything that the image should have, and the answer.
if [ "$(cat /app/built.txt /app/seed.txt)" = "$(printf 'built\nseed')" ] && [ "$(cat /app/hello.txt)" = "Hello, world!" ]; then
	echo '{"reward": 1, "lines": 1}' > /logs/verifier/reward.json
else
	echo '{"reward": 0, "lines": 0}' > /logs/verifier/reward.json
fi
echo 0.25 > /logs/verifier/reward.txt # the JSON form wins
