package console_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/browser"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// A picture that an agent has read is shown if its bytes are those of a PNG or a JPEG of a
// bounded size, whatever the message says of it. Of other parts the page has the type and the
// size, and it loads nothing.
func TestPicturesOfAConversation(t *testing.T) {
	drawn := image.NewPaletted(image.Rect(0, 0, 30, 20), color.Palette{color.Black, color.White})
	var asPNG, asJPEG, asGIF bytes.Buffer
	harness.Must(t, png.Encode(&asPNG, drawn))
	harness.Must(t, jpeg.Encode(&asJPEG, drawn, nil))
	harness.Must(t, gif.Encode(&asGIF, drawn, nil))
	wide := bytes.Clone(asPNG.Bytes())
	binary.BigEndian.PutUint32(wide[16:], 1<<20)
	binary.BigEndian.PutUint32(wide[20:], 1<<20)
	binary.BigEndian.PutUint32(wide[29:], crc32.ChecksumIEEE(wide[12:29]))
	large := append(bytes.Clone(asPNG.Bytes()), make([]byte, 5<<20)...)
	url := func(kind string, data []byte) string {
		return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(data)
	}
	picture := func(url string) map[string]any {
		return map[string]any{"type": "image_url", "image_url": map[string]any{"url": url}}
	}
	const page = `<svg onload="document.title='owned'"><script>document.title='owned'</script></svg>`
	parts := []struct {
		part any
		want string // type, bytes and whether it is shown
	}{
		{map[string]any{"type": "text", "text": "look"}, ""},
		{picture(url("image/png", asPNG.Bytes())), fmt.Sprint("image/png ", asPNG.Len(), " true")},
		{picture(url("text/html", asJPEG.Bytes())), fmt.Sprint("image/jpeg ", asJPEG.Len(), " true")},
		{map[string]any{"type": "input_image", "image_url": url("image/png", asPNG.Bytes())}, fmt.Sprint("image/png ", asPNG.Len(), " true")},
		{picture(url("image/gif", asGIF.Bytes())), fmt.Sprint("image/gif ", asGIF.Len(), " false")},
		{picture(url("image/png", []byte(page))), fmt.Sprint("image/png ", len(page), " false")},
		{picture(url("image/svg+xml", []byte(page))), fmt.Sprint("image/svg+xml ", len(page), " false")},
		{picture("data:image/svg+xml," + page), fmt.Sprint("image/svg+xml ", len(page), " false")},
		{picture(url("image/png", wide)), fmt.Sprint("image/png ", len(wide), " false")},
		{picture(url("image/png", large)), fmt.Sprint("image/png ", len(large), " false")},
		{picture("data:image/png;base64,%%%%"), "image/png 3 false"},
		{picture("http://127.0.0.1:1/x.png"), "image 0 false http://127.0.0.1:1/x.png"},
		{picture("javascript:alert(1)"), "image 0 false javascript:alert(1)"},
		{map[string]any{"type": "input_audio", "input_audio": map[string]any{"format": "wav", "data": "AAAA"}}, "audio/wav 3 false"},
		{map[string]any{"type": "file", "file": map[string]any{"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}, "application/pdf 3 false"},
		{map[string]any{"type": "video"}, "video 0 false"},
	}
	var list []any
	var want []string
	for _, p := range parts {
		list = append(list, p.part)
		if p.want != "" {
			want = append(want, p.want)
		}
	}
	message, err := json.Marshal(map[string]any{"role": "tool", "tool_call_id": "a", "content": list})
	harness.Must(t, err)
	lines := pack(t, []schema.TranscriptLine{
		{At: 1000, Call: 1, Request: &schema.Call{Key: "alpha-1/1/1", Tag: schema.TagAgent, Messages: []json.RawMessage{message, json.RawMessage(`{"role":"user","content":"it was ` + url("image/bmp", asGIF.Bytes()) + `"}`)}}},
		{At: 1500, Call: 1, Gen: "g1", MS: 500, Reply: &schema.Reply{V: schema.Version, Message: json.RawMessage(`{"role":"assistant","content":"seen"}`), FinishReason: "stop"}},
	})
	s := serve(t)
	s.one = recordingOf(t, lines)
	d := ask[console.Detail](t, s, s.browser(t), "/api/rollouts/alpha-1")
	var got []string
	for _, p := range d.Calls[0].New[0].Pictures {
		got = append(got, strings.TrimSpace(fmt.Sprint(p.Type, " ", p.Bytes, " ", p.Data != nil, " ", p.URL)))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if text := d.Calls[0].New[1].Text; text != fmt.Sprintf("it was [image/bmp, %d bytes]", asGIF.Len()) {
		t.Errorf("got %q", text)
	}

	r, err := s.one.Read(t.Context(), trajectory.Options{Messages: true})
	harness.Must(t, err)
	var text bytes.Buffer
	recorded.Show(&text, s.one, r)
	if out := text.String(); strings.Contains(out, "base64") || strings.Contains(out, "<svg") || !strings.Contains(out, "[image/bmp, ") {
		t.Errorf("rollout show: got\n%s", out)
	}

	job := matrixJob(t, filepath.Join(t.TempDir(), "first"), false)
	harness.Must(t, os.MkdirAll(filepath.Join(job.Dir, job.Plan.Trials[0].Name, "agent"), 0o700))
	harness.Must(t, os.WriteFile(filepath.Join(job.Dir, job.Plan.Trials[0].Name, "agent/transcript.jsonl.zst"), lines, 0o600))
	file := filepath.Join(t.TempDir(), "job.html")
	f, err := os.Create(file)
	harness.Must(t, err)
	_, err = (&console.Share{Dir: job.Dir, MaxBytes: 64 << 20}).Write(t.Context(), f)
	harness.Must(t, err)
	harness.Must(t, f.Close())

	pg := browser.Open(t, 1280, 800)
	link := <-s.links
	pg.Do(chromedp.Navigate(link))
	pg.Shows(`document.querySelector('.link.live') !== null`)
	for _, at := range []string{s.base + "/rollout/alpha-1", "file://" + file + "#/rollout/" + string(job.Plan.Trials[0].Rollout)} {
		pg.Do(chromedp.Navigate(at))
		pg.Shows(`[...document.querySelectorAll('.picture img')].map((e) => e.naturalWidth + 'x' + e.naturalHeight).join() === '30x20,30x20,30x20'`)
		pg.Shows(`document.querySelectorAll('.message.tool .cut').length === 12 && document.title.endsWith(' · turngate')`)
	}
}
