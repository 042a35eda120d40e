package e2e_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/browser"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

const hostileText = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>` + "\u202e\x1b[2J"

// bashCall is an answer that runs a command with the tool of agent mini.
func bashCall(text, command string) (*schema.Reply, error) {
	arguments, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		return nil, err
	}
	return trainer.NewReply(trainer.Message{Role: "assistant", Content: text, ToolCalls: []trainer.ToolUse{{ID: "c1", Name: "bash", Arguments: string(arguments)}}}, trainer.Sample{})
}

// The page of a running rollout shows its events and the streamed text as they come.
// After a cut of the browser's network, a restart of the server and a reload it has each of
// them once.
func TestConsoleShowsARolloutLive(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	page := browser.Open(t, 1280, 800)
	nats := newKillable(t, newBench(t))
	worker, log := nats.worker(t, "local"), &harness.Buffer{}
	pieces, proceed := make(chan string), make(chan struct{})
	answer := func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
		wait := func(on <-chan struct{}) {
			select {
			case <-on:
			case <-ctx.Done():
			}
		}
		if len(c.Messages) > 2 {
			wait(proceed)
			return trainer.NewReply(trainer.Message{Role: "assistant", Content: "Done."}, trainer.Sample{})
		}
		text := ""
		for {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case piece := <-pieces:
				if piece == "" {
					return bashCall(text, "echo 'Hello, world!' > hello.txt; echo "+"'"+`<script>`+"'")
				}
				text += piece
				delta, err := json.Marshal(map[string]string{"content": piece})
				if err != nil {
					return nil, err
				}
				if err := c.Emit(&schema.Delta{V: schema.Version, Delta: delta}); err != nil {
					return nil, err
				}
			}
		}
	}
	tr, err := trainer.Dial(t.Context(), trainer.Config{URL: "nats://127.0.0.1:" + nats.port, Creds: filepath.Join(nats.state, "creds", "trainer-local.nk"), Name: "local", Log: zerolog.New(log)})
	harness.Must(t, err)
	defer tr.Close()
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- tr.Serve(ctx, answer) }()
	defer func() { stop(); <-served }()

	task, err := tasks.Load(filepath.Join(testenv.Root(t), "examples/tasks/hello"), tasks.Options{})
	harness.Must(t, err)
	q := task.Request
	q.V, q.ID, q.Trainer, q.Mode, q.Agent.Name, q.Sandbox.Backend = schema.Version, "local-live", "local", schema.ModeGate, "mini", "local"
	q.Task.Bundle, err = tr.PutBundle(t.Context(), task.Bundle)
	harness.Must(t, err)
	harness.Must(t, tr.Submit(t.Context(), []schema.Request{q}))

	console := nats.as(t, "ops", "console")
	harness.Eventually(t, "a console", 5*time.Minute, func() bool { return consoleLink.MatchString(console.out.String()) })
	link := consoleLink.FindStringSubmatch(console.out.String())
	page.Do(chromedp.Navigate(link[0]))
	page.Shows(`document.querySelector('.body .row .task a') !== null`)
	page.Do(chromedp.Click(`.body .row .task a`))
	page.Shows(`document.querySelector('.call .about')?.textContent.includes('generates')`)
	pieces <- hostileText
	pieces <- " streamed"
	const streamed = `document.querySelector('.streamed pre')?.textContent`
	page.Shows(streamed + `?.endsWith(' streamed')`)
	shown := func() {
		t.Helper()
		page.Shows(streamed + ` === document.querySelector('.streamed pre').textContent.replaceAll('streamed streamed', '') && ` + streamed + `.startsWith('<img') && ` + streamed + `.split(' streamed').length === 2`)
		page.Shows(`document.querySelectorAll('.call').length === 1 && document.querySelectorAll('.call .message.user').length === 1 && [...document.querySelectorAll('.stage .name')].filter((e) => e.textContent === 'agent').length === 1`)
		page.Shows(`document.title.endsWith(' · turngate') && document.querySelectorAll('main img, main script').length === 0 && !document.body.textContent.includes('\u202e')`)
	}
	shown()
	page.Picture("live")
	page.Do(chromedp.Reload())
	shown()

	// The network of the browser is cut while a piece comes, and the page goes on.
	page.Offline(true)
	pieces <- " cut"
	page.Offline(false)
	page.Shows(streamed + `?.endsWith(' streamed cut')`)
	shown()

	// The server restarts, and the page goes on.
	nats.kill(t)
	<-nats.p.done // its port is free
	nats.start(t)
	shown()
	for _, out := range []*harness.Buffer{worker.err, log} { // both have two connections
		harness.Eventually(t, "a connection that is back", 5*time.Minute, func() bool { return strings.Count(out.String(), "NATS connection is back") == 2 })
	}
	pieces <- ""
	page.Shows(`document.querySelectorAll('.call').length === 2 && document.querySelector('.call .message.assistant .use pre').textContent.startsWith("echo 'Hello")`)
	page.Shows(`document.querySelector('.call[aria-label="Call 2"] .message.tool pre')?.textContent.includes('<script>')`)
	page.Do(chromedp.Reload())
	page.Shows(`document.querySelectorAll('.call').length === 2 && document.querySelectorAll('.call .message').length === 4`)
	close(proceed)
	page.Shows(`document.querySelector('h1 .reward').textContent === 'reward 1'`)
	page.Shows(`document.querySelectorAll('.call .message').length === 5 && document.querySelector('.phase') !== null`)
	page.Shows(`document.title.endsWith(' · turngate') && document.querySelectorAll('main img, main script').length === 0`)
	worker.stop(t) // before the server, without which it ends late
}
