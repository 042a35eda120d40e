package e2e_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/browser"
	"github.com/turngate/turngate/subjects"
)

// An operator sees workers, queues and trainers, ends a selection of rollouts, submits
// one again, requeues a dead request, and sees all of it again after the server restarts.
func TestConsoleOfAnOperator(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	page := browser.Open(t, 1280, 800)
	binary, state, port := testenv.Binary(t), t.TempDir(), testenv.FreePort(t)
	up := func() *process {
		p := start(t, binary, "up", "--state", state, "--port", strconv.Itoa(port), "--sandboxes", "local", "--slots", "1", "--grace", "1s", "--console", "off")
		harness.Eventually(t, "a server that is up", 5*time.Minute, func() bool {
			return strings.Contains(p.err.String(), "are ready") && strings.Contains(p.out.String(), "turngate trainer add")
		})
		return p
	}
	server := up()
	url := fmt.Sprintf("nats://127.0.0.1:%d", port)
	creds := func(name string) string { return filepath.Join(state, "creds", name) }
	page.Do(chromedp.Navigate(console(t, "--nats", url, "--creds", creds("admin.nk"))))
	page.Shows(`document.querySelector('.rolename')?.textContent === 'operator'`)

	open := func(name string) { page.Do(chromedp.Click(`//nav[@class="places"]/a[text()="` + name + `"]`)) }
	narrow := func(name string) { // a phone shows the page without a second way to scroll
		t.Helper()
		page.Picture(name)
		page.Do(chromedp.EmulateViewport(390, 800))
		page.Shows(`innerWidth === 390 && document.documentElement.scrollWidth <= innerWidth`)
		page.Picture(name + "-narrow")
		page.Do(chromedp.EmulateViewport(1280, 800))
		page.Shows(`innerWidth === 1280`)
	}
	trainer := testenv.Raw(t, url, creds("trainer-local.nk"), "_INBOX.trainer.local")
	_, err := trainer.Request(subjects.TrainerOpen("local"), nil, time.Minute)
	harness.Must(t, err)
	harness.Must(t, trainer.Publish(subjects.Request(2, "local"), []byte(`<img src=x onerror="document.title='owned'">`)))
	harness.Must(t, trainer.Flush())

	open("Queue")
	page.Shows(`document.querySelector('.letter[data-seq="1"]') !== null`)
	page.Do(chromedp.Click(`.letter .open`))
	page.Shows(`document.querySelector('.letterbody pre')?.textContent.startsWith('<img src=x') && document.querySelectorAll('main img').length === 0 && document.title.endsWith(' · turngate')`)
	// A dead request that is requeued cannot be read again, so it comes back.
	page.Do(chromedp.Click(`.letter input[type=checkbox]`), chromedp.Click(`.requeue`))
	page.Shows(`document.querySelector('dialog[open]')?.textContent.startsWith('Put 1 dead request back')`)
	page.Do(chromedp.Click(`.confirm .yes`))
	page.Shows(`document.querySelector('.outcome')?.textContent.startsWith('Requeued 1 dead request') && document.querySelector('.letter[data-seq="2"]') !== null && document.querySelector('.letter[data-seq="1"]') === null`)

	// An engine that never answers keeps one rollout running, and the other waiting.
	answers, over := helloEngine(t), make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			<-over
		}
		answers.ServeHTTP(w, r)
	}))
	defer engine.Close()
	defer close(over)
	run := start(t, binary, "run", "--nats", url, "--creds", creds("trainer-local.nk"), "--trainer", "upstream:"+engine.URL, "-n", "2", filepath.Join(testenv.Root(t), "examples/tasks/hello"))
	open("Rollouts")
	page.Shows(`document.querySelectorAll('.body .row[data-status="running"]').length === 1 && document.querySelectorAll('.body .row[data-status="queued"]').length === 1`)
	open("Workers")
	page.Shows(`document.querySelector('.worker .slots')?.textContent.includes('1 of 1 slot used, 0 free') && document.querySelector('.worker .facts').textContent.includes('local')`)
	page.Shows(`document.querySelectorAll('.worker .busy').length === 2 && document.querySelector('.worker').textContent.includes('by the worker itself')`)
	narrow("workers")
	open("Trainers")
	page.Shows(`document.querySelector('.trainer h2')?.textContent.startsWith('local') && document.querySelector('.trainer .grid tbody tr') !== null && document.querySelector('.trainer .facts').textContent.includes('of 1000000')`)
	narrow("trainers")
	open("Queue")
	page.Shows(`document.querySelector('.wide[aria-label="Lanes"] tbody tr')?.textContent.startsWith('localp21')`)
	narrow("queue")

	// After a restart of the server the page has its content again.
	server.stop(t)
	page.Shows(`document.querySelector('main .alert') !== null`)
	up()
	page.Shows(`document.querySelector('main .alert') === null && document.querySelector('.letter[data-seq="2"]') !== null`)
	open("Workers")
	page.Shows(`document.querySelector('.worker .slots') !== null`)

	// A selection is cancelled, also a rollout that waits.
	open("Rollouts")
	page.Shows(`document.querySelectorAll('.body .row[data-status="running"], .body .row[data-status="queued"]').length === 2`)
	page.Do(chromedp.Evaluate(`document.querySelectorAll('.body .pick input').forEach((box) => box.click())`, nil)) // at once: a row that begins to run has another place
	page.Shows(`document.querySelector('.actions .cancel')?.textContent.trim() === 'Cancel 2'`)
	page.Picture("rollouts-selected")
	page.Do(chromedp.Click(`.actions .cancel`))
	page.Shows(`document.querySelector('dialog[open] p')?.textContent === 'Cancel 2 rollouts?'`)
	page.Do(chromedp.Click(`.confirm .yes`))
	page.Shows(`document.querySelectorAll('.body .row[data-status="cancelled"]').length === 2`)
	if code := run.wait(t, 5*time.Minute); code != 1 {
		t.Errorf("exit status %d: %s", code, run.err)
	}

	// All that match the filters are submitted again, and cancelled.
	page.Do(chromedp.Click(`.actions .retry`))
	page.Shows(`document.querySelector('dialog[open] p')?.textContent === 'Retry 2 rollouts, all that match the filters?'`)
	page.Do(chromedp.Click(`.confirm .yes`))
	page.Shows(`document.querySelector('.outcome')?.textContent.startsWith('Submitted again 2 rollouts') && document.querySelectorAll('.body .row').length === 4`)

	// The page of a rollout that waits or runs cancels it, and then submits it again.
	page.Do(chromedp.Click(`.body .row:is([data-status="running"], [data-status="queued"]) .task a`, chromedp.ByQuery))
	page.Shows(`document.querySelector('main .actions .cancel') !== null`)
	page.Do(chromedp.Click(`main .actions .cancel`))
	page.Shows(`document.querySelector('dialog[open] p')?.textContent.startsWith('Cancel local-')`)
	page.Do(chromedp.Click(`.confirm .yes`))
	page.Shows(`document.querySelector('h1')?.dataset.status === 'cancelled' && document.querySelector('main .actions .retry') !== null && document.querySelector('main .actions .cancel') === null`)

	// A watcher gets the reason in place of the buttons.
	page.Do(chromedp.Navigate(console(t, "--nats", url, "--creds", creds("ops.nk"))))
	page.Shows(`document.querySelector('.rolename')?.textContent === 'viewer' && document.querySelector('.actions')?.textContent.includes('no right') && document.querySelector('.actions button, .pick') === null`)
}
