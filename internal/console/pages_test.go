package console_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

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
	t.Cleanup(j.Close)
	for i, trial := range j.Plan.Trials {
		cost, reward := 0.25, 0.0
		if trial.Agent == "pi" {
			cost = 0.5
		}
		if trial.Index < 2 || trial.Agent == "pi" && better {
			reward = 1
		}
		r := schema.Result{
			V: schema.Version, ID: trial.Rollout, Trainer: "local", Group: trial.Group, Index: trial.Index, Task: trial.Task, Agent: trial.Agent, Status: schema.StatusDone, Reward: &reward,
			Phases: []schema.Phase{{Name: "agent", Start: 1_700_000_000_000 + int64(i)*1000, MS: 1500}},
			Calls:  schema.SortedMap[schema.CallStats]{"agent": {Count: 3, PromptTokens: 3000, CompletionTokens: int64(100 * (1 + trial.Index)), CostUSD: &cost}},
		}
		if trial.Index == 3 && trial.Task == hostile {
			r.Reward, r.Fault = nil, &schema.Fault{Stage: "agent", Code: schema.CodeTimeout, Message: hostile, Who: schema.WhoAgent}
		}
		harness.Must(t, j.Put(t.Context(), r, nil))
	}
	harness.Must(t, j.Tell(true))
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

// The pages about jobs are opened and used by keyboard, and fit a phone.
func TestPagesOfJobs(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	dir := t.TempDir()
	matrixJob(t, filepath.Join(dir, "first"), false)
	s := folderOf(t, dir)
	link := <-s.links
	page.Do(chromedp.Navigate(link))
	page.Shows(`document.querySelector('.tabs .count')?.textContent === '48'`)
	safe := func(what string) {
		t.Helper()
		page.Shows(`document.title === 'turngate' && document.querySelectorAll('main img, main script').length === 0 && !document.body.textContent.includes('\u202e') && document.documentElement.scrollWidth <= innerWidth`)
		page.Picture(what)
		page.Do(chromedp.EmulateViewport(390, 800))
		page.Shows(`innerWidth === 390 && document.documentElement.scrollWidth <= innerWidth`)
		page.Picture(what + "-narrow")
		page.Do(chromedp.EmulateViewport(1280, 800))
	}

	// The group of the selected rollout.
	page.Do(chromedp.SendKeys(`input[name=task]`, "<img"), chromedp.Focus(`.table`), chromedp.KeyEvent("jg"))
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
	page.Shows(`location.pathname === '/' && location.search === '?task=%3Cimg'`)
}
