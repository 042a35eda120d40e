package e2e_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestAnAllowlist runs an agent that requests an allowed page and a forbidden one
// through the proxy. The verifier has no network.
func TestAnAllowlist(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a page") }))
	t.Cleanup(pages.Close)
	port := pages.Listener.Addr().(*net.TCPAddr).Port
	const ask = `ask() { # host and port of the page
	proxy=${HTTP_PROXY#http://}
	exec 3<>"/dev/tcp/${proxy%%:*}/${proxy##*:}"
	printf 'GET http://%s:%s/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
	cat <&3
}
tunnel() {
	proxy=${HTTPS_PROXY#http://}
	exec 4<>"/dev/tcp/${proxy%%:*}/${proxy##*:}"
	printf 'CONNECT %s:%s HTTP/1.1\r\nHost: %s:%s\r\n\r\n' "$1" "$2" "$1" "$2" >&4
	while read -r line <&4 && [ "$line" != $'\r' ]; do echo "$line"; done
	printf 'GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' >&4
	cat <&4
}
`
	for _, tt := range []struct{ sandbox, agent string }{{"local", "mini"}, {"docker", "mini"}, {"docker", "opencode"}} {
		t.Run(tt.sandbox+" "+tt.agent, func(t *testing.T) {
			b := newBench(t)
			b.need(t, tt.sandbox, tt.agent)
			b.worker(t, "", "--sandboxes", tt.sandbox, "--allow-network", "open,allowlist")
			work := fmt.Sprintf("bash -c '. ./ask.sh; echo $NO_PROXY $no_proxy > direct; ask 127.0.0.1 %d > allowed; ask localhost %d > by-name; ask example.com 80 > other; tunnel 127.0.0.1 %d > through; tunnel localhost %d > not-through'", port, port, port, port)
			replay, err := json.Marshal(map[string]any{"aux": "A title", "steps": []map[string]any{{"text": "I ask.", "run": work}, {"text": "Done."}}})
			if err != nil {
				t.Fatal(err)
			}
			dir := makeTask(t, map[string]string{
				"instruction.md": "Ask for the pages.", "replay.yaml": string(replay), "environment/ask.sh": ask,
				"task.toml": "[environment]\nnetwork_mode = 'no-network'\n[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['127.0.0.1', 'localhost.example']\n",
				"tests/test.sh": `[ -z "$HTTP_PROXY" ] && [ "$(grep -o ::1 direct | wc -l)" = 2 ] && grep -q "a page" allowed && grep -q "403" by-name && ! grep -q "a page" by-name && grep -q "403" other && grep -q "HTTP/1.1 200" through && grep -q "a page" through && grep -q "403" not-through && ! grep -q "a page" not-through && ! grep -q eth0 /proc/net/dev && echo 1 > ` + reward + `
tail -n +1 direct allowed by-name other through not-through`,
			})
			events := start(t, b.binary, "tap", "--nats", b.nats.URL(), "--creds", b.nats.OpsCreds(), "-o", "jsonl")
			args := []string{"--agent", tt.agent, "--sandbox", tt.sandbox, "--agents", b.cache, dir}
			if tt.sandbox == "docker" {
				args = append(args, "--image", testenv.Image(t))
			}
			p := b.run(t, args...)
			code := p.wait(t, 10*time.Minute)
			r := results(t, p)[0]
			if code != 0 || r.Reward == nil || *r.Reward != 1 {
				t.Fatalf("exit status %d, reward %v, fault %v, %+v", code, r.Reward, r.Fault, r.Phases)
			}
			harness.Eventually(t, "the end of the rollout among events", 5*time.Minute, func() bool { return strings.Contains(events.out.String(), `"type":"result"`) })
			allowed, refused := 0, 0
			for line := range strings.Lines(events.out.String()) {
				var e schema.Event
				if json.Unmarshal([]byte(line), &e) != nil || e.Net == nil || !e.Net.Ended {
					continue
				}
				if e.Net.Phase != "agent" {
					t.Errorf("a connection of the phase %q", e.Net.Phase)
				}
				if e.Net.Allowed && e.Net.Host == "127.0.0.1" && e.Net.Port == port && e.Net.Got > 0 {
					allowed++
				} else if !e.Net.Allowed && e.Net.Reason != "" {
					refused++
				}
			}
			if allowed != 2 || refused < 3 {
				t.Errorf("events tell of %d allowed and %d refused connections\n%s", allowed, refused, clip(events.out.String()))
			}
		})
	}
}

// TestNetworksThatAreNotThere checks that a worker refuses a network that it does
// not offer, by name, before anything starts.
func TestNetworksThatAreNotThere(t *testing.T) {
	t.Parallel()
	dir := makeTask(t, map[string]string{"instruction.md": "x", "task.toml": "[environment]\nallow_internet = true\n", "tests/test.sh": "echo 1 > " + reward})
	p := start(t, testenv.Binary(t), "run", dir, "--agent", "nop", "-o", "json", "--out", filepath.Join(t.TempDir(), "job"))
	if code := p.wait(t, 10*time.Minute); code != 1 {
		t.Fatalf("exit status %d", code)
	}
	if r := results(t, p)[0]; r.Fault == nil || r.Fault.Code != schema.CodeUnsupported || !strings.Contains(r.Fault.Message, "sandbox.network") || !strings.Contains(r.Fault.Message, "--network none") {
		t.Errorf("fault %v", r.Fault)
	}
	if !strings.Contains(p.err.String(), "the open network") {
		t.Errorf("it does not say which network it has: %s", p.err)
	}
	p = start(t, testenv.Binary(t), "run", dir, "--agent", "nop", "--network", "none", "-o", "json", "--out", filepath.Join(t.TempDir(), "job"))
	if code := p.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("without: exit status %d: %s", code, p.err)
	}
}

// TestPhasesWithNetworksOfTheirOwn runs an agent without the network that setup
// and the verifier have.
func TestPhasesWithNetworksOfTheirOwn(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	image := testenv.Image(t)
	dir := makeTask(t, map[string]string{
		"instruction.md": "x", "replay.yaml": "steps: [{text: x}]\n",
		"task.toml":     "[environment]\nnetwork_mode = 'public'\n[agent]\nnetwork_mode = 'no-network'\n[turngate]\nsetup = ['grep -q eth /proc/net/dev']\n",
		"tests/test.sh": "[ -e offline ] && grep -q eth /proc/net/dev && echo 1 > " + reward,
	})
	p := start(t, testenv.Binary(t), "run", dir, "--agent", "command", "--sandbox", "docker", "--image", image, "-o", "json", "--out", filepath.Join(t.TempDir(), "job"),
		"--", "sh", "-c", "grep -q eth /proc/net/dev || touch offline")
	if code := p.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, clip(p.out.String()))
	}
	if r := results(t, p)[0]; r.Reward == nil || *r.Reward != 1 {
		t.Fatalf("reward %v, %+v", r.Reward, r.Phases)
	}
}
