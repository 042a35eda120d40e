package console_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// secrets are texts that a shared file must not have.
func secrets() []string {
	return []string{
		"sk-" + strings.Repeat("aB3", 10), "ghp_" + strings.Repeat("c4D", 12), "AKIA" + strings.Repeat("Q", 16), "hf_" + strings.Repeat("e5F", 10), "xoxb-1234567890-abc",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "SU" + strings.Repeat("A", 56), "b64encodedprivatekey", "Zm9vYmFyOmJhejEyMzQ1Ng==", "hunter2hunter2", "pa55word-of-a-user", "only-in-the-environment",
	}
}

// spoken is a conversation that quotes them.
func spoken() string {
	s := secrets()
	return strings.Join(s[:7], " ") + "\n-----BEGIN RSA PRIVATE KEY-----\n" + s[7] + "\n-----END RSA PRIVATE KEY-----\nAuthorization: Basic " + s[8] + "\nDB_PASSWORD=\"" + s[9] + "\"\nhttps://me:" + s[10] + "@host/ " + s[11] + " max_tokens=20000000 " + hostile
}

// sharedJob writes the file of a job. The first rollout of each group has no secret.
func sharedJob(t *testing.T, limit int64) (file string, shared *console.Shared, job *jobs.Job) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "first")
	job = matrixJob(t, dir, false)
	job.Close()
	for _, trial := range job.Plan.Trials {
		at := filepath.Join(dir, trial.Name, "agent")
		harness.Must(t, os.MkdirAll(at, 0o700))
		text := hostile
		if trial.Index > 0 {
			text = spoken()
		}
		harness.Must(t, os.WriteFile(filepath.Join(at, "transcript.jsonl.zst"), transcript(t, text), 0o600))
	}
	var out bytes.Buffer
	share := console.Share{Dir: dir, MaxBytes: limit, Variables: []string{"MY_API_KEY=" + secrets()[11], "HOME=" + dir}}
	shared, err := share.Write(t.Context(), &out)
	harness.Must(t, err)
	if int64(out.Len()) != shared.Bytes || shared.Bytes > limit {
		t.Errorf("it has %d bytes, and tells of %d", out.Len(), shared.Bytes)
	}
	file = filepath.Join(t.TempDir(), "first.html")
	harness.Must(t, os.WriteFile(file, out.Bytes(), 0o600))
	return file, shared, job
}

var sharedPart = regexp.MustCompile(`<script type="application/octet-stream" data-path="([^"]*)">([A-Za-z0-9+/=]*)</script>`)

// parts reads the answers that a shared file has.
func parts(t *testing.T, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(file)
	harness.Must(t, err)
	if n := bytes.Count(data, []byte("<!--")); n > 0 || bytes.Contains(data, []byte("<img")) || !bytes.HasSuffix(data, []byte("</html>\n")) {
		t.Errorf("the page is not safe")
	}
	out := map[string]string{}
	for _, m := range sharedPart.FindAllStringSubmatch(string(data), -1) {
		packed, err := base64.StdEncoding.DecodeString(m[2])
		harness.Must(t, err)
		z, err := gzip.NewReader(bytes.NewReader(packed))
		harness.Must(t, err)
		text, err := io.ReadAll(z)
		harness.Must(t, err)
		out[html.UnescapeString(m[1])] = string(text)
	}
	return out
}

func TestASharedFileHasNoSecrets(t *testing.T) {
	file, shared, job := sharedJob(t, 64<<20)
	all := parts(t, file)
	if shared.Rollouts != 48 || shared.Left != 0 || shared.Tokens != 0 || shared.Hidden != 36*2 || len(all) != 3+12+48*2+12*2 {
		t.Errorf("got %+v, %d parts", shared, len(all))
	}
	for path, text := range all {
		for _, secret := range secrets() {
			if strings.Contains(text, secret) {
				t.Fatalf("%s has %s", path, secret)
			}
		}
		if strings.ContainsAny(text, "\x1b\u202e") || strings.Contains(text, filepath.Dir(job.Dir)) || strings.Contains(text, "/tasks/") || strings.Contains(text, "worker-of-a-host") {
			t.Errorf("%s: got %.300s", path, text)
		}
	}
	masked := job.Plan.Trials[slices.IndexFunc(job.Plan.Trials, func(t jobs.Trial) bool { return t.Index > 0 })].Rollout
	one := all["api\nrollouts\n"+string(masked)]
	if !strings.Contains(one, "[masked]") || !strings.Contains(one, "max_tokens=20000000") || !strings.Contains(one, `"files":[]`) || !strings.Contains(one, `"commands":[]`) {
		t.Errorf("got %.1000s", one)
	}
	if _, there := all["api\nrollouts\n"+string(masked)+"\nrows\n0"]; there {
		t.Error("the tokens of a masked text are in the file")
	}
	if !strings.Contains(all["api\njob\njob=first"], `"state":"ended"`) {
		t.Errorf("got %.300s", all["api\njob\njob=first"])
	}
	if len(shared.Masked) != 10 {
		t.Errorf("got %v", shared.Masked)
	}
}

// TestASharedFileHasNoPathOfTheHost in its texts of errors: of a job that stopped, of a rollout
// whose files cannot be read, of a fault.
func TestASharedFileHasNoPathOfTheHost(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, "first")
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Backend: "local", Attempts: 2, Parallel: 1, Flags: map[string][]string{"trainer": {"replay:" + home + "/answers.yaml"}}}
	harness.Must(t, p.AddTask("local", jobs.Task{Name: "hello", Dir: filepath.Join(home, "tasks", "hello"), Digest: strings.Repeat("a", 64)}))
	j, err := jobs.Create(dir, p)
	harness.Must(t, err)
	trials := j.Missing()
	r := schema.Result{V: schema.Version, ID: trials[0].Rollout, Trainer: "local", Group: trials[0].Group, Task: "hello", Status: schema.StatusFailed, Fault: schema.Faultf("load", schema.CodeInvalid, schema.WhoTask, "task %s/tasks/hello: %s/answers.yaml is gone", home, home)}
	harness.Must(t, j.Put(t.Context(), r, nil))
	harness.Must(t, os.MkdirAll(filepath.Join(dir, trials[0].Name, "agent", "transcript.jsonl.zst"), 0o700))
	harness.Must(t, j.SetStopped(fmt.Errorf("write %s/result.json: no space left", dir)))
	j.Close()
	var out bytes.Buffer
	share := console.Share{Dir: dir, MaxBytes: 64 << 20}
	_, err = share.Write(t.Context(), &out)
	harness.Must(t, err)
	file := filepath.Join(t.TempDir(), "first.html")
	harness.Must(t, os.WriteFile(file, out.Bytes(), 0o600))
	whole := ""
	for path, text := range parts(t, file) {
		if whole += text; strings.Contains(text, home) {
			t.Errorf("%s: got %s", path, text)
		}
	}
	for _, want := range []string{"write first/result.json: no space left", "task hello: answers.yaml is gone", "is a folder"} {
		if !strings.Contains(whole, want) {
			t.Errorf("no %q", want)
		}
	}
}

func TestASharedFileIsBounded(t *testing.T) {
	_, _, job := sharedJob(t, 64<<20)
	for _, trial := range job.Plan.Trials { // all have tokens
		harness.Must(t, os.WriteFile(filepath.Join(job.Dir, trial.Name, "agent/transcript.jsonl.zst"), transcript(t, "text"), 0o600))
	}
	var out bytes.Buffer
	share := console.Share{Dir: job.Dir, MaxBytes: 64 << 20}
	whole, err := share.Write(t.Context(), &out)
	harness.Must(t, err)
	table := bytes.Index(out.Bytes(), []byte("data-path=\"api\nrollouts\nlocal-")) // the rollouts follow the table
	limit := (int64(table) + whole.Bytes) / 2
	share.MaxBytes = limit
	out.Reset()
	shared, err := share.Write(t.Context(), &out)
	harness.Must(t, err)
	if int64(out.Len()) > limit || shared.Left == 0 || shared.Rollouts == 0 || shared.Rollouts+shared.Left != 48 || !strings.HasSuffix(out.String(), "</html>\n") {
		t.Errorf("got %+v of %+v", shared, whole)
	}
	share.MaxBytes = whole.Bytes - 1
	if shared, err := share.Write(t.Context(), io.Discard); err != nil || shared.Left != 0 || shared.Tokens != 1 {
		t.Errorf("without room for the last row of %+v: got %+v, %v", whole, shared, err)
	}
	share.MaxBytes = int64(table) - 100
	if _, err := share.Write(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "--max-mb") {
		t.Errorf("got %v", err)
	}
}

// A shared file opens from the disk, with the pages of the console.
func TestASharedFileOpensFromTheDisk(t *testing.T) {
	file, _, _ := sharedJob(t, 64<<20)
	page := browser.Open(t, 1280, 800)
	page.Do(chromedp.Navigate("file://" + file))
	page.Shows(`document.querySelector('.link.shared') !== null && document.querySelector('h1')?.textContent.startsWith('first')`)
	page.Shows(`document.querySelector('[aria-label="Agents and models"] tbody').rows.length === 4`)
	page.Shows(`document.querySelectorAll('.curve').length === 4 && document.querySelectorAll('[aria-label="Rewards"] .bin').length === 2 && document.querySelectorAll('.measure').length === 6`)
	page.Picture("shared")
	page.Do(chromedp.Focus(`[aria-label="Tasks"] tbody tr:last-child a`), chromedp.KeyEvent(kb.Enter))
	page.Shows(`location.hash.startsWith('#/group?trainer=local&group=') && document.querySelectorAll('.grid tbody tr').length === 4`)
	page.Shows(`document.querySelectorAll('.grid tbody td:nth-child(8)')[3].textContent === 'policy-7'`)
	page.Do(chromedp.Click(`.grid tbody a`))
	page.Shows(`location.hash.startsWith('#/rollout/local-') && document.querySelectorAll('.call').length === 2`)
	var at []float64
	page.Do(chromedp.Evaluate(`(() => { const b = document.querySelector('.rows button'); b.scrollIntoView(); const r = b.getBoundingClientRect(); return [r.x + 5, r.y + 5] })()`, &at))
	page.Do(chromedp.MouseClickXY(at[0], at[1]))
	page.Shows(`document.querySelectorAll('.tokens .token').length === 5`)
	page.Shows(`document.querySelector('.command') === null && document.querySelector('.files') === null`)
	page.Do(chromedp.Reload())
	page.Shows(`document.querySelectorAll('.call').length === 2`)
	page.Do(chromedp.KeyEvent(kb.Escape))
	page.Shows(`document.querySelector('.tabs .count')?.textContent === '48'`)
	page.Do(chromedp.SendKeys(`input[name=agent], select[name=agent]`, "pi"))
	page.Shows(`location.hash === '#/?agent=pi' && document.querySelector('.tabs .count').textContent === '24'`)
	page.Do(chromedp.EmulateViewport(390, 800))
	page.Shows(`document.documentElement.scrollWidth <= innerWidth && document.title.endsWith(' · turngate') && document.querySelectorAll('main img, main script').length === 0`)
}
