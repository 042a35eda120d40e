package console_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/browser"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// matrixJob makes the folder of an ended job of two agents with two models, four rollouts of each of
// three tasks. better raises the rewards of the second agent.
func matrixJob(t *testing.T, dir string, better bool) *jobs.Job {
	t.Helper()
	p := jobs.Plan{Variants: jobs.Variants([]string{"mini", "pi"}, []string{"base", "small"}), Attempts: 4}
	for _, name := range []string{"hello", "wrong", hostile} {
		harness.Must(t, p.AddTask("local", jobs.Task{Dir: "/tasks/" + strings.ToValidUTF8(name[:4], ""), Name: name}))
	}
	j, err := jobs.Create(dir, p)
	harness.Must(t, err)
	for i, trial := range j.Plan.Trials {
		cost, reward := 0.25, 0.0
		if trial.Agent == "pi" {
			cost = 0.5
		}
		if trial.Index < 2 || trial.Agent == "pi" && better {
			reward = 1
		}
		r := schema.Result{
			V: schema.Version, ID: trial.Rollout, Trainer: "local", Group: trial.Group, Index: trial.Index, Task: trial.Task, Agent: trial.Agent, Worker: "worker-of-a-host", Status: schema.StatusDone, Reward: &reward,
			Phases:    []schema.Phase{{Name: "agent", Start: 1_700_000_000_000 + int64(i)*1000, MS: 1500}},
			Committed: []schema.Committed{{Call: 1, Gen: "g1"}, {Call: 2, Gen: "g2"}},
			Calls:     schema.SortedMap[schema.CallStats]{"agent": {Count: 3, PromptTokens: 3000, CompletionTokens: int64(100 * (1 + trial.Index)), CostUSD: &cost}},
		}
		if trial.Index == 3 && trial.Task == hostile {
			r.Reward, r.Fault = nil, &schema.Fault{Stage: "agent", Code: schema.CodeTimeout, Message: hostile, Who: schema.WhoAgent}
		}
		harness.Must(t, j.Put(t.Context(), r, nil))
	}
	harness.Must(t, j.WriteResult(true))
	return j
}

// folderOf serves a folder of jobs.
func folderOf(t *testing.T, dir string) *site {
	t.Helper()
	s := &site{}
	s.start(t, &console.Folder{Dir: dir}, console.DefaultListen)
	return s
}

// ask reads JSON from a console.
func ask[T any](t *testing.T, s *site, c *http.Client, path string) (out T) {
	t.Helper()
	code, text := get(t, c, s.base+path, nil)
	if code != http.StatusOK || strings.ContainsAny(text, "\x1b\u202e") || strings.Contains(text, `\u001b`) {
		t.Fatalf("%s: got %d %.300q", path, code, text)
	}
	harness.Must(t, json.Unmarshal([]byte(text), &out))
	return out
}

func near(a *float64, b float64) bool { return a != nil && math.Abs(*a-b) < 1e-9 }

// A group has the advantages that trainers use: in standard deviations of the rewards to
// train on, with which a masked rollout has nothing to do.
func TestAGroupHasAdvantages(t *testing.T) {
	s := serve(t)
	c := s.browser(t)
	_, stop := s.feed(t, c, "/api/rollouts", "") // rollouts are read for browsers that follow them
	defer stop()
	for i, reward := range []float64{1, 0, 0.5, 0, 0.1, 0.1, 0.1} {
		s.show(ended(i, func(r *schema.Result) {
			r.Reward, r.Group, r.Index = &reward, "g/ä?", i
			if i >= 4 {
				r.Group = "even"
			}
			if i == 3 {
				r.Fault = &schema.Fault{Stage: "agent", Code: schema.CodeTimeout, Who: schema.WhoAgent}
			}
		}))
	}
	s.show(running(9))
	g := ask[console.Group](t, s, c, "/api/group?"+url.Values{"trainer": {"alpha"}, "group": {"g/ä?"}}.Encode())
	d := math.Sqrt(1. / 6)
	if len(g.Members) != 4 || !near(g.Mean, 0.5) || !near(g.Deviation, d) || !near(g.Members[0].Advantage, 0.5/d) || !near(g.Members[1].Advantage, -0.5/d) || !near(g.Members[2].Advantage, 0) {
		t.Errorf("got %+v", g)
	}
	if m := g.Members[3]; m.Advantage != nil || m.Use != "mask" || m.Failure != "agent_timeout" {
		t.Errorf("got %+v", m)
	}
	g = ask[console.Group](t, s, c, "/api/group?trainer=alpha&group=even")
	if len(g.Members) != 3 || !near(g.Deviation, 0) || !near(g.Members[0].Advantage, 0) {
		t.Errorf("got %+v", g)
	}
	if g = ask[console.Group](t, s, c, "/api/group?trainer=beta&group=even"); len(g.Members) != 0 || g.Mean != nil {
		t.Errorf("got %+v", g)
	}
	s.one = recording(t, hostile)
	if v := ask[console.Versions](t, s, c, "/api/rollouts/alpha-1/versions"); fmt.Sprint(v.Versions) != "[policy-7]" || v.Missing != "" {
		t.Errorf("got %+v", v)
	}
}

// A job has the figures of its report, the open trials and the retried ones; a job that
// cannot be read hides no other.
func TestJobsOfAFolder(t *testing.T) {
	dir := t.TempDir()
	matrixJob(t, filepath.Join(dir, "first"), false).Close()
	p := jobs.Plan{Variants: jobs.Variants([]string{"mini"}, nil), Attempts: 2}
	harness.Must(t, p.AddTask("local", jobs.Task{Dir: "/tasks/hello", Name: "hello"}))
	p.Trials[0].Retried = []jobs.Retried{{Rollout: "local-old", Cause: "infrastructure", Fault: schema.Fault{Code: schema.CodeInternal, Message: hostile}}}
	open, err := jobs.Create(filepath.Join(dir, "open"), p)
	harness.Must(t, err)
	defer open.Close()
	harness.Must(t, os.Mkdir(filepath.Join(dir, "spoiled"), 0o700))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "spoiled", "turngate.json"), []byte(`{"v":1}`), 0o600))
	s := folderOf(t, dir)
	c := s.browser(t)

	list := ask[struct {
		Jobs    []console.JobInfo
		Trouble string
	}](t, s, c, "/api/jobs")
	states := map[string]string{}
	for _, j := range list.Jobs {
		states[j.Job] = fmt.Sprint(j.State, j.Ended, j.Trials, strings.Contains(j.Trouble, "variants: "))
	}
	if fmt.Sprint(states) != "map[first:ended48 48 false open:running0 2 false spoiled:0 0 true]" {
		t.Errorf("got %v", states)
	}
	first := ask[console.JobPage](t, s, c, "/api/job?job=first")
	plan, results, err := jobs.Read(filepath.Join(dir, "first"))
	harness.Must(t, err)
	report := compare.NewReport(&plan, results)
	for i, want := range report.Variants {
		if got := first.Variants[i]; got.Variant != want.Variant || *got.Mean != *want.Mean || *got.Interval != *want.Interval || *got.CostUSD != *want.CostUSD || got.Seconds != want.Seconds || fmt.Sprint(got.PassAt) != fmt.Sprint(want.PassAt) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if len(first.Tasks) != 3 || len(first.Tasks[2].Variants) != 4 || first.Tasks[0].Variants[3].Group == "" || len(first.Errors) != 1 || first.Errors[0].Count != 4 {
		t.Errorf("got %+v", first)
	}
	if page := ask[console.JobPage](t, s, c, "/api/job?job=open"); len(page.Retries) != 1 || page.Trials-page.Ended != 2 || page.Mean != nil {
		t.Errorf("got %+v", page)
	}
	// A result that is new counts.
	reward := 1.0
	harness.Must(t, open.Put(t.Context(), schema.Result{V: schema.Version, ID: open.Plan.Trials[0].Rollout, Trainer: "local", Status: schema.StatusDone, Reward: &reward}, nil))
	harness.Must(t, open.WriteResult(true))
	if page := ask[console.JobPage](t, s, c, "/api/job?job=open"); page.Ended != 1 || *page.Mean != 1 {
		t.Errorf("got %+v", page)
	}
	both := ask[console.Comparison](t, s, c, "/api/compare?a=first&b=open")
	if both.Counts[compare.OnlyA] != 12 || both.Counts[compare.OnlyB] != 1 || len(both.Tasks) != 13 || len(both.Tasks[0].A.Rollouts) != 4 || both.Tasks[0].B != nil {
		t.Errorf("got %+v", both)
	}
	for _, path := range []string{"/api/job?job=none", "/api/job?job=..", "/api/compare?a=first&b=../first", "/api/job?job=spoiled"} {
		if code, text := get(t, c, s.base+path, nil); code != http.StatusNotFound {
			t.Errorf("%s: got %d %.100s", path, code, text)
		}
	}
	system := serve(t)
	c = system.browser(t)
	for _, path := range []string{"/api/jobs", "/api/job?job=first", "/api/compare?a=first&b=first"} {
		if code, text := get(t, c, system.base+path, nil); code != http.StatusNotFound || !strings.HasPrefix(text, "a running system keeps no jobs") {
			t.Errorf("%s: got %d %.100s", path, code, text)
		}
	}
}

// The pages about jobs are opened and used by keyboard, and fit a phone.
func TestPagesOfJobs(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	dir := t.TempDir()
	matrixJob(t, filepath.Join(dir, "first"), false).Close() // a process that has it runs it
	matrixJob(t, filepath.Join(dir, "second"), true).Close()
	s := folderOf(t, dir)
	link := <-s.links
	page.Do(chromedp.Navigate(link))
	page.Shows(`document.querySelector('.tabs .count')?.textContent === '96'`)
	safe := func(what string) {
		t.Helper()
		page.Shows(`document.title.endsWith(' · turngate') && document.querySelectorAll('main img, main script').length === 0 && !document.body.textContent.includes('\u202e') && document.documentElement.scrollWidth <= innerWidth`)
		page.Picture(what)
		page.Do(chromedp.EmulateViewport(390, 800))
		page.Shows(`innerWidth === 390 && document.documentElement.scrollWidth <= innerWidth`)
		page.Picture(what + "-narrow")
		page.Do(chromedp.EmulateViewport(1280, 800))
	}

	// The group of the selected rollout.
	page.Do(chromedp.SendKeys(`#text`, "first"), chromedp.SendKeys(`input[name=task]`, "<img"), chromedp.Focus(`.table`), chromedp.KeyEvent("jg"))
	page.Shows(`location.pathname === '/group' && document.querySelectorAll('.grid tbody tr').length === 4`)
	page.Shows(`[...document.querySelectorAll('.grid .advantage')].map((e) => e.textContent).join(' ') === '+0.707 +0.707 -1.414 '`)
	page.Shows(`document.querySelectorAll('.plot .bin').length === 2 && document.querySelector('.use-mask').textContent === 'mask: the agent did not end in time'`)
	page.Shows(`document.querySelector('h1').textContent.startsWith('<img')`)
	safe("group")
	page.Do(chromedp.Click(`.grid tbody a`))
	page.Shows(`location.pathname.startsWith('/rollout/local-')`)
	page.Do(chromedp.Click(`.facts a`))
	page.Shows(`location.pathname === '/group'`)
	page.Do(chromedp.KeyEvent(kb.Escape))
	page.Shows(`location.pathname === '/' && location.search === '?text=first&task=%3Cimg'`)

	// The list of jobs, and one job.
	page.Do(chromedp.Click(`.places a[href="/jobs"]`))
	page.Shows(`[...document.querySelectorAll('.grid tbody tr')].map((e) => e.cells[0].textContent + ' ' + e.cells[1].textContent).join(', ') === 'second ended, first ended'`)
	safe("jobs")
	page.Do(chromedp.Click(`.grid a[href="/job?job=first"]`))
	page.Shows(`document.querySelector('[aria-label="Agents and models"] tbody').rows.length === 4`)
	page.Shows(`[...document.querySelector('[aria-label="Agents and models"] tbody').rows[0].cells].map((e) => e.textContent).join('|') === 'mini|base|12 of 12|0.5455|0.2801 to 0.7873|pass@1 0.5556, pass@2 0.8889, pass@4 1pass@1 0.5556 … pass@4 1|36|36.0k + 3000|$3.00|18.0 s|1'`)
	page.Shows(`document.querySelectorAll('.curve').length === 4 && document.querySelector('.curve').getAttribute('aria-label') === 'pass@1 0.5556, pass@2 0.8889, pass@4 1' && document.querySelector('.curve polyline').getAttribute('points').split(' ').length === 3`)
	page.Shows(`[...document.querySelectorAll('[aria-label="Rewards"] .bin text')].map((e) => e.textContent).join() === '20,24' && document.querySelector('[aria-label="Rewards"] .about').textContent === '4 without a known reward'`)
	page.Shows(`[...document.querySelectorAll('[aria-label="Tokens and time by task"] tbody tr')].map((e) => e.cells[1].textContent + ' ' + e.cells[2].textContent).join() === '3250 1.5 s,3250 1.5 s,3250 1.5 s' && [...document.querySelectorAll('.measure .bar')].every((e) => e.style.width === '100%')`)
	page.Shows(`document.querySelectorAll('.plot .best').length === 2 && document.querySelectorAll('.plot .point').length === 4`)
	page.Shows(`[...document.querySelectorAll('[aria-label="Faults"] .grid tbody th')].map((e) => e.textContent).join() === 'timeout'`)
	safe("job")
	page.Do(chromedp.Focus(`[aria-label="Tasks"] tbody a`), chromedp.KeyEvent(kb.Enter))
	page.Shows(`location.pathname === '/group' && document.querySelectorAll('.grid tbody tr').length === 4`)

	// The comparison: the flips are first, with the rollouts of both sides.
	page.Do(chromedp.Click(`.places a[href="/jobs"]`), chromedp.Click(`.compare button`))
	page.Shows(`location.search === '?a=first&b=second' && document.querySelectorAll('[aria-label=Tasks] tbody tr').length === 6`)
	page.Shows(`[...document.querySelectorAll('main p')].some((e) => e.textContent.startsWith('6 better, 6 same'))`)
	page.Shows(`document.querySelector('[aria-label=Tasks] tbody tr').cells[1].textContent === 'better' && document.querySelectorAll('[aria-label=Tasks] tbody tr:first-child .side:last-child a').length === 4`)
	page.Shows(`[...document.querySelectorAll('[aria-label="Side by side"] tbody tr')].map((e) => e.textContent).join() === 'Mean reward0.54550.7727,Cost$18.00$18.00,Tokens156k156k,Time1 m 12 s1 m 12 s,Ended4848,Faults44'`)
	page.Shows(`[...document.querySelector('[aria-label="Side by side"] tbody tr').querySelectorAll('.bar')].map((e) => parseInt(e.style.width)).join() === '70,100' && document.querySelectorAll('.pair .plot').length === 2`)
	safe("compare")
	page.Do(chromedp.Click(`[aria-pressed="false"]`))
	page.Shows(`document.querySelectorAll('[aria-label=Tasks] tbody tr').length === 12`)
	page.Do(chromedp.Click(`.side a`))
	page.Shows(`location.pathname.startsWith('/rollout/local-')`)
}
