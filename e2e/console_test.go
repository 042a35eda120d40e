package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/browser"
	"github.com/turngate/turngate/schema"
)

// console starts a console and returns its URL.
func console(t *testing.T, args ...string) string {
	t.Helper()
	p := start(t, append([]string{testenv.Binary(t), "console"}, args...)...)
	harness.Eventually(t, "a console", 5*time.Minute, func() bool { return strings.HasSuffix(p.out.String(), "\n") })
	return strings.TrimSpace(p.out.String())
}

const rowOf = `document.querySelector('.body .row%s')`

// A rollout that is submitted while the page is open appears in it, runs and ends.
func TestConsoleShowsRunningRollouts(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	page := browser.Open(t, 1280, 800)
	binary, state := testenv.Binary(t), t.TempDir()
	up := start(t, binary, "up", "--state", state, "--port", "0", "--sandboxes", "local", "--console", "127.0.0.1:0")
	harness.Eventually(t, "a server that is up", 5*time.Minute, func() bool {
		return strings.Contains(up.err.String(), "are ready") && strings.Contains(up.out.String(), "turngate trainer add") && consoleURL.MatchString(up.err.String())
	})
	url := regexp.MustCompile(`nats://[0-9.:]+`).FindString(up.out.String())
	creds := func(name string) string { return filepath.Join(state, "creds", name) }

	proceed := make(chan struct{})
	answers := helloEngine(t)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			<-proceed
		}
		answers.ServeHTTP(w, r)
	}))
	defer engine.Close()

	for _, role := range []string{"ops.nk", "trainer-local.nk"} {
		link := consoleURL.FindStringSubmatch(up.err.String())[1] // up shows the rollouts of all trainers
		if role != "ops.nk" {
			link = console(t, "--nats", url, "--creds", creds(role))
		}
		page.Do(chromedp.Navigate(link))
		page.Shows(`document.querySelector('.link.live') !== null`)
		if role == "ops.nk" {
			page.Shows(`document.querySelector('.empty') !== null`)
			run := start(t, binary, "run", "--nats", url, "--creds", creds("trainer-local.nk"), "--trainer", "upstream:"+engine.URL, "-n", "2", filepath.Join(testenv.Root(t), "examples/tasks/hello"))
			page.Shows(fmt.Sprintf(rowOf, `[data-status="running"]`) + ` !== null`)
			close(proceed)
			if code := run.wait(t, 5*time.Minute); code != 0 {
				t.Fatalf("exit status %d: %s", code, run.err)
			}
		}
		page.Shows(`document.querySelectorAll('.body .row[data-status="done"]').length === 2`)
		page.Shows(fmt.Sprintf(rowOf, ` .reward`) + `.textContent === '1'`)
		page.Shows(fmt.Sprintf(rowOf, ` .agent`) + `.textContent === 'mini'`)

		// A filter is kept in the URL, over a reload too.
		page.Do(chromedp.SendKeys(`input[name=reward]`, "<1"))
		page.Shows(`document.querySelectorAll('.body .row').length === 0 && location.search === '?reward=%3C1'`)
		page.Do(chromedp.Reload())
		page.Shows(`document.querySelector('input[name=reward]').value === '<1' && document.querySelector('.empty').textContent.includes('No rollout')`)
		page.Do(chromedp.Click(`.fields button`))
		page.Shows(`document.querySelectorAll('.body .row').length === 2 && location.search === ''`)

		// The keyboard moves between rollouts.
		page.Do(chromedp.Focus(`.table`), chromedp.KeyEvent("jj"))
		page.Shows(`document.querySelectorAll('.body .row')[1].getAttribute('aria-selected') === 'true'`)
		page.Picture("rollouts-" + role)

		// Its page has phases and the conversation. The trainer may read files, so it also sees
		// its rows and files.
		page.Do(chromedp.KeyEvent(kb.Enter))
		page.Shows(`location.pathname.startsWith('/rollout/local-') && document.querySelector('h1 .reward').textContent === 'reward 1'`)
		page.Shows(`[...document.querySelectorAll('.phase .name')].some((e) => e.textContent === 'agent')`)
		if role == "ops.nk" {
			page.Shows(`document.querySelectorAll('.call').length === 2 && document.querySelector('.use pre').textContent.startsWith("echo 'Hello") && document.querySelectorAll('.rows, .files').length === 0`)
			page.Shows(`document.querySelector('[aria-label="Training rows and files"]')?.textContent.includes('for the trainer local') && /^turngate console --nats .*trainer-local.nk'$/.test(document.querySelector('.command code').textContent)`)
		} else {
			page.Shows(`document.querySelectorAll('.call').length === 2 && document.querySelector('.use pre').textContent.startsWith("echo 'Hello")`)
			page.Shows(`document.querySelector('.rows button').textContent.includes('2 trained') || document.querySelectorAll('.rows button').length === 2`)
			page.Do(chromedp.Click(`.rows button`))
			page.Shows(`document.querySelector('.tokens .token.lp2')?.title.includes('log-prob -1.0000')`)
			page.Shows(`[...document.querySelectorAll('.files a')].some((a) => a.textContent === 'transcript.jsonl.zst')`)
			page.Shows(`document.querySelector('.command code').textContent.startsWith('turngate rollout show --nats ')`)
		}
		page.Picture("rollout-" + role)
		page.Do(chromedp.KeyEvent(kb.Escape))
		page.Shows(`document.querySelectorAll('.body .row').length === 2`)
	}
}

var consoleURL = regexp.MustCompile(`console (http://[^ \n]+)`)

// consoleLink is the URL that `turngate console` prints.
var consoleLink = regexp.MustCompile(`http://[^ \n]+`)

// A run has a console while it lasts, with the conversation of its rollouts; it changes
// neither its output nor its end.
func TestRunHasAConsole(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, agent := range []string{"mini", "pi"} {
		t.Run(agent, func(t *testing.T) { runWithConsole(t, agent) })
	}
	binary, runs, task := testenv.Binary(t), t.TempDir(), filepath.Join(testenv.Root(t), "examples/tasks/hello")
	run := start(t, binary, "run", "--sandbox", "local", "--runs", runs, task)
	if code := run.wait(t, 5*time.Minute); code != 0 || strings.Contains(run.err.String(), "console ") {
		t.Errorf("exit status %d: %s", code, run.err)
	}
	run = start(t, binary, "run", "--console", "0.0.0.0:1", "--runs", runs, task)
	if code := run.wait(t, 5*time.Minute); code != 2 || !strings.Contains(run.err.String(), `--console: "0.0.0.0:1" is not a loopback address`) {
		t.Errorf("exit status %d: %s", code, run.err)
	}
}

func runWithConsole(t *testing.T, agent string) {
	page := browser.Open(t, 1280, 800)
	(&bench{cache: agentCache()}).need(t, "local", agent)
	binary, runs := testenv.Binary(t), t.TempDir()
	proceed := make(chan struct{})
	answers := helloEngine(t)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			<-proceed
		}
		answers.ServeHTTP(w, r)
	}))
	defer engine.Close()
	task := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	run := start(t, binary, "run", "--console", "127.0.0.1:0", "-o", "json", "--agent", agent, "--agents", agentCache(), "--sandbox", "local", "--runs", runs, "--trainer", "upstream:"+engine.URL, "-n", "2", task)
	harness.Eventually(t, "a console", 5*time.Minute, func() bool { return consoleURL.MatchString(run.err.String()) })
	page.Do(chromedp.Navigate(consoleURL.FindStringSubmatch(run.err.String())[1]))
	page.Shows(`document.querySelectorAll('.body .row[data-status="running"]').length === 2`)
	page.Do(chromedp.Click(`.body .row .task a`))
	page.Shows(`document.querySelector('h1 .status')?.textContent === 'running' && [...document.querySelectorAll('.facts dt')].some((e) => e.textContent === 'Job')`)
	close(proceed)
	if code := run.wait(t, 5*time.Minute); code != 0 { // with a browser that is connected
		t.Fatalf("exit status %d: %s", code, run.err)
	}
	var results []schema.Result
	if err := json.Unmarshal([]byte(run.out.String()), &results); err != nil || len(results) != 2 {
		t.Errorf("got %d results, %v: %s", len(results), err, run.out)
	}
	page.Shows(`document.querySelector('.link.lost') !== null`)

	// The folder of the job has the rollout's whole page.
	page.Do(chromedp.Navigate(console(t, runs)))
	page.Shows(`document.querySelectorAll('.body .row[data-status="done"]').length === 2`)
	page.Do(chromedp.Click(`.body .row .task a`))
	page.Shows(`document.querySelector('h1 .reward')?.textContent === 'reward 1' && document.querySelectorAll('.call').length >= 2 && [...document.querySelectorAll('.message.assistant .use pre')].some((e) => e.textContent.startsWith("echo 'Hello"))`)
	page.Picture("run-" + agent)
}

// The folder of a job is shown without a server, also on a phone.
func TestConsoleShowsAFolder(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	page := browser.Open(t, 390, 844)
	binary := testenv.Binary(t)
	runs := t.TempDir()
	run := start(t, binary, "run", "--sandbox", "local", "--out", filepath.Join(runs, "j"), filepath.Join(testenv.Root(t), "examples/tasks/hello"))
	if code := run.wait(t, 5*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, run.err)
	}
	page.Do(chromedp.Navigate(console(t, runs)))
	page.Shows(fmt.Sprintf(rowOf, `[data-status="done"] .reward`) + `.textContent === '1'`)
	page.Shows(`document.documentElement.scrollWidth <= innerWidth`)
	page.Picture("rollouts-phone")
	page.Do(chromedp.Click(`.body .row .task a`))
	page.Shows(`document.querySelectorAll('.call').length === 2 && document.documentElement.scrollWidth <= innerWidth`)
	page.Picture("rollout-phone")
}
