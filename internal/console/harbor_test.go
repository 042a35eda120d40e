package console_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/browser"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// withHarbor makes a folder with a job of Harbor and one of turngate, of which the task
// hello fails.
func withHarbor(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	harness.Must(t, os.CopyFS(filepath.Join(dir, "mixed"), os.DirFS("../../jobs/testdata/harbor/mixed")))
	p := jobs.Plan{Variants: jobs.Variants([]string{"oracle"}, nil), Attempts: 1}
	harness.Must(t, p.AddTask("local", jobs.Task{Dir: "/tasks/hello", Name: "hello"}))
	j, err := jobs.Create(filepath.Join(dir, "own"), p)
	harness.Must(t, err)
	defer j.Close()
	reward := 0.0
	harness.Must(t, j.Put(t.Context(), schema.Result{V: schema.Version, ID: p.Trials[0].Rollout, Trainer: "local", Task: "hello", Status: schema.StatusDone, Reward: &reward}, nil))
	return dir
}

// A job of Harbor has the pages of a job of turngate, and is compared with one.
func TestAJobOfHarbor(t *testing.T) {
	s := folderOf(t, withHarbor(t))
	c := s.browser(t)
	page := ask[console.JobPage](t, s, c, "/api/job?job=mixed")
	if page.State != "ended" || page.Ended != 8 || len(page.Variants) != 2 || len(page.Tasks) != 2 || page.Tasks[0].Variants[1].Group == "" || *page.Variants[1].Interval == [2]float64{} {
		t.Errorf("got %+v", page)
	}
	both := ask[console.Comparison](t, s, c, "/api/compare?a=own&b=mixed")
	if len(both.Tasks) != 4 || both.Tasks[0].Task != "hello [oracle]" || both.Tasks[0].Kind != compare.Better || len(both.Tasks[0].B.Rollouts) != 2 {
		t.Errorf("got %+v", both)
	}
	var id string
	for _, task := range both.Tasks {
		if task.Task == "hello [scripted acme/m-1]" {
			for _, r := range task.B.Rollouts {
				if r.Fault == "" {
					id = r.ID
				}
			}
		}
	}
	d := ask[console.Detail](t, s, c, "/api/rollouts/"+id)
	if len(d.Calls) != 3 || len(d.Rows) != 1 || d.Rows[0].Trained != 5 || len(d.Phases) != 4 || !near(d.Reward, 1) || d.Trainer != "harbor" || d.Missing != "" ||
		!slices.Contains(d.Files, "artifacts/logs/artifacts/hello.txt") || slices.ContainsFunc(d.Commands, func(c string) bool { return strings.Contains(c, "replay") }) {
		t.Errorf("got %+v", d)
	}
	if first := d.Calls[0]; len(first.New) != 2 || first.Answer.Reasoning != "I look first." || len(first.Answer.Tools) != 1 || d.Calls[1].New[1].For != "t0" || d.Calls[1].Wait != 0 {
		t.Errorf("got %+v", first)
	}
}

// A trial of Harbor is shown with the fault while its result is being written, and then with
// its result.
func TestAResultOfHarborThatIsWritten(t *testing.T) {
	dir := withHarbor(t)
	at := filepath.Join(dir, "mixed", "hello__5eLtK5T", "result.json")
	whole, err := os.ReadFile(at)
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(at, whole[:100], 0o600))
	s := folderOf(t, filepath.Join(dir, "mixed"))
	events, stop := s.feed(t, s.browser(t), "/api/rollouts", "")
	defer stop()
	until := func(fault string) {
		t.Helper()
		for e := range events {
			if e.name != "rows" {
				continue
			}
			for _, r := range rows(t, e) {
				if r.Trial == "hello__5eLtK5T" && r.Fault == fault {
					return
				}
			}
		}
		t.Errorf("no row with the fault %q", fault)
	}
	until(schema.CodeUnreadable)
	harness.Must(t, os.WriteFile(at, whole, 0o600))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "mixed", "result.json"), []byte(`{"finished_at":null}`), 0o600))
	until("")
}

// The pages of a job of Harbor, in a browser.
func TestPagesOfAJobOfHarbor(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	s := folderOf(t, withHarbor(t))
	page.Do(chromedp.Navigate(<-s.links))
	page.Shows(`document.querySelector('.tabs .count')?.textContent === '9'`)
	page.Do(chromedp.Click(`.places a[href="/jobs"]`))
	page.Shows(`[...document.querySelectorAll('.grid tbody tr')].map((e) => e.cells[0].textContent + ' ' + e.cells[1].textContent).includes('mixed ended')`)
	page.Do(chromedp.Click(`.grid a[href="/job?job=mixed"]`))
	page.Shows(`document.querySelector('[aria-label="Agents and models"] tbody').rows.length === 2 && document.querySelector('[aria-label="Agents and models"] tbody').textContent.includes('acme/m-1')`)
	page.Shows(`[...document.querySelectorAll('[aria-label="Faults"] .grid tbody th')].map((e) => e.textContent).join() === 'FileNotFoundError,timeout'`)
	page.Picture("harbor-job")
	page.Do(chromedp.Click(`[aria-label="Tasks"] tbody tr:first-child td:last-child a`))
	page.Shows(`location.pathname === '/group' && document.querySelectorAll('.grid tbody tr').length === 2`)
	page.Do(chromedp.Evaluate(`[...document.querySelectorAll('.grid tbody tr')].find((r) => r.textContent.includes('done')).querySelector('a').click()`, nil))
	page.Shows(`location.pathname.startsWith('/rollout/harbor-') && document.querySelectorAll('.call').length === 3 && document.querySelector('h1 .reward').textContent === 'reward 1'`)
	page.Shows(`[...document.querySelectorAll('.message')].some((e) => e.textContent.includes('I look first.')) && !document.body.textContent.includes('answered in') && document.documentElement.scrollWidth <= innerWidth`)
	page.Picture("harbor-rollout")
	page.Do(chromedp.Click(`.places a[href="/jobs"]`))
	page.Shows(`document.querySelector('.compare button') !== null`)
	page.Do(chromedp.Click(`.compare button`))
	page.Shows(`document.querySelector('[aria-label=Tasks] tbody tr th')?.textContent.startsWith('hello [oracle]')`)
	page.Picture("harbor-compare")
}
