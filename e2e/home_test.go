package e2e_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// homeImage has a PATH, a locale, a working directory and startup files of its own.
const homeImage = `FROM %s
RUN mkdir -p /opt/tool/bin && echo %s | base64 -d > /opt/probe && printf '\nexport FROM_BASHRC=read\n' >> /root/.bashrc
ENV PATH=/opt/tool/bin:$PATH LANG=de_DE.UTF-8 OF_IMAGE="a b" XDG_CACHE_HOME=/opt/cache
WORKDIR /work
`

// homeProbe runs as a program that a command of an agent starts. It prints a point a
// line.
const homeProbe = `exec > /logs/artifacts/probe 2>&1
echo "HOME $HOME"
echo "PATH $PATH"
echo "login $(bash -lc 'echo "$PATH"')"
echo "LANG $LANG"
echo "variables $OF_IMAGE $XDG_CACHE_HOME $(env | grep -c XDG_)"
echo "directory $(pwd)"
echo "TERM ${TERM:-none}"
echo "umask $(umask)"
echo "bashrc ${FROM_BASHRC:-not read}"
if timeout 2 cat > /dev/null; then echo "stdin at its end"; else echo "stdin open"; fi
ls -l /proc/$$/fd > /tmp/descriptors
echo "descriptors $(sed -n '/opt.probe/d; s/.* [012] -> .*/=/p; s/.* -> \([a-z]*\).*/a \1/p' /tmp/descriptors | sort -u | tr '\n' ' ')"
echo "limits $(cat /proc/$$/limits | tr '\n' ';')"
`

// middle is text that agents could change: words that name commands and files, ends
// of lines, other scripts, forms of templates.
const middle = "mail a@b.example, look at @app.route and @./x/y\r\n\tna\u00efve \u4f60\u597d e\u0301 \U0001F600 \u00a0\r\n$HOME `id` $(id) \"q\" 'q' \\n %s ${X}\n/help\n{{x}} {file:/etc/hostname} <system-reminder>hi</system-reminder> #file &agent !ls"

// instructions returns the instructions of each agent's rollouts. They differ at the
// beginning, where agents look for commands and options. The first one's rollout runs
// the probe.
func instructions() []string {
	return []string{
		"/clear the table, then " + middle,
		"- [ ] one\n- [ ] two\n" + middle + "  \n\n",
		"@app.route @/etc/hostname " + middle,
		"\n \t/help " + middle,
	}
}

// TestAnAgentsShellIsAsAtHome runs a probe in the shell tool of each agent in
// Docker, and gives each agent several instructions. The table in docs/agents.md has the
// points of each agent; points of the image must be the image's.
func TestAnAgentsShellIsAsAtHome(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	var names []string
	for _, s := range agents.All() {
		if s.Dialect != "" && !s.AnyProgram && s.Name != "cline" {
			names = append(names, s.Name)
		}
	}
	shellsAsAtHome(t, names)
}

// TestTheShellOfClineIsAsAtHome does the same with cline. No test runs beside it: cline
// may end without a call if it gets little CPU time and its instruction has an @.
func TestTheShellOfClineIsAsAtHome(t *testing.T) {
	testenv.Slow(t)
	shellsAsAtHome(t, []string{"cline"})
}

func shellsAsAtHome(t *testing.T, names []string) {
	t.Helper()
	b := newBench(t)
	for _, name := range append([]string{"mini"}, names...) {
		b.need(t, "docker", name)
	}
	image := buildHomeImage(t)
	b.worker(t, "", "--sandboxes", "docker,local", "--slots", "3")
	h := &homes{arrived: map[schema.ID]string{}}
	probe := &replay.Script{Aux: "A title", Steps: []replay.Step{{Text: "I will look.", Run: "sh /opt/probe"}, {Text: "Done."}}}
	done := &replay.Script{Aux: "A title", Steps: []replay.Step{{Text: "Done."}}}
	defer serveWith(t, b, func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
		key, err := schema.ParseKey(c.Key)
		if err != nil {
			return nil, err
		}
		if h.sees(key.Rollout, c) {
			return probe.Answer(ctx, c)
		}
		return done.Answer(ctx, c)
	})()
	all := map[schema.ID]schema.Result{}
	tr, requests := newTrainer(t, b, "nobody"), homeRequests(append([]string{"command"}, names...), image)
	harness.Must(t, tr.Submit(t.Context(), inDefaultShard(requests)))
	waiting, stop := context.WithTimeout(t.Context(), 20*time.Minute)
	defer stop()
	byID := map[schema.ID]schema.Request{}
	for _, r := range requests {
		byID[r.ID] = r
	}
	for len(all) < len(requests) {
		r, err := tr.NextResult(waiting)
		harness.Must(t, err)
		// As docs/agents.md tells trainers, cline runs again if it got too little CPU time.
		if r.Agent == "cline" && r.Fault != nil && r.Fault.Code == schema.CodeNoCalls && strings.Count(string(r.ID), again) < 3 {
			q := byID[homeOf(r.ID)]
			q.ID = schema.ID(strings.Replace(string(r.ID), "local-", "local-"+again, 1))
			harness.Must(t, tr.Submit(t.Context(), inDefaultShard([]schema.Request{q})))
			continue
		}
		all[homeOf(r.ID)] = r
	}
	h.compare(t, b.nats.Trainer(t, "local"), names, all)
}

func buildHomeImage(t *testing.T) string {
	t.Helper()
	const image = "turngate-test-home:1"
	build := exec.Command("docker", "build", "-q", "-t", image, "-")
	build.Env = append(build.Environ(), "DOCKER_BUILDKIT=0")
	build.Stdin = strings.NewReader(fmt.Sprintf(homeImage, testenv.Image(t), base64.StdEncoding.EncodeToString([]byte(homeProbe))))
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return image
}

func homeID(agent string, i int) schema.ID { return schema.ID(fmt.Sprintf("local-%s-%d", agent, i)) }

// again is a part of the id of a rollout that repeats another one, once for each time.
const again = "again-"

// homeOf returns the first of the rollouts that a rollout repeats.
func homeOf(id schema.ID) schema.ID { return schema.ID(strings.ReplaceAll(string(id), again, "")) }

// homeRequests returns a request for each agent and instruction. The agent command
// runs the probe without a shell of its own.
func homeRequests(names []string, image string) (all []schema.Request) {
	for i, text := range instructions() {
		for _, name := range names {
			r := schema.Request{
				ID: homeID(name, i), Trainer: "local", Task: schema.Task{Name: "look", Instruction: text}, MaxAttempts: 1,
				Agent: schema.AgentChoice{Name: name}, Sandbox: schema.SandboxChoice{Backend: "local"},
			}
			if i == 0 {
				r.Sandbox = schema.SandboxChoice{Backend: "docker", Image: image}
			}
			switch {
			case name != "command":
			case i == 0:
				r.Agent.Args = []string{"sh", "/opt/probe"}
			default:
				continue
			}
			all = append(all, r)
		}
	}
	return all
}

// homes collects how instructions arrived, by rollout.
type homes struct {
	mu      sync.Mutex
	arrived map[schema.ID]string
}

// How an instruction arrives at the model.
const (
	cameWhole    = "kept"
	cameEndCut   = "cut at the end"
	cameCut      = "cut"
	cameWithFile = "a file is added"
	cameChanged  = "changed"
)

// sees notes how the instruction of a rollout arrived, and reports whether the
// rollout runs the probe.
func (h *homes) sees(id schema.ID, c *schema.Call) bool {
	id = homeOf(id)
	i := int(id[len(id)-1] - '0')
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(c.Tools) > 0 && (h.arrived[id] == "" || h.arrived[id] == cameChanged) {
		h.arrived[id] = arrives(instructions()[i], c.Messages)
	}
	return i == 0
}

// arrives returns how an instruction is among the messages of a user.
func arrives(instruction string, messages []json.RawMessage) string {
	var said strings.Builder
	for _, raw := range messages {
		var m struct {
			Role    string
			Content json.RawMessage
		}
		var text string
		var parts []struct{ Text string }
		if json.Unmarshal(raw, &m) != nil || m.Role != "user" {
			continue
		}
		if json.Unmarshal(m.Content, &text) != nil && json.Unmarshal(m.Content, &parts) == nil {
			for _, p := range parts {
				text += p.Text + "\x00"
			}
		}
		said.WriteString(text + "\x00")
	}
	for _, form := range []struct{ how, text string }{
		{cameWhole, instruction},
		{cameEndCut, strings.TrimRight(instruction, " \n")},
		{cameCut, strings.TrimSpace(instruction)},
		{cameWithFile, strings.Replace(instruction, "@/etc/hostname", "[file: hostname]", 1)},
	} {
		if strings.Contains(said.String(), form.text) {
			return form.how
		}
	}
	return cameChanged
}

// compare checks the points of each agent, and the table in the docs.
func (h *homes) compare(t *testing.T, b *broker.Broker, names []string, all map[schema.ID]schema.Result) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	image := probed(t, b, all[homeID("command", 0)])
	if image["HOME"] != "/root" || image["LANG"] != "de_DE.UTF-8" || image["variables"] != "a b /opt/cache 1" || image["directory"] != "/work" || !strings.HasPrefix(image["PATH"], "/opt/tool/bin:") {
		t.Fatalf("a program without an agent has not the image's environment: %q", image)
	}
	table := []string{
		"| agent | `HOME` | `PATH` | login `PATH` | `LANG` | other variables | directory | umask | limits | descriptors | `TERM` | stdin | `~/.bashrc` | ends of the instruction | `@/path` |",
		"|" + strings.Repeat("---|", 15),
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			for i, text := range instructions() {
				r, how := all[homeID(name, i)], h.arrived[homeID(name, i)]
				if r.Status != schema.StatusDone || r.Fault != nil {
					t.Errorf("instruction %.12q: status %s, fault %v", text, r.Status, r.Fault)
				}
				if i == 0 && how != cameWhole || how == cameChanged || how == "" {
					t.Errorf("instruction %.12q: %q", text, how)
				}
			}
			cells := imagePoints(t, probed(t, b, all[homeID(name, 0)]), image)
			ends := h.arrived[homeID(name, 1)]
			if h.arrived[homeID(name, 3)] == cameCut {
				ends = cameCut
			}
			cells = append(cells, ends, strings.ReplaceAll(h.arrived[homeID(name, 2)], cameWhole, "as written"))
			table = append(table, "| `"+name+"` | "+strings.Join(cells, " | ")+" |")
		})
	}
	page, err := os.ReadFile(filepath.Join(testenv.Root(t), "docs/agents.md"))
	harness.Must(t, err)
	for _, line := range table {
		if !strings.Contains(string(page), "\n"+line+"\n") {
			t.Errorf("docs/agents.md has not this line of a table:\n%s", line)
		}
	}
}

// imagePoints returns the cells of an agent's points. The first points must be the
// image's.
func imagePoints(t *testing.T, got, image map[string]string) (cells []string) {
	t.Helper()
	for _, point := range []string{"HOME", "PATH", "login", "LANG", "variables", "directory", "umask", "limits", "descriptors"} {
		cell := "="
		if got[point] != image[point] {
			cell = "`" + got[point] + "`"
			before, after, has := strings.Cut(got[point], image[point])
			switch {
			case !has || !slices.Contains([]string{"PATH", "login", "descriptors"}, point):
				t.Errorf("%s is %q, want the image's %q", point, got[point], image[point])
			case point == "descriptors":
				cell = "=, " + strings.TrimSpace(after)
			case before == "":
				cell = "=, own last"
			case after == "":
				cell = "own first, ="
			default:
				cell = "own first, =, own last"
			}
		}
		cells = append(cells, cell)
	}
	return append(cells, got["TERM"], got["stdin"], got["bashrc"])
}

// probed returns the points that the probe of a rollout found.
func probed(t *testing.T, b *broker.Broker, r schema.Result) map[string]string {
	t.Helper()
	i := slices.IndexFunc(r.Artifacts, func(a schema.Artifact) bool { return a.Name == "logs/artifacts.tar" })
	if i < 0 {
		t.Fatalf("the probe did not run: %v, %v", r.Fault, r.Artifacts)
	}
	data, err := b.Objects.Artifact(t.Context(), "local", r.Artifacts[i].SHA256)
	harness.Must(t, err)
	out := map[string]string{}
	for archive := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		harness.Must(t, err)
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
		for line := range strings.Lines(string(text)) {
			point, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			out[point] += value
		}
	}
}
