package console_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/browser"
	"github.com/turngate/turngate/schema"
)

// A person reads one rollout after the other with keys, wherever the focus is: a button that
// was clicked gets none of them, and a field all.
func TestKeysReadTheRollouts(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	s := serve(t)
	s.one = ended(1, nil)
	page.Do(chromedp.Navigate(<-s.links))
	for n := range 5 {
		s.show(ended(n, nil))
	}
	page.Shows(`document.querySelectorAll('.body .row').length === 5`)
	page.Do(chromedp.Click(`.tabs button`, chromedp.ByQuery), chromedp.KeyEvent("j"))
	page.Shows(`document.activeElement.className === 'table'`)
	for _, id := range []string{"alpha-0004", "alpha-0003", "alpha-0002"} { // the newest first
		page.Shows(`document.querySelector('[aria-selected=true]')?.id === 'r-` + id + `'`)
		page.Do(chromedp.KeyEvent(kb.Enter))
		page.Shows(`location.pathname === '/rollout/` + id + `' && document.activeElement.tagName === 'MAIN'`)
		page.Do(chromedp.KeyEvent(kb.Escape))
		page.Shows(`location.pathname === '/' && document.querySelector('[aria-selected=true]')?.id === 'r-` + id + `'`)
		page.Do(chromedp.KeyEvent("j"))
	}
	page.Do(chromedp.KeyEvent("/"), chromedp.KeyEvent("jx"))
	page.Shows(`document.querySelector('#text').value.endsWith('jx') && document.querySelectorAll('.body .row').length === 0`)
	page.Do(chromedp.KeyEvent(kb.Escape), chromedp.Click(`.fields button`, chromedp.ByQuery))
	page.Shows(`document.querySelectorAll('.body .row').length === 5`)
	page.Do(chromedp.KeyEvent("k"), chromedp.KeyEvent(kb.Enter)) // the button that had the focus is gone
	page.Shows(`location.pathname === '/rollout/alpha-0002'`)
}

// A tab is named after what it shows. A wrong address has a page, and a filter that is not
// valid says what is.
func TestAddressesThatAPersonTypes(t *testing.T) {
	page := browser.Open(t, 1400, 900)
	s := serve(t)
	s.one = ended(1, nil)
	link := <-s.links
	base, _, _ := strings.Cut(link, "/?")
	page.Do(chromedp.Navigate(link))
	s.show(ended(1, func(r *schema.Result) { r.Group = "01M8M0JWMVMV3FEWP2QWTEBDFJ" }))
	page.Shows(`document.title === 'Rollouts of a test · turngate'`)
	page.Shows(`[...document.querySelectorAll('.body .row > *')].every((e) => e.scrollWidth <= e.clientWidth) && document.querySelector('.body .row .group').textContent === 'QWTEBDFJ · 1' && document.querySelector('.body .row .started').textContent.includes('2023')`)
	page.Do(chromedp.Click(`.body .row .task a`, chromedp.ByQuery))
	page.Shows(`document.title === 'task-1 alpha-0001 · turngate' && getComputedStyle(document.querySelector('.whole')).whiteSpace === 'nowrap'`)
	page.Do(chromedp.Navigate(base + "/?reward=lots&status=well&sort=-x&colour=red&job=other"))
	page.Shows(`[...document.querySelectorAll('.filters .fault')].map((e) => e.textContent.split(':')[0]).join() === 'reward lots,status well,sort -x,colour'`)
	page.Shows(`document.querySelector('.filters .fault').textContent.includes('such as 1, >=0.5') && document.querySelectorAll('.body .row').length === 0 && document.querySelector('select[name=job]').value === 'other'`)
	page.Do(chromedp.Navigate(base + "/nowhere/at/all"))
	page.Shows(`document.querySelector('h1')?.textContent === 'There is no page /nowhere/at/all' && document.title === 'No page · turngate'`)
	page.Do(chromedp.Click(`main a`, chromedp.ByQuery))
	page.Shows(`location.pathname === '/' && document.querySelectorAll('.body .row').length === 1`)
	c := s.browser(t)
	for path, want := range map[string]int{"/nowhere": http.StatusNotFound, "/api/nowhere": http.StatusNotFound, "/group": http.StatusOK} {
		code, text := get(t, c, base+path, nil)
		if code != want || strings.Contains(text, "<html") != (path != "/api/nowhere") {
			t.Errorf("%s: got %d %.60q", path, code, text)
		}
	}
}

// The link of a job leads to its rollouts alone, also beside a job whose name begins with
// the same letters.
func TestTheRolloutsOfAJobAreItsOwn(t *testing.T) {
	runs := t.TempDir()
	for _, name := range []string{"night", "night-2"} {
		matrixJob(t, filepath.Join(runs, name), false)
	}
	page := browser.Open(t, 1400, 900)
	s := folderOf(t, runs)
	link := <-s.links
	base, _, _ := strings.Cut(link, "/?")
	page.Do(chromedp.Navigate(link))
	page.Shows(`document.querySelector('.tabs .count')?.textContent === '96'`)
	page.Do(chromedp.Navigate(base + "/job?job=night"))
	page.Shows(`document.title === 'Job night · turngate'`)
	page.Do(chromedp.Click(`main p a`, chromedp.ByQuery))
	page.Shows(`location.search === '?job=night' && document.querySelector('.tabs .count')?.textContent === '48'`)
}

// After a restart of the console each page says once what to do, also that of a rollout that
// runs.
func TestARestartIsToldOnce(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	for _, path := range []string{"/group?trainer=alpha&group=g", "/rollout/alpha-0001", "/"} {
		h := &heard{memory: memory{one: running(1)}, fail: make(chan error), begun: make(chan struct{})}
		s := &site{}
		s.start(t, h, console.DefaultListen)
		link := <-s.links
		base, _, _ := strings.Cut(link, "/?")
		page.Do(chromedp.Navigate(link))
		page.Shows(`document.querySelector('.link.live') !== null`)
		page.Do(chromedp.Navigate(base + path))
		page.Shows(`document.querySelector('.link.live') !== null && document.querySelector('h1, .table') !== null`)
		s.stop()
		again := serveAt(t, strings.TrimPrefix(base, "http://"))
		page.Shows(`document.querySelector('.link.over') !== null`)
		page.Do(chromedp.Evaluate(`(() => { const back = document.querySelector('.back a'); if (back) { back.click(); history.back() } })()`, nil))
		page.Shows(`document.readyState === 'complete' && [...document.querySelectorAll('[role=alert]')].map((e) => e.textContent).join() === 'The session has ended. Open the URL that turngate printed last.'`)
		<-again.links
	}
}

// The page of a rollout names only commands that work for it.
func TestTheCommandsOfARolloutWork(t *testing.T) {
	s := serve(t)
	c := s.browser(t)
	for _, tt := range []struct {
		name string
		make func()
		want string
	}{
		{"without a transcript", func() { s.one = ended(1, nil) }, "turngate rollout show --runs x alpha-0001"},
		{"with one", func() { s.one = recording(t, "x") }, "turngate rollout show --runs x alpha-1, turngate rollout export --format atif --runs x alpha-1"},
	} {
		tt.make()
		if d := ask[console.Detail](t, s, c, "/api/rollouts/alpha-1"); strings.Join(d.Commands, ", ") != tt.want || d.Closed != "" {
			t.Errorf("%s: got %q %q", tt.name, d.Commands, d.Closed)
		}
	}
}

// An operator is told which credential shows the rows and the files, by a command that works
// if the file of the trainer lies beside the operator's.
func TestAnOperatorIsToldTheCredential(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"ops.nk", "trainer-alpha.nk"} {
		harness.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	bus := &console.Bus{URL: "nats://127.0.0.1:4222", Creds: filepath.Join(dir, "ops.nk")}
	for trainer, want := range map[string]string{"alpha": filepath.Join(dir, "trainer-alpha.nk"), "beta": "trainer-beta.nk"} {
		if got := bus.Flags(trainer); got != "--nats 'nats://127.0.0.1:4222' --creds '"+want+"'" {
			t.Errorf("%s: got %s", trainer, got)
		}
	}
	closed := bus.Files()
	bus.Trainer, bus.Creds = "alpha", filepath.Join(dir, "trainer-alpha.nk")
	if got := bus.Flags("alpha"); got != "--nats 'nats://127.0.0.1:4222' --creds '"+bus.Creds+"'" {
		t.Errorf("got %s", got)
	}
	s := serve(t)
	s.closed = closed
	s.one = ended(1, func(r *schema.Result) { r.Transcript = "transcript.jsonl.zst" })
	d := ask[console.Detail](t, s, s.browser(t), "/api/rollouts/alpha-1")
	if !strings.Contains(d.Closed, "trainer alpha") || len(d.Commands) != 3 || d.Commands[0] != "turngate console --runs x" || !strings.HasPrefix(d.Commands[2], "turngate rollout export") {
		t.Errorf("got %q, %q", d.Closed, d.Commands)
	}
}
