package main_test

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/xvfb"
)

// A person sees the desktop of a machine and types there with --desktop-input, and so does
// a program with an MCP client.
func TestTheDesktopOfAMachine(t *testing.T) {
	testenv.Slow(t)
	screen := xvfb.Start(t)
	typed := screen.Terminal(t)
	w := newWorkshop(t)
	w.serve(t, "m1", "--desktop="+screen.Display, "--desktop-input")
	if got := turngate(t, w.binary, "machine", "ls", "--nats", w.nats.URL(), "--creds", w.nats.AdminCreds(), "-o", "wide"); got.code != 0 || !strings.Contains(got.out, "DESKTOP") || !strings.Contains(got.out, "input") {
		t.Errorf("the list: %+v", got)
	}
	file := filepath.Join(t.TempDir(), "a.png")
	got := w.run(t, "", "screenshot", "m1", "-o", file, "--max-side", "400")
	if got.code != 0 || !strings.Contains(got.errOut, "a display of 800 x 600 pixels") {
		t.Fatalf("a screenshot: %+v", got)
	}
	data, err := os.ReadFile(file)
	harness.Must(t, err)
	if m, err := png.Decode(bytes.NewReader(data)); err != nil || m.Bounds().Dx() != 400 || m.Bounds().Dy() != 300 {
		t.Errorf("the file: %v", err)
	}
	for _, args := range [][]string{{"click", "50", "50"}, {"scroll", "50", "50", "down", "2"}, {"key", "x", "ctrl+u"}} {
		if got := w.run(t, "", "input", append([]string{"m1"}, args...)...); got.code != 0 {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if got := w.run(t, "from stdin\n", "input", "m1", "type"); got.code != 0 {
		t.Errorf("type: %+v", got)
	}
	harness.Eventually(t, "the text", 5*time.Minute, func() bool { return typed() == "from stdin\n" })

	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: w.command(t.Context(), "mcp", "m1", "--max-side", "200")}, nil)
	harness.Must(t, err)
	defer session.Close()
	tools, err := session.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 1 || tools.Tools[0].Name != "computer" {
		t.Fatalf("the tools: %+v, %v", tools, err)
	}
	call := func(arguments map[string]any) *mcp.CallToolResult {
		t.Helper()
		r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "computer", Arguments: arguments})
		harness.Must(t, err)
		return r
	}
	look := func() []byte {
		t.Helper()
		r := call(map[string]any{"action": "screenshot"})
		shown, ok := r.Content[0].(*mcp.ImageContent)
		if !ok || r.IsError || shown.MIMEType != "image/png" {
			t.Fatalf("a screenshot: %+v", r.Content[0])
		}
		if m, err := png.Decode(bytes.NewReader(shown.Data)); err != nil || m.Bounds().Dx() != 200 {
			t.Fatalf("a screenshot: %v", err)
		}
		return shown.Data
	}
	before := look()
	for _, arguments := range []map[string]any{{"action": "click", "x": 20, "y": 20}, {"action": "type", "text": "from a model"}, {"action": "key", "keys": []string{"Return"}}, {"action": "scroll", "x": 20, "y": 20, "direction": "down"}} {
		if r := call(arguments); r.IsError {
			t.Errorf("%v: %+v", arguments, r.Content[0])
		}
	}
	harness.Eventually(t, "the text of the model", 5*time.Minute, func() bool { return typed() == "from stdin\nfrom a model\n" })
	harness.Eventually(t, "another picture", 5*time.Minute, func() bool { return !bytes.Equal(look(), before) })
	for _, arguments := range []map[string]any{{"action": "click", "x": 20}, {"action": "click", "x": 300, "y": 2}, {"action": "reboot"}, {"action": "screenshot", "file": "x"}} {
		if r := call(arguments); !r.IsError {
			t.Errorf("%v: %+v", arguments, r.Content[0])
		}
	}
	screen.Stop()
	if r := call(map[string]any{"action": "screenshot"}); !r.IsError || !strings.Contains(r.Content[0].(*mcp.TextContent).Text, "connect to the display") {
		t.Errorf("without the display: %+v", r.Content[0])
	}
}

// Without its owner's consent a desktop takes no input, and a machine without a desktop
// gives the reason.
func TestTheOwnersConsentToADesktop(t *testing.T) {
	testenv.Slow(t)
	screen := xvfb.Start(t)
	w := newWorkshop(t)
	w.serve(t, "view", "--desktop="+screen.Display)
	w.serve(t, "none")
	w.serve(t, "gone", "--desktop=:64999")
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"consent":     {[]string{"input", "view", "type", "secret"}, 1, "the machine view: the machine's owner has not allowed input: it needs turngate machine serve --desktop-input"},
		"a look":      {[]string{"screenshot", "view"}, 0, "a display of 800 x 600 pixels"},
		"no desktop":  {[]string{"screenshot", "none"}, 1, "on the machine none: its owner started it without --desktop"},
		"no display":  {[]string{"screenshot", "gone"}, 1, "on the machine gone: connect to the display :64999"},
		"no action":   {[]string{"input", "view", "jump"}, 2, `"jump"`},
		"no point":    {[]string{"input", "view", "click", "1"}, 2, "click: 1 arguments"},
		"a bad point": {[]string{"input", "view", "click", "1", "b"}, 2, `"b"`},
		"a bad key":   {[]string{"input", "view", "key", "hyper+x"}, 2, `keys: "hyper+x"`},
		"a bad side":  {[]string{"screenshot", "view", "--max-side", "1"}, 2, "max_side"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.run(t, "", tt.args[0], tt.args[1:]...); got.code != tt.code || !strings.Contains(got.errOut, tt.says) {
				t.Errorf("got %+v", got)
			}
		})
	}
	list := turngate(t, w.binary, "machine", "ls", "--nats", w.nats.URL(), "--creds", w.nats.AdminCreds(), "-o", "json")
	for _, want := range []string{"started it without --desktop-input", "connect to the display :64999"} {
		if !strings.Contains(list.out, want) {
			t.Errorf("no %q in %s", want, list.out)
		}
	}
	for _, args := range [][]string{{"--desktop-input"}, {"--desktop=far:0"}} {
		if got := turngate(t, w.binary, append([]string{"machine", "serve"}, args...)...); got.code != 2 || !strings.Contains(got.errOut, "--desktop") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}
