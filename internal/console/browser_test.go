package console_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/browser"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// ended returns a rollout with a result.
func ended(n int, change func(*schema.Result)) *recorded.Rollout {
	r := running(n)
	reward := float64(n%5) / 4
	r.Result = &schema.Result{
		ID: r.ID, Trainer: "alpha", Group: fmt.Sprintf("g%d", n/8), Index: n % 8, Task: fmt.Sprintf("task-%d", n%97), Agent: "mini", Worker: "w1", Status: schema.StatusDone, Reward: &reward,
		Phases: []schema.Phase{{Name: "agent", Start: 1_700_000_000_000 + int64(n)*1000, MS: 1500}},
		Calls:  schema.SortedMap[schema.CallStats]{"agent": {Count: 3, PromptTokens: 3000, CompletionTokens: 200}},
	}
	if change != nil {
		change(r.Result)
	}
	return r
}

// Names and messages of a hostile task stay text: no element, no other direction of the
// text around them.
func TestHostileTextIsOnlyText(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	s := serve(t)
	page.Do(chromedp.Navigate(<-s.links))
	const text = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>` + "\u202e\x1b[2J"
	s.show(ended(1, func(r *schema.Result) {
		r.Task, r.Agent, r.Group, r.Worker, r.Labels = text, text, text, text, map[string]string{text: text}
		r.Fault = &schema.Fault{Code: text, Message: strings.Repeat(text, 50_000)}
	}))
	s.trouble(fmt.Errorf("%s", text))
	page.Shows(`document.querySelector('.body .row .task')?.textContent.startsWith('<img')`)
	page.Shows(`document.querySelector('.alert')?.textContent.startsWith('<img')`)
	page.Shows(`document.title.endsWith(' · turngate') && document.querySelectorAll('main img, main script').length === 0 && !document.body.textContent.includes('\u202e') && document.documentElement.scrollWidth <= innerWidth`)
}

// A table of 100,000 rollouts is shown and scrolled; the times are printed.
func TestManyRollouts(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	page.Do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
	s := serve(t)
	link := <-s.links
	base, _, _ := strings.Cut(link, "?")
	page.Do(chromedp.Navigate(link))
	page.Shows(`document.querySelector('.link.live') !== null`)
	page.Do(chromedp.Navigate("about:blank"))
	const n = 100_000
	for i := range n {
		s.show(ended(i, nil))
	}
	begin := time.Now()
	page.Do(chromedp.Navigate(base))
	page.Shows(`document.querySelector('.body .row') !== null`)
	first := time.Since(begin)
	page.Shows(fmt.Sprintf(`document.querySelector('.tabs .count').textContent === '%d'`, n))
	all := time.Since(begin)
	page.Shows(`document.querySelector('.body .row .id').textContent === 'alpha-99999' && document.querySelectorAll('.body .row').length < 100`)

	var frames []float64
	page.Do(chromedp.Evaluate(`new Promise((done) => {
		const table = document.querySelector('.table'), times = []
		let last = performance.now(), n = 0
		const step = (now) => {
			times.push(now - last); last = now
			table.scrollTop += 3000
			if (++n < 120) requestAnimationFrame(step); else done(times)
		}
		requestAnimationFrame(step)
	})`, &frames, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	begin = time.Now()
	page.Do(chromedp.SendKeys(`input[name=task]`, "task-13"))
	page.Shows(`document.querySelector('.tabs .count').textContent === '1031'`)
	t.Logf("100,000 rollouts: the first rows after %v, all after %v, the slowest of %d frames of scrolling %.0f ms, filtered after %v", first, all, len(frames), slowest(frames), time.Since(begin))
	page.Picture("rollouts-dark")
}

func slowest(list []float64) (most float64) {
	for _, v := range list {
		most = max(most, v)
	}
	return most
}

// The page goes on after the connection to the console is lost, and says that it is.
func TestAPageWithAnEndedSession(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	s := serve(t)
	link := <-s.links
	base, _, _ := strings.Cut(link, "/?")
	page.Do(chromedp.Navigate(link))
	s.show(ended(1, nil))
	page.Shows(`document.querySelectorAll('.body .row').length === 1`)
	s.stop()
	page.Shows(`document.querySelector('.link.lost') !== null && document.querySelectorAll('.body .row').length === 1`)
	again := serveAt(t, strings.TrimPrefix(base, "http://"))
	harness.Eventually(t, "the end of the session", 5*time.Minute, func() bool { return strings.Contains(page.Text(), "The session has ended") })
	page.Do(chromedp.Navigate(<-again.links))
	page.Shows(`document.querySelector('.link.live') !== null`)
}

// A tab that is not seen has no connection, and goes on with the last event when it is
// seen again.
func TestAHiddenTabHasNoConnection(t *testing.T) {
	pg := browser.Open(t, 1280, 800)
	s := serve(t)
	pg.Do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(`
			window.sources = []
			window.EventSource = class extends EventSource { constructor(url) { super(url); window.sources.push(this) } }
			window.see = (state) => {
				Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => state })
				document.dispatchEvent(new Event('visibilitychange'))
			}`).Do(ctx)
		return err
	}))
	pg.Do(chromedp.Navigate(<-s.links))
	s.show(ended(1, nil))
	pg.Shows(`document.querySelectorAll('.body .row').length === 1`)
	pg.Do(chromedp.Evaluate(`see('hidden')`, nil))
	pg.Shows(`sources.length === 1 && sources[0].readyState === EventSource.CLOSED`)
	s.show(ended(2, nil))
	pg.Do(chromedp.Evaluate(`see('visible')`, nil))
	pg.Shows(`document.querySelectorAll('.body .row').length === 2 && /after=[A-Z0-9]+\.1$/.test(sources[1].url)`)
}

// The table keeps its filters while the page of a rollout is open, also over a reload
// of that page.
func TestEscapeKeepsTheFilters(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	s := serve(t)
	s.one = ended(1, nil)
	page.Do(chromedp.Navigate(<-s.links))
	s.show(ended(1, nil))
	s.show(ended(2, nil))
	page.Shows(`document.querySelectorAll('.body .row').length === 2`)
	page.Do(chromedp.SendKeys(`input[name=task]`, "task-1"))
	page.Shows(`document.querySelectorAll('.body .row').length === 1`)
	for _, reload := range []bool{false, true} {
		page.Do(chromedp.Click(`.body .row .task a`))
		page.Shows(`document.querySelector('h1')?.textContent.startsWith('task-1')`)
		if reload {
			page.Do(chromedp.Evaluate(`window.old = true`, nil), chromedp.Reload())
			page.Shows(`window.old === undefined && document.querySelector('h1')?.textContent.startsWith('task-1')`)
		}
		page.Do(chromedp.KeyEvent(kb.Escape))
		page.Shows(`location.search === '?task=task-1' && document.querySelectorAll('.body .row').length === 1`)
	}
}
