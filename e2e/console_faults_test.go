package e2e_test

import (
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/browser"
	rollouts "github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// Parts of the test of all pages, in this order. After each, the pages show other facts.
const (
	atFirst = iota
	afterRestart
	afterCut // of the network between the consoles and the server
	atEnd
	parts
)

// faultyPage is a page of a console that stays open during the faults.
type faultyPage struct {
	name    string
	console *process
	path    string
	// asks is true if the page's own requests need the server. The head of each page of a
	// running system tells of the server, too.
	asks bool
	// reads is an expression of JavaScript for the facts that the page shows, and facts are
	// its values; empty: the page is not looked at.
	reads string
	facts [parts]string
	tab   *browser.Page
}

// shows returns an expression of JavaScript: the page has the facts of a part.
func (p *faultyPage) shows(part int) string {
	return fmt.Sprintf(`(() => {
		const texts = (selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent.trim())
		const tally = (list) => [...new Set(list)].sort().map((v) => list.filter((w) => w === v).length + ' ' + v).join(', ')
		const distinct = (list) => new Set(list).size
		return %s
	})() === %q`, p.reads, p.facts[part])
}

// Conditions of a page beside its facts.
const (
	isWell       = `document.querySelector('.link.live') !== null && document.querySelector('[role=alert]') === null`
	hasAlert     = `document.querySelector('[role=alert]') !== null`
	mainHasAlert = `document.querySelector('main [role=alert]') !== null`
)

var tokenLink = regexp.MustCompile(`http://\S+/\?token=\S+`)

// Each page shows rollouts of two agents that run while the server restarts, and while the
// network between the consoles and the server is cut, and then that between the consoles
// and the browser. It says so meanwhile and keeps the facts; a page that is loaded anew in
// the cut says so, too. Afterwards it shows the next facts by itself, each once. At the end a console stops while a call waits for a person.
func TestEachPageOfTheConsoleSurvivesFaults(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	first := browser.Open(t, 1280, 800)
	b := newBench(t)
	agents := []string{"mini", "pi"}
	for _, agent := range agents {
		b.need(t, "local", agent)
	}
	nats := newKillable(t, b)
	proxy := testenv.NewProxy(t, "127.0.0.1:"+nats.port)
	through := *nats // the server as the consoles reach it
	_, through.port, _ = strings.Cut(proxy.Addr(), ":")
	runs := t.TempDir()
	task := copyTask(t, "examples/tasks/hello", nil)
	before := start(t, b.binary, "run", "--agent", "nop", "--sandbox", "local", "--out", filepath.Join(runs, "before"), task)
	nats.as(t, "worker-"+nats.wid, "worker", "--state", filepath.Join(t.TempDir(), "worker"), "--agents", b.cache, "--sandboxes", "local", "--slots", "8", "--grace", "1s")
	engine := startSteppedEngine(t, "steps:\n- run: echo first\n- run: \"echo 'Hello, world!' > hello.txt\"\n- text: Done.\n")
	job := filepath.Join(runs, "now")
	before.wait(t, 5*time.Minute)
	run := through.as(t, "trainer-local", "run", "--console", "127.0.0.1:0", "-a", "mini", "-a", "pi", "-n", "3", "--sandbox", "local", "--trainer", "upstream:"+engine.url, "--plain-upstream", "--model", "served", "--out", job, task)
	ops, trainer := through.as(t, "ops", "console"), through.as(t, "trainer-local", "console")
	folder := start(t, b.binary, "console", runs)
	engine.stand(t, 6)              // the first call of each rollout waits
	ids := map[string][]schema.ID{} // by the agent
	groups := map[string]string{}
	list, err := rollouts.InJob(job)
	harness.Must(t, err)
	for _, r := range list {
		ids[r.Trial.Agent] = append(ids[r.Trial.Agent], r.ID)
		groups[r.Trial.Agent] = r.Trial.Group
	}

	of := func(facts ...string) (out [parts]string) { copy(out[:], facts); return out }
	const listed = `[...document.querySelectorAll('[aria-label="Jobs"] tbody tr')].map((r) => r.children[0].textContent + ' ' + r.children[4].textContent).join(', ')`
	const variants = `[...document.querySelectorAll('[aria-label="Agents and models"] tbody tr')].map((r) => r.children[0].textContent + ' ' + r.children[2].textContent).join(', ')`
	pages := []*faultyPage{
		{name: "rollouts", console: ops, path: "/", reads: `tally(texts('.body .row .status')) + ' of ' + distinct(texts('.body .row .id'))`,
			facts: of("6 running of 6", "2 done, 5 running of 7", "5 done, 3 running of 8", "8 done of 8")},
		{name: "workers", console: ops, path: "/workers", asks: true, reads: `texts('.worker .slots').join() + ': ' + distinct(texts('.worker .files li'))`,
			facts: of("6 of 8 slots used, 2 free: 6", "5 of 8 slots used, 3 free: 5", "3 of 8 slots used, 5 free: 3", "0 of 8 slots used, 8 free: 0")},
		{name: "queue", console: ops, path: "/queue", asks: true, reads: `[...document.querySelectorAll('[aria-label="Lanes"] tbody tr')].map((r) => [0, 1, 2, 4].map((i) => r.children[i].textContent).join(' ')).join() + texts('section[aria-label="Lanes"] .empty').join()`,
			facts: of("local p2 0 6", "local p2 0 5", "local p2 0 3", "All queues are empty.")},
		{name: "trainers", console: ops, path: "/trainers", asks: true, reads: `texts('.trainer h2 b').join() + ': ' + texts('.trainer .facts dd').at(-1)?.slice(0, 16)`,
			facts: of("local: 0 of 0 calls of ", "local: 0 of 6 calls of ", "local: 0 of 13 calls of", "local: 0 of 20 calls of")},
		{name: "jobs-run", console: run, path: "/jobs", reads: listed, facts: of("now 0 of 6", "now 2 of 6", "now 4 of 6")},
		{name: "job-run", console: run, path: "/job?job=now", reads: variants, facts: of("mini 0 of 3, pi 0 of 3", "mini 1 of 3, pi 1 of 3", "mini 2 of 3, pi 2 of 3")},
		{name: "compare", console: folder, path: "/compare?a=before&b=now", reads: `distinct(texts('[aria-label="Tasks"] tbody th')) + ' tasks of agents: ' + tally(texts('td:last-child a'))`,
			facts: of("3 tasks of agents: 6 open", "3 tasks of agents: 2 1, 4 open", "3 tasks of agents: 4 1, 2 open", "3 tasks of agents: 6 1")},
	}
	forms := map[string]*faultyPage{} // by the agent
	for _, agent := range agents {
		const calls = `texts('.call .about b').join() + ': ' + tally([...document.querySelectorAll('.call .message')].map((e) => e.classList[1]).filter((c) => c === 'assistant' || c === 'tool')) + ': ' + texts('h1 .status, h1 .reward').join()`
		path := "/rollout/" + string(ids[agent][2])
		forms[agent] = &faultyPage{name: "new-" + agent, console: trainer, path: "/new", asks: true, reads: `texts('.ask button[type=submit]').join() + ': ' + document.querySelector('[name=check]')?.value`,
			facts: of("Run as trainer local: true", "Run as trainer local: true")}
		pages = append(pages, forms[agent],
			&faultyPage{name: "group-" + agent, console: ops, path: "/group?" + url.Values{"trainer": {"local"}, "group": {groups[agent]}}.Encode(), reads: `tally(texts('.grid tbody .status')) + ' of ' + distinct(texts('.grid tbody th'))`,
				facts: of("3 running of 3", "1 done, 2 running of 3", "2 done, 1 running of 3", "3 done of 3")},
			&faultyPage{name: "rollout-" + agent, console: ops, path: path, asks: true, reads: calls,
				facts: of("call 1: : running,no reward", "call 1,call 2: 1 assistant, 1 tool: running,no reward", "call 1,call 2,call 3: 2 assistant, 2 tool: running,no reward", "call 1,call 2,call 3: 3 assistant, 2 tool: done,reward 1")},
		)
	}

	used := map[*process]int{} // URLs of a console
	for i, p := range pages {
		if p.tab = first; i > 0 {
			p.tab = first.Another(1280, 800)
		}
		var link string
		harness.Eventually(t, "the URL of a console", 5*time.Minute, func() bool {
			links := tokenLink.FindAllString(p.console.out.String()+p.console.err.String(), -1)
			if len(links) <= used[p.console] {
				return false
			}
			link = links[used[p.console]]
			return true
		})
		used[p.console]++
		base, _, _ := strings.Cut(link, "/?")
		p.tab.Do(chromedp.Navigate(link))
		p.tab.Shows(isWell)
		p.tab.Do(chromedp.Navigate(base + p.path))
	}
	// all waits until each page has the facts of a part, and is as it should be.
	all := func(part int, as func(*faultyPage) string) {
		t.Helper()
		for _, p := range pages {
			if p.facts[part] != "" {
				p.tab.Shows(p.shows(part) + " && " + as(p))
			}
		}
	}
	well := func(*faultyPage) string { return isWell }
	warns := func(p *faultyPage) string {
		if p.console == folder { // it has no server
			return isWell
		}
		return hasAlert
	}
	// submit runs a rollout and leaves its first call to a person.
	submit := func(agent string) {
		t.Helper()
		p := forms[agent]
		p.tab.Do(chromedp.Evaluate(fmt.Sprintf(`(() => {
			const e = document.querySelector('select[name=agent]')
			e.value = %q
			e.dispatchEvent(new Event('change', { bubbles: true }))
		})()`, agent), nil))
		p.tab.Shows(fmt.Sprintf(`document.querySelector('select[name=agent]').value === %q`, agent))
		p.tab.Do(chromedp.Click(`.ask button[type=submit]`))
		p.reads = `texts('.answer h2, h1 .reward').join() + ': ' + document.querySelector('.answer [name=text]')?.value`
		p.tab.Shows(`document.querySelector('.answer [name=text]') !== null`)
	}
	answer := func(agent string) {
		t.Helper()
		forms[agent].tab.Do(chromedp.SendKeys(`.answer [name=text]`, "Done."))
	}
	const asked = "no reward,Call 1 waits for your answer: you are the model: "

	for _, p := range forms {
		p.tab.Shows(isWell + ` && document.querySelector('.ask') !== null`)
		p.tab.Do(chromedp.Evaluate(`document.querySelector('[name=check]').select()`, nil), chromedp.SendKeys(`[name=check]`, "true"))
	}
	all(atFirst, well)
	nats.kill(t)
	<-nats.p.done // its port is free
	all(atFirst, warns)
	nats.start(t)
	all(atFirst, well)
	for _, agent := range agents {
		engine.allowOf(ids[agent][0], 3)
		engine.allowOf(ids[agent][2], 1)
	}
	submit("mini")
	answer("mini")
	forms["mini"].facts = of("", asked+"Done.", "reward 1: undefined", "reward 1: undefined")
	all(afterRestart, well)

	proxy.Set(true, true, 0)
	all(afterRestart, warns)
	for _, p := range pages {
		p.tab.Picture("cut-" + p.name)
		if p.console != folder {
			p.tab.Do(chromedp.Reload())
		}
	}
	for _, p := range pages {
		switch {
		case p.asks:
			p.tab.Shows(mainHasAlert)
		case p.console != folder:
			p.tab.Shows(p.shows(afterRestart) + " && " + hasAlert)
		}
	}
	proxy.Cut() // the connections do not outlive the cut
	proxy.Heal()
	forms["mini"].facts[afterRestart] = asked // the typed text is gone with the old page
	forms["pi"].facts[afterRestart] = "Run as trainer local: grep -qx 'Hello, world!' hello.txt"
	all(afterRestart, well)
	for _, agent := range agents {
		engine.allowOf(ids[agent][1], 3)
		engine.allowOf(ids[agent][2], 2)
	}
	answer("mini")
	forms["mini"].tab.Do(chromedp.Click(`.answer button[name=say]`))
	submit("pi")
	answer("pi")
	forms["pi"].facts = of("", "", asked+"Done.", "reward 0: undefined")
	all(afterCut, well)

	// For its browsers a console that stands still is as one beyond a lost network.
	still := []*process{ops, trainer, folder}
	signal := func(sig syscall.Signal) {
		for _, c := range still {
			_ = c.cmd.Process.Signal(sig) // one may have ended with the test
		}
	}
	t.Cleanup(func() { signal(syscall.SIGCONT) }) // else they do not end
	signal(syscall.SIGSTOP)
	all(afterCut, func(p *faultyPage) string {
		if slices.Contains(still, p.console) {
			return `document.querySelector('.link.lost') !== null`
		}
		return isWell
	})
	for _, agent := range agents {
		engine.allowOf(ids[agent][2], 3)
	}
	signal(syscall.SIGCONT)
	forms["pi"].tab.Shows(isWell)
	forms["pi"].tab.Do(chromedp.Click(`.answer button[name=say]`))
	if code := run.wait(t, 5*time.Minute); code != 0 {
		t.Errorf("exit status %d: %s", code, run.err)
	}
	all(atEnd, well) // the console of the run has ended
	forms["mini"].tab.Do(chromedp.Evaluate(`location.href = '/new'`, nil))
	forms["mini"].tab.Shows(`document.querySelector('.ask') !== null`)
	submit("mini")
	trainer.stop(t)
}
