package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// hostile is an agent with requests that cost memory. In each dialect, at the same
// time, it sends bodies of 15 MB with JSON that is small in text form and large
// when decoded, and long chains of previous_response_id. It ends when every
// request was answered.
const hostile = `
url=${OPENAI_BASE_URL#http://}; host=${url%%/*}; port=${host##*:}; host=${host%%:*}
post() { # path head unit tail
	n=$((bytes / ${#3}))
	exec 3<>"/dev/tcp/$host/$port" || return
	size=$((${#2} + n * ${#3} + ${#4}))
	printf 'POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "$1" "$OPENAI_API_KEY" "$size" "$2" >&3
	{ yes "$3" | head -n "$n" | tr -d '\n'; printf '%s' "$4"; } >&3 2>/dev/null
	IFS= read -r status <&3; echo "$status $1 $3" | tr -d '\r' | cut -c1-80
	cat <&3 >/dev/null
	exec 3<&-
}
all() {
	post /v1/chat/completions '{"messages":[' '{},' '{}]}' &
	post /v1/chat/completions '{"messages":[{}],"tools":[' '{},' '{}]}' &
	post /v1/chat/completions '{"messages":[{"role":"user","content":[' '{"type":"text","text":""},' '{}]}]}' &
	post /v1/chat/completions '{"messages":[{"role":"user","content":"' 'plain text ' '"}]}' &
	post /v1/chat/completions '{"messages":[{"role":"user","content":"' '\ud83d\ude00' '"}]}' &
	post /v1/messages '{"messages":[' '{"role":"user","content":[]},' '{"role":"user","content":[]}]}' &
	post /v1/messages '{"messages":[{"role":"user","content":[' '{"type":"text"},' '{"type":"text"}]}]}' &
	post /v1/messages '{"messages":[{"role":"user","content":"a"}],"tools":[' '{},' '{}]}' &
	wait
	post /v1/responses '{"input":[' '{"role":"user","content":""},' '{"role":"user","content":""}]}' &
	post /v1/responses '{"input":[' '{"type":"function_call"},' '{"type":"function_call"}]}' &
	post /v1/responses '{"input":"a","tools":[' '{"type":"function"},' '{"type":"function"}]}' &
	post /v1beta/models/m:generateContent '{"contents":[' '{},' '{}]}' &
	post /v1beta/models/m:generateContent '{"contents":[{"parts":[' '{"text":""},' '{"text":""}]}]}' &
	post /v1beta/models/m:generateContent '{"contents":[{"role":"model","parts":[' '{"functionCall":{}},' '{"functionCall":{}}]}]}' &
	post /v1beta/models/m:generateContent '{"contents":[{}],"generationConfig":{"a":[' '0,' '0]}}' &
	wait
	post /v1/chat/completions '{"messages":[{"role":"user","content":"' $'\xff' '"}]}' &
	post /v1/responses '{"input":"' $'\xff' '"}' &
	post /v1/chat/completions '{"messages":' '[' ']' &
	post /v1/messages '{"messages":[{"role":"user","content":[' '{"type":"document","source":{"type":"content","content":[' ']}}]}]}' &
	post /v1beta/models/m:generateContent '{"contents":[{"parts":[{"text":"a"}]}],"generationConfig":{"responseSchema":' '{"items":' '{}}}' &
	post /v1beta/models/m:generateContent '{"contents":[{"parts":[{"text":"a"}]}],"tools":[{"functionDeclarations":[' '{"name":"f","parameters":{"type":"OBJECT"}},' '{}]}]}' &
	wait
}
chain() { # units head unit tail: each request names the answer before and adds to it
	id=
	for i in $(seq 12); do
		tail=$4; if [ -n "$id" ]; then tail="$4,\"previous_response_id\":\"$id\""; fi
		id=$(n=$1 post2 "$2" "$3" "$tail}" | grep -o 'resp_[A-Za-z0-9-]*' | head -n 1)
		echo "$i: ${id:-refused}" | cut -c1-20
	done
}
post2() {
	size=$((${#1} + n * ${#2} + ${#3}))
	exec 3<>"/dev/tcp/$host/$port" || return
	printf 'POST /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "$OPENAI_API_KEY" "$size" "$1" >&3
	{ yes "$2" | head -n "$n" | tr -d '\n'; printf '%s' "$3"; } >&3 2>/dev/null
	cat <&3
	exec 3<&-
}
for bytes in 15000000 3000000 700000; do all; all; done
chain 300000 '{"input":"' 'plain text ' '"'
chain 20000 '{"input":[' '{"role":"user","content":"a"},' '{"role":"user","content":"a"}]'
chain 20000 '{"input":[' '{"type":"function_call_output","call_id":"c","output":""},' '{"role":"user","content":"a"}]'
echo the end
`

// TestHostileRequestsCostNoMoreThanTheSettings checks that the gate refuses costly
// requests in the form of their dialect, that the worker's memory stays below its
// settings plus 125 MB, measured from outside, and that another rollout on the
// same worker is not affected.
func TestHostileRequestsCostNoMoreThanTheSettings(t *testing.T) {
	testenv.Slow(t)
	b := newBench(t)
	b.need(t, "local", "mini")
	const conversations, requests = 64, 256
	w := b.worker(t, "", "--sandboxes", "local", "--slots", "2", "--conversations-mb", strconv.Itoa(conversations), "--requests-mb", strconv.Itoa(requests))
	hello, err := tasks.Load(filepath.Join(testenv.Root(t), "examples/tasks/hello"), tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr := newTrainer(t, b, "")
	go func() {
		_ = tr.Serve(t.Context(), func(_ context.Context, c *trainer.Call) (*schema.Reply, error) {
			turns := 0
			for _, m := range c.Messages {
				turns += strings.Count(string(m[:min(len(m), 100)]), `"assistant"`)
			}
			message := `{"role":"assistant","content":"Done."}`
			if turns < 20 && strings.Contains(string(c.Tools), `"bash"`) {
				message = fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":"c%d","type":"function","function":{"name":"bash","arguments":"{\"command\":\"echo 'Hello, world!' > hello.txt; sleep 0.2%d\"}"}}]}`, turns, turns)
			}
			return &schema.Reply{Message: json.RawMessage(message), FinishReason: "stop"}, nil
		})
	}()
	bundle, err := tr.PutBundle(t.Context(), hello.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	before := residentPeak(t, w.cmd.Process.Pid)
	honest, bad := hello.Request, hello.Request
	honest.ID, honest.Agent.Name = "local-honest", "mini"
	bad.ID, bad.Agent.Name, bad.Agent.Args = "local-hostile", "command", []string{"/bin/bash", "-c", hostile}
	for _, r := range []*schema.Request{&honest, &bad} {
		r.Trainer, r.Sandbox.Backend, r.Task.Bundle = "local", "local", bundle
		r.Limits.AgentMS = 300_000
		r.Gate.MaxRepeats = 10_000
	}
	if err := tr.Submit(t.Context(), []schema.Request{bad, honest}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	for range 2 {
		r, err := tr.NextResult(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if r.ID == honest.ID {
			if r.Fault != nil || r.Reward == nil || *r.Reward != 1 || r.Calls[schema.TagAgent].Count != 21 {
				t.Errorf("the rollout beside it: %+v", r)
			}
			continue
		}
		said := artifact(t, tr, r, "agent.stdout.log")
		t.Logf("hostile: %+v\n%s", r.Calls, said)
		if r.Fault != nil && r.Fault.Code != schema.CodeRefused || !strings.Contains(said, "the end") { // the last request may be one that is refused
			t.Errorf("the hostile rollout: %+v", r)
		}
		if strings.Contains(said, "HTTP/1.1 5") {
			t.Error("a hostile request was not refused but failed")
		}
		if n := len(regexp.MustCompile(`HTTP/1\.1 (413|429)`).FindAllString(said, -1)); n < 10 {
			t.Errorf("%d requests were refused, want at least ten", n)
		}
	}
	peak := residentPeak(t, w.cmd.Process.Pid)
	t.Logf("resident: %d MB before, at most %d MB; settings %d MB", before>>20, peak>>20, conversations+requests)
	if limit := int64(conversations+requests)<<20 + 125e6; peak > limit {
		t.Errorf("the worker took %d MB, want at most %d MB", peak>>20, limit>>20)
	}
}

// residentPeak is the most memory that a process had at once, in bytes.
func residentPeak(t *testing.T, pid int) int64 {
	t.Helper()
	return statusOf(t, pid, "VmHWM")
}

// statusOf returns an amount of memory from the status of a process, in bytes.
func statusOf(t testing.TB, pid int, field string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no %s in %s", field, status)
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
