package e2e_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// askPage defines ask NAME, which asks the test's server for /NAME: through each port of
// the loopback device, one of which may be a proxy, and at the gateway. %d is the server's port.
const askPage = `ask() {
	while read -r _ address _ state _; do
		[ "$state" = 0A ] && (exec 3<>"/dev/tcp/127.0.0.1/$((16#${address##*:}))" && printf 'GET http://127.0.0.1:%[1]d/%%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' "$1" >&3 && read -r -t 1 <&3)
	done < /proc/net/tcp
	while read -r _ to g _; do
		[ "$to" = 00000000 ] && (exec 3<>"/dev/tcp/$((16#${g:6:2})).$((16#${g:4:2})).$((16#${g:2:2})).$((16#${g:0:2}))/%[1]d" && printf 'GET /%%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' "$1" >&3 && read -r -t 1 <&3)
	done < /proc/net/route
}
`

// TestNoProcessOfAnAgentHasAWiderNetwork: an agent leaves a process that asks a server
// without a pause. It ends before a verifier, or a step, has a network that reaches more
// than the agent's, and goes on otherwise.
func TestNoProcessOfAnAgentHasAWiderNetwork(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	const (
		leaves = "(while :; do ask left; sleep 0.05; done) >/dev/null 2>&1 &\n"
		looks  = "for i in 1 2 3 4 5 6 7 8 9 10; do ask verifier; sleep 0.2; done; echo 1 > " + reward + "\n"
		list   = "network_mode = 'allowlist'\nallowed_hosts = ['127.0.0.1']\n"
		none   = "network_mode = 'no-network'\n"
	)
	single := map[string]string{"solution/solve.sh": leaves, "tests/test.sh": looks}
	steps := map[string]string{
		"steps/one/instruction.md": "x", "steps/one/solution/solve.sh": leaves, "steps/one/tests/test.sh": "echo 1 > " + reward,
		"steps/two/instruction.md": "x", "steps/two/solution/solve.sh": "true", "steps/two/workdir/setup.sh": looks, "steps/two/tests/test.sh": "echo 1 > " + reward,
	}
	for _, tt := range []struct {
		name, sandbox, settings string
		files                   map[string]string
		left                    bool // the process may ask
		note                    string
	}{
		{"an allowlist", "local", "[environment]\n" + none + "[verifier]\n" + list, single, false, "verify: processes that the agent left were ended"},
		{"an allowlist", "docker", "[environment]\n" + none + "[verifier]\n" + list, single, false, "verify: processes that the agent left were ended"},
		{"the open network", "docker", "[environment]\n" + none + "[verifier]\nnetwork_mode = 'public'\n", single, false, "verify: processes that the agent left were ended"},
		{"the same allowlist", "local", "[environment]\n" + list, single, true, "verify: processes that the agent left run on"},
		{"a longer allowlist", "local", "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['example.com']\n[verifier]\n" + list, single, false, "verify: processes that the agent left were ended"},
		{"the setup of a later step", "local", "[environment]\n" + list + "[[steps]]\nname = 'one'\n[steps.agent]\n" + none + "[steps.verifier]\n" + none + "[[steps]]\nname = 'two'\n", steps, false, "step/two/setup: processes that the agent left were ended"},
	} {
		t.Run(tt.sandbox+" "+tt.name, func(t *testing.T) {
			var mu sync.Mutex
			asked := map[string]int{}
			server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				asked[r.URL.Path]++
			})}
			at, err := net.Listen("tcp", "0.0.0.0:0")
			harness.Must(t, err)
			go func() { _ = server.Serve(at) }()
			t.Cleanup(func() { _ = server.Close() })
			files := map[string]string{"instruction.md": "x", "task.toml": tt.settings}
			for name, text := range tt.files {
				if text == leaves || text == looks {
					text = "#!/bin/bash\n" + fmt.Sprintf(askPage, at.Addr().(*net.TCPAddr).Port) + text
				}
				files[name] = text
			}
			b := newBench(t)
			b.need(t, tt.sandbox, "oracle")
			b.worker(t, "", "--sandboxes", tt.sandbox, "--allow-network", "open,allowlist")
			args := []string{"--agent", "oracle", "--sandbox", tt.sandbox, makeTask(t, files)}
			if tt.sandbox == "docker" {
				args = append(args, "--image", testenv.Image(t))
			}
			p := b.run(t, args...)
			code := p.wait(t, 10*time.Minute)
			r := results(t, p)[0]
			mu.Lock()
			defer mu.Unlock()
			if code != 0 || r.Reward == nil || *r.Reward != 1 || asked["/verifier"] == 0 {
				t.Errorf("exit status %d, reward %v, fault %v, asked %v, %+v", code, r.Reward, r.Fault, asked, r.Phases)
			}
			if (asked["/left"] > 0) != tt.left || !strings.Contains(strings.Join(r.Notes, "\n"), tt.note) {
				t.Errorf("asked %v, notes %q", asked, r.Notes)
			}
		})
	}
}
