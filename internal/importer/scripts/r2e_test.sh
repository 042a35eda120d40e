#!/bin/bash
# Runs the image's own hidden tests and compares what became of each with what
# expected.json says.
for d in /r2e_tests /root/r2e_tests; do
	if [ -d "$d" ] && [ ! -e r2e_tests ]; then ln -s "$d" r2e_tests; fi
done
for s in /root/run_tests.sh ./run_tests.sh /run_tests.sh; do
	if [ -f "$s" ]; then script=$s && break; fi
done
if [ -z "$script" ]; then
	echo "the image has no run_tests.sh"
	exit 1
fi
if [ -d .venv/bin ]; then
	PATH="$PWD/.venv/bin:$PATH"
	export PATH
fi
bash "$script" >/tmp/turngate-test-output.txt 2>&1
exec "$(command -v python || command -v python3)" /tests/grade.py /tmp/turngate-test-output.txt
