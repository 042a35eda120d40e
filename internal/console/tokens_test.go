package console_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/browser"
	"github.com/turngate/turngate/internal/vocabulary"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// A row of tokens has their texts if the console has a tokenizer. Its context is folded; a
// key and a bar lead to the trained tokens, and links to the conversation and back.
func TestTheTokensOfARow(t *testing.T) {
	page := browser.Open(t, 1400, 900)
	file := filepath.Join(t.TempDir(), "tokenizer.json")
	harness.Must(t, os.WriteFile(file, []byte(`{"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"ctx":1,"first":7,"Ġans":8,"werĊ":9,"second":17,"Ġx":18,"<b>":19}}}`), 0o600))
	words, err := vocabulary.Read(file)
	harness.Must(t, err)
	s := &site{memory: memory{rollouts: make(chan *recorded.Rollout), errs: make(chan error), taken: make(chan struct{})}}
	s.run(t, console.Config{Source: &s.memory, Listen: console.DefaultListen, Tokenizer: words})
	context := make([]int32, 400)
	for i := range context {
		context[i] = 1
	}
	message := func(role, text string) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(`{"role":%q,"content":%q}`, role, text))
	}
	reply := func(text string, prompt, ids []int32) *schema.Reply {
		return &schema.Reply{V: schema.Version, Message: message("assistant", text), FinishReason: "stop", PromptIDs: schema.PackTokenIDs(prompt), CompletionIDs: schema.PackTokenIDs(ids), Logprobs: schema.PackLogprobs([]float32{0, -1, -20})}
	}
	first, second := []int32{7, 8, 9}, []int32{17, 18, 19}
	more := append(append(append([]int32{}, context...), first...), context...)
	s.one = recordingOf(t, pack(t, []schema.TranscriptLine{
		{At: 1000, Call: 1, Request: &schema.Call{Key: "alpha-1/1/1", Tag: schema.TagAgent, Messages: []json.RawMessage{message("user", strings.Repeat("long ", 2000))}}},
		{At: 1500, Call: 1, Gen: "g1", MS: 500, Reply: reply("first answer", context, first)},
		{At: 2000, Call: 2, Request: &schema.Call{Key: "alpha-1/1/2", Tag: schema.TagAgent, Base: 1, Keep: 1, Messages: []json.RawMessage{message("assistant", "first answer"), message("user", "more")}}},
		{At: 2500, Call: 2, Gen: "g2", MS: 500, Reply: reply("second x<b>", more, second)},
	}))
	link := <-s.links
	base, _, _ := strings.Cut(link, "/?")
	page.Do(chromedp.Navigate(link))
	page.Shows(`document.querySelector('.link.live') !== null`)
	page.Do(chromedp.Navigate(base + "/rollout/alpha-1"))
	page.Shows(`document.querySelectorAll('.totokens').length === 2`)
	page.Do(chromedp.Click(`.rows button`))
	page.Shows(`[...document.querySelectorAll('.tokens .token')].map((e) => e.textContent).join('|') === 'first| ans|wer⏎|second| x|<b>'`)
	page.Shows(`[...document.querySelectorAll('.fold')].map((e) => e.textContent).join() === '… 400 tokens of context,… 400 tokens of context'`)
	page.Shows(`document.querySelectorAll('.where rect').length === 2`)

	page.Do(chromedp.Focus(`.tokens`), chromedp.KeyEvent("n"), chromedp.KeyEvent("n"))
	page.Shows(`document.querySelector('.token[data-at]')?.textContent === 'second' && document.querySelector('.chosen').textContent.includes('token 803, id 17: call 2, log-prob 0.0000')`)
	page.Do(chromedp.KeyEvent(kb.ArrowRight))
	page.Shows(`document.querySelector('.token[data-at]').textContent === ' x' && document.querySelector('.chosen').textContent.includes('log-prob -1.0000')`)
	page.Do(chromedp.KeyEvent(kb.Enter))
	page.Shows(`document.activeElement.id === 'call-2'`)
	page.Do(chromedp.Click(`#call-1 .totokens`))
	page.Shows(`document.querySelector('.token[data-at]')?.textContent === 'first' && document.activeElement.classList.contains('tokens')`)
	page.Do(chromedp.Click(`.fold`))
	page.Shows(`document.querySelectorAll('.tokens .mask0').length > 20 && document.querySelectorAll('.fold').length === 1`)
	page.Do(chromedp.Evaluate(`(() => { const bar = document.querySelector('.where').getBoundingClientRect(); document.querySelector('.where').dispatchEvent(new MouseEvent('click', { bubbles: true, clientX: bar.left + bar.width * 803.5 / 806 })) })()`, nil))
	page.Shows(`document.querySelector('.token[data-at]').textContent === 'second'`)
	page.Picture("tokens")
	page.Do(chromedp.EmulateViewport(390, 800))
	page.Shows(`innerWidth === 390 && document.documentElement.scrollWidth <= innerWidth`)
	page.Picture("tokens-narrow")
}
