package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/browser"
)

// A newcomer runs the first command of the README, and then a rollout from the page, and
// answers its calls as the model: with the form of the agent's tool, and with text. A reload
// keeps the open call. The times are printed.
func TestAPersonAnswersFromThePage(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	page := browser.Open(t, 1280, 800)
	root, begin := testenv.Root(t), time.Now()
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	harness.Must(t, err)
	_, block, _ := strings.Cut(string(readme), "```sh\n")
	first, _, _ := strings.Cut(block, "\n")
	rest, ok := strings.CutPrefix(first, "go run ./cmd/turngate run ")
	if !ok || !strings.Contains(string(readme), "`turngate up --open`") {
		t.Fatalf("the first command of the README is %q, and `turngate up --open` is to follow", first)
	}
	run := start(t, testenv.Binary(t), "run", "--runs", t.TempDir(), filepath.Join(root, rest))
	if code := run.wait(t, 5*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, run.err)
	}
	ran := time.Since(begin)
	up := start(t, testenv.Binary(t), "up", "--state", t.TempDir(), "--port", "0", "--sandboxes", "local", "--console", "127.0.0.1:0", "--context", "")
	harness.Eventually(t, "a server that is up", 5*time.Minute, func() bool {
		return strings.Contains(up.err.String(), "are ready") && consoleURL.MatchString(up.err.String())
	})
	link := consoleURL.FindStringSubmatch(up.err.String())[1]
	page.Do(chromedp.Navigate(link))
	page.Shows(`document.querySelector('.places a[href="/new"]') !== null`)
	page.Shows(`document.querySelector('.empty a[href="/new"]')?.textContent === 'Run a rollout'`)
	page.Do(chromedp.Click(`.places a[href="/new"]`))
	page.Shows(`document.querySelector('select[name=agent]')?.value === 'mini' && document.querySelector('select[name=sandbox]').value === 'local'`)
	narrow := func(name string) {
		t.Helper()
		page.Picture(name)
		page.Do(chromedp.EmulateViewport(390, 800))
		page.Shows(`innerWidth === 390 && document.documentElement.scrollWidth <= innerWidth`)
		page.Picture(name + "-narrow")
		page.Do(chromedp.EmulateViewport(1280, 800))
		page.Shows(`innerWidth === 1280`)
	}
	narrow("new")
	page.Do(chromedp.Click(`.ask button[type=submit]`))
	page.Shows(`document.querySelector('.answer select[name=tool]')?.selectedOptions[0].textContent === 'bash'`)
	page.Shows(`[...document.querySelectorAll('.message.user pre')].some((e) => e.textContent.includes('hello.txt'))`)
	seen := time.Since(begin)
	page.Do(chromedp.Reload())
	page.Shows(`document.querySelectorAll('.answer').length === 1 && document.querySelector('.state').textContent.includes('Call 1')`)

	const script = `<script>document.title='owned'</script>`
	page.Do(chromedp.SendKeys(`.answer [name=text]`, script), chromedp.SendKeys(`.answer [data-field=command]`, "echo 'Hello, world!' > hello.txt"))
	narrow("answer")
	page.Do(chromedp.Click(`.answer button[name=call]`))
	page.Shows(`document.querySelector('.answer')?.getAttribute('aria-label') === 'Answer to call 2'`)
	page.Shows(`[...document.querySelectorAll('.message.assistant .use pre')].some((e) => e.textContent.startsWith("echo 'Hello")) && document.title.endsWith(' · turngate')`)
	t.Logf("from the first command of the README: its end after %v, a running rollout in the browser after %v, its first call answered after %v", ran, seen, time.Since(begin))

	// A write needs the token of the session and the origin of the page.
	for _, headers := range []string{`{}`, `{'Turngate-Token': 'x'}`} {
		page.Shows(fmt.Sprintf(`(() => {
			const q = new XMLHttpRequest()
			q.open('POST', '/api/new', false)
			for (const [k, v] of Object.entries(%s)) q.setRequestHeader(k, v)
			q.send('{}')
			return q.status === %d
		})()`, headers, http.StatusForbidden))
	}

	page.Do(chromedp.SendKeys(`.answer [name=text]`, "Done."), chromedp.Click(`.answer button[name=say]`))
	page.Shows(`document.querySelector('h1 .reward')?.textContent === 'reward 1' && document.querySelector('.answer') === null`)
	page.Picture("played")
}
