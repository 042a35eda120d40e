package console_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/browser"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// recording returns a rollout with a transcript.
func recording(t *testing.T, text string) *recorded.Rollout {
	t.Helper()
	return recordingOf(t, transcript(t, text))
}

func recordingOf(t *testing.T, transcript []byte) *recorded.Rollout {
	t.Helper()
	file := filepath.Join(t.TempDir(), "transcript.jsonl.zst")
	harness.Must(t, os.WriteFile(file, transcript, 0o600))
	list, err := recorded.Find("", file)
	harness.Must(t, err)
	list[0].ID = "alpha-1"
	return list[0]
}

// transcript has two calls, of which the second begins a new row.
func transcript(t *testing.T, text string) []byte {
	t.Helper()
	message := func(role, content string) json.RawMessage {
		data, err := json.Marshal(map[string]any{"role": role, "content": content, "reasoning_content": content})
		harness.Must(t, err)
		return data
	}
	tool, err := json.Marshal(map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{"id": text, "type": "function", "function": map[string]any{"name": text, "arguments": text}}, map[string]any{"id": "b", "type": "function", "function": map[string]any{"name": "bash", "arguments": `{"command":"a\u202eb"}`}}}})
	harness.Must(t, err)
	version := []schema.VersionSpan{{Version: "policy-7", Start: 0, End: 3}}
	reply := func(m json.RawMessage, prompt ...int32) *schema.Reply {
		return &schema.Reply{V: schema.Version, Message: m, FinishReason: "stop", PromptIDs: schema.PackTokenIDs(prompt), CompletionIDs: schema.PackTokenIDs([]int32{7, 8, 9}), Logprobs: schema.PackLogprobs([]float32{0, -1, -20}), Versions: version}
	}
	return pack(t, []schema.TranscriptLine{
		{At: 1000, Call: 1, Request: &schema.Call{Key: "alpha-1/1/1", Tag: schema.TagAgent, Messages: []json.RawMessage{message("system", text), message("user", text)}}},
		{At: 1500, Call: 1, Gen: "g1", MS: 500, Reply: reply(tool, 1, 2)},
		{At: 2000, Call: 2, Request: &schema.Call{Key: "alpha-1/1/2", Tag: schema.TagAgent, Messages: []json.RawMessage{message("user", "another")}}},
		{At: 2500, Call: 2, Gen: "g2", MS: 500, Reply: reply(message("assistant", text), 5, 6)},
	})
}

func pack(t *testing.T, transcript []schema.TranscriptLine) []byte {
	t.Helper()
	var lines bytes.Buffer
	for _, l := range transcript {
		data, err := json.Marshal(l)
		harness.Must(t, err)
		lines.Write(append(data, '\n'))
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	harness.Must(t, err)
	return z.EncodeAll(lines.Bytes(), nil)
}

const hostile = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>` + "\u202e\x1b[2J"

// The page of a rollout shows a hostile conversation as text, and the tokens of a row.
func TestAHostileConversationIsOnlyText(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	s := serve(t)
	s.one = recording(t, hostile+strings.Repeat("x", 5<<20))
	link := <-s.links
	base, _, _ := strings.Cut(link, "?")
	page.Do(chromedp.Navigate(link))
	page.Shows(`document.querySelector('.link.live') !== null`)
	page.Do(chromedp.Navigate(base + "rollout/alpha-1"))
	page.Shows(`document.querySelectorAll('.call').length === 2 && document.querySelector('.break').textContent.includes('call 2')`)
	page.Shows(`document.querySelector('.message.user pre').textContent.startsWith('<img') && document.querySelector('.use .role').textContent.startsWith('<img')`)
	page.Shows(`document.title.endsWith(' · turngate') && document.querySelectorAll('main img, main script').length === 0 && !document.body.textContent.includes('\u202e') && document.documentElement.scrollWidth <= innerWidth`)
	page.Do(chromedp.Click(`.rows button`))
	page.Shows(`[...document.querySelectorAll('.tokens .token')].map((e) => e.className + e.textContent).join(' ') === 'token mask01 token mask02 token lp07 token lp28 token lp99'`)
	page.Shows(`document.querySelector('.tokens .lp9').title === 'token 4, id 9: call 1, log-prob -20.0000, policy-7'`)
}

func TestTheTextsOfAPageAreBounded(t *testing.T) {
	s := serve(t)
	c := s.browser(t)
	s.one = recording(t, hostile+strings.Repeat("x", 5<<20))
	code, text := get(t, c, s.base+"/api/rollouts/alpha-1", nil)
	var d console.Detail
	if err := json.Unmarshal([]byte(text), &d); err != nil || code != http.StatusOK {
		t.Fatalf("got %d, %v, %.200s", code, err, text)
	}
	if len(text) > 1<<20 || strings.ContainsAny(text, "\x1b\u202e") || strings.Contains(text, `\u001b`) {
		t.Errorf("got %d bytes", len(text))
	}
	if len(d.Calls) != 2 || len(d.Rows) != 2 || d.Calls[0].Trained != 3 || d.Calls[1].Break == "" || d.Calls[1].Wait != 500 || d.Calls[0].New[1].Cut < 10<<20-1<<17 {
		t.Errorf("got %+v %+v", d.Calls, d.Rows)
	}
	if code, text := get(t, c, s.base+"/api/rollouts/alpha-1/rows/7", nil); code != http.StatusNotFound {
		t.Errorf("got %d %s", code, text)
	}
	s.closed = errors.New("not yours")
	if _, text := get(t, c, s.base+"/api/rollouts/alpha-1", nil); !strings.Contains(text, `"missing":"not yours"`) || !strings.Contains(text, `"files":[]`) {
		t.Errorf("got %.1000s", text)
	}
	for _, path := range []string{"/rows/0", "/files/transcript.jsonl.zst"} {
		if code, text := get(t, c, s.base+"/api/rollouts/alpha-1"+path, nil); code == http.StatusOK || text != "not yours\n" {
			t.Errorf("got %d %.100s", code, text)
		}
	}
	s.one, s.closed = nil, nil
	for path, want := range map[string]int{"/api/rollouts/alpha-2": http.StatusNotFound, "/api/rollouts/x%20y": http.StatusBadRequest, "/api/rollouts/alpha-2/rows/0": http.StatusNotFound, "/api/rollouts/alpha-2/files/a": http.StatusNotFound, "/rollout/alpha-2": http.StatusOK} {
		if code, text := get(t, c, s.base+path, nil); code != want {
			t.Errorf("%s: got %d %.100s", path, code, text)
		}
	}
}

// The files that the tools of several agents change are shown as diffs: hostile names and
// texts stay text, and long diffs are collapsed.
func TestChangedFilesAreDiffs(t *testing.T) {
	page := browser.Open(t, 1280, 800)
	s := serve(t)
	type args = map[string]any
	long := strings.Repeat("line\n", 100)
	uses := []struct {
		name string
		args any
	}{
		{"Write", args{"file_path": "claude.txt", "content": "one\ntwo\nthree\n"}},
		{"Edit", args{"file_path": "claude.txt", "old_string": "two", "new_string": "2", "replace_all": false}},
		{"Write", args{"file_path": "claude.txt", "content": "one\n2\nfour\n"}},
		{"MultiEdit", args{"file_path": "multi.txt", "edits": []args{{"old_string": "a", "new_string": "b"}, {"old_string": "c", "new_string": "d"}}}},
		{"edit", args{"filePath": "opencode.txt", "oldString": "a\nb\nc", "newString": "a\nB\nc"}},
		{"write", args{"filePath": hostile, "content": hostile + "\n" + hostile}},
		{"replace", args{"file_path": "gemini.txt", "old_string": "x", "new_string": "y", "instruction": "z"}},
		{"write_file", args{"file_path": "qwen.txt", "content": long}},
		{"edit", args{"path": "pi.txt", "edits": []args{{"oldText": "p", "newText": "q"}}}},
		{"str_replace_editor", args{"command": "insert", "path": "insert.txt", "insert_line": 3, "new_str": "added"}},
		{"str_replace_editor", args{"command": "view", "path": "viewed.txt"}},
		{"replace_in_file", args{"path": "cline.txt", "diff": "------- SEARCH\nold\n=======\nnew\n+++++++ REPLACE\n"}},
		{"apply_patch", args{"input": "*** Begin Patch\n*** Update File: codex.txt\n@@ def f():\n a\n-b\n+c\n*** Add File: new.txt\n+n\n*** Delete File: gone.txt\n*** End Patch"}},
		{"shell", args{"command": []string{"bash", "-lc", "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: moved.txt\n*** Move to: there.txt\n-b\n*** End Patch\nEOF"}}},
		{"bash", args{"command": "ls"}},
		{"odd", []int{1}},
	}
	var calls []map[string]any
	for i, u := range uses {
		given, err := json.Marshal(u.args)
		harness.Must(t, err)
		calls = append(calls, map[string]any{"id": fmt.Sprint("c", i), "type": "function", "function": map[string]any{"name": u.name, "arguments": string(given)}})
	}
	answer, err := json.Marshal(map[string]any{"role": "assistant", "content": nil, "tool_calls": calls})
	harness.Must(t, err)
	s.one = recordingOf(t, pack(t, []schema.TranscriptLine{
		{At: 1000, Call: 1, Request: &schema.Call{Key: "alpha-1/1/1", Tag: schema.TagAgent, Messages: []json.RawMessage{[]byte(`{"role":"user","content":"go"}`)}}},
		{At: 1500, Call: 1, Gen: "g1", MS: 500, Reply: &schema.Reply{V: schema.Version, Message: answer, FinishReason: "tool_calls"}},
	}))
	link := <-s.links
	base, _, _ := strings.Cut(link, "?")
	page.Do(chromedp.Navigate(link))
	page.Shows(`document.querySelector('.link.live') !== null`)
	page.Do(chromedp.Navigate(base + "rollout/alpha-1"))
	want := "claude.txt +5 −2 3 changes|multi.txt +2 −2 2 changes|opencode.txt +1 −1|<img|gemini.txt +1 −1|qwen.txt +100 −0|pi.txt +1 −1|insert.txt +1 −0|cline.txt +1 −1|codex.txt +1 −1|new.txt +1 −0|gone.txt +0 −0|moved.txt → there.txt +0 −1"
	page.Shows(`[...document.querySelectorAll('.changed summary')].map((e) => e.textContent.startsWith('<img') ? '<img' : e.textContent.trim()).join('|') === ` + strconv.Quote(want))
	page.Shows(`document.querySelectorAll('.call .diff').length === 16 && document.querySelectorAll('.call .use').length === 16 && document.querySelectorAll('.changed .diff').length === 0`)
	page.Do(chromedp.Click(`.changed summary`))
	page.Shows(`[...document.querySelectorAll('.changed .diff:last-child .diffline')].map((e) => e.textContent).join('|') === ' one| 2|-three|+four'`)
	page.Shows(`[...document.querySelectorAll('.call .diff')].find((e) => e.textContent.startsWith('qwen')).querySelectorAll('.diffline').length === 30`)
	page.Do(chromedp.Click(`.diff button`))
	page.Shows(`[...document.querySelectorAll('.call .diff')].find((e) => e.textContent.startsWith('qwen')).querySelectorAll('.diffline').length === 100`)
	page.Shows(`document.title.endsWith(' · turngate') && document.querySelectorAll('main img, main script').length === 0 && !document.body.textContent.includes('\u202e') && document.documentElement.scrollWidth <= innerWidth`)
	page.Picture("changes")
	page.Do(chromedp.EmulateViewport(390, 800))
	page.Shows(`innerWidth === 390 && document.documentElement.scrollWidth <= innerWidth`)
}

// An answer that an agent sends back is on the page once: also in another form, without
// its reasoning, and where the conversation begins anew. One that the agent changed is a
// message of its own.
func TestAnAnswerIsShownOnce(t *testing.T) {
	answer := func(name, reasoning, id, command string) string {
		return fmt.Sprintf(`{"role":"assistant","content":%s,"reasoning_content":%q,"tool_calls":[{"id":%q,"type":"function","function":{"name":"bash","arguments":%q}}]}`, name, reasoning, id, command)
	}
	tool := `{"role":"tool","content":"done","tool_call_id":"x"}`
	user := `{"role":"user","content":"work"}`
	line := func(n, base, keep int, reply string, messages ...string) []schema.TranscriptLine {
		q := &schema.Call{Key: fmt.Sprintf("alpha-1/1/%d", n), Tag: schema.TagAgent, Base: base, Keep: keep}
		for _, m := range messages {
			q.Messages = append(q.Messages, json.RawMessage(m))
		}
		at := int64(1000 * n)
		return []schema.TranscriptLine{
			{At: at, Call: n, Request: q},
			{At: at + 500, Call: n, Gen: "g", MS: 500, Reply: &schema.Reply{V: schema.Version, Message: json.RawMessage(reply), FinishReason: "stop"}},
		}
	}
	lines := slices.Concat(
		line(1, 0, 0, answer(`"first "`, "why", "a", `{"command": "ls"}`), user),
		line(2, 1, 1, answer("null", "", "b", `{"command":"second"}`), answer(`[{"type":"text","text":"first"}]`, "", "other", `{"command":"ls"}`), tool),
		line(3, 2, 3, `{"role":"assistant","content":"third"}`, answer(`""`, "", "b", `{"command":"second"}`), tool),
		line(4, 0, 0, `{"role":"assistant","content":"fourth"}`, user, answer(`"first"`, "", "a", `{"command":"ls"}`), tool),
		line(5, 4, 3, `{"role":"assistant","content":"fifth"}`, `{"role":"assistant","content":"fourth and more"}`, user),
	)
	s := serve(t)
	s.one = recordingOf(t, pack(t, lines))
	d := ask[console.Detail](t, s, s.browser(t), "/api/rollouts/alpha-1")
	var got []string
	for _, c := range d.Calls {
		for _, m := range c.New {
			got = append(got, fmt.Sprintf("%d %s %d %s", c.Number, m.Role, m.Same, m.Text))
		}
	}
	if want := "1 user 0 work, 2 assistant 1 , 2 tool 0 done, 3 assistant 2 , 3 tool 0 done, 4 user 0 work, 4 assistant 1 , 4 tool 0 done, 5 assistant 0 fourth and more, 5 user 0 work"; strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}

	page := browser.Open(t, 1280, 800)
	page.Do(chromedp.Navigate(<-s.links))
	page.Shows(`document.querySelector('.link.live') !== null`)
	page.Do(chromedp.Navigate(s.base + "/rollout/alpha-1"))
	page.Shows(`document.querySelectorAll('.call').length === 5 && document.querySelectorAll('.message.assistant').length === 6`)
	page.Shows(`[...document.querySelectorAll('.same')].map((e) => e.closest('.call').id + ': ' + e.textContent).join() === 'call-4: the answer of call 1, unchanged'`)
	page.Do(chromedp.Click(`.same button`))
	page.Shows(`document.activeElement.id === 'call-1'`)
}
