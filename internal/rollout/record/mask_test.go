package record

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/spool"
)

func content(t *testing.T, f *spool.File) io.Reader {
	t.Helper()
	r, err := f.Content()
	harness.Must(t, err)
	return r
}

// throughMaskers reads a text through maskers of the keys, from a reader that gives pieces of it.
func throughMaskers(t *testing.T, keys []string, pieces io.Reader) string {
	t.Helper()
	found := false
	for _, key := range keys {
		pieces = newMasker(pieces, key, &found)
	}
	data, err := io.ReadAll(pieces)
	harness.Must(t, err)
	return string(data)
}

func secretsOf(keys ...string) *secrets {
	s := &secrets{}
	for _, key := range keys {
		s.Add(key)
	}
	return s
}

// TestAKeyAcrossTwoPieces cuts a text with a key, its halves and two keys in a row at each
// byte.
func TestAKeyAcrossTwoPieces(t *testing.T) {
	const key = "tg-0123456789abcdefghijklmnopqrstuvwxyzABCDEF"
	text := "a " + key + " b " + key[:16] + key[:15] + key[20:] + key + key + "c" + key[:30]
	want := secretsOf(key).Text(text)
	if strings.Contains(want, key[:16]) || !strings.Contains(want, "a [key]*") || !strings.Contains(want, key[:15]) {
		t.Fatalf("got %q", want)
	}
	for cut := range len(text) + 1 {
		if got := throughMaskers(t, []string{key}, io.MultiReader(strings.NewReader(text[:cut]), strings.NewReader(text[cut:]))); got != want {
			t.Errorf("cut at %d: got %q, want %q", cut, got, want)
		}
	}
	if got := throughMaskers(t, []string{key}, iotest.OneByteReader(strings.NewReader(text))); got != want {
		t.Errorf("byte by byte: got %q, want %q", got, want)
	}
}

// TestAKeyAtEachPlaceOfABuffer moves a key over the end of the buffer of a masker.
func TestAKeyAtEachPlaceOfABuffer(t *testing.T) {
	const key = "tg-0123456789abcdefghijklmnopqrstuvwxyzABCDEF"
	s := secretsOf(key)
	for at := maskRoom - 2*len(key); at <= maskRoom+2*len(key); at++ {
		text := strings.Repeat("x", at) + key + strings.Repeat("y", 100)
		data, err := io.ReadAll(s.file(Text([]byte(text))).Open())
		harness.Must(t, err)
		if string(data) != s.Text(text) || bytes.Contains(data, []byte(key[:16])) {
			t.Fatalf("with the key at %d: got …%q", at, data[at-20:])
		}
	}
}

// FuzzMask checks that a text in pieces is masked as the whole text is. The keys repeat
// themselves and overlap, which is the hardest case.
func FuzzMask(f *testing.F) {
	f.Add("abababab", "abababababababab", "xxabababababababababab", uint8(3))
	f.Add("aaaaaaaaaaaaaaaaaaaa", "aaaaaaaabaaaaaaab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabaaaaaaab", uint8(1))
	f.Add("tg-0123456789abcdefgh", "0123456789abcdefghijk", "tg-0123456789abcdefghijk", uint8(7))
	f.Fuzz(func(t *testing.T, first, second, text string, piece uint8) {
		s := secretsOf(first, second)
		if got, want := throughMaskers(t, s.All(), pieces(text, int(piece)+1)), s.Text(text); got != want {
			t.Errorf("keys %q, pieces of %d: %q became %q, want %q", s.All(), int(piece)+1, text, got, want)
		}
	})
}

func pieces(text string, n int) io.Reader {
	var all []io.Reader
	for at := 0; at < len(text); at += n {
		all = append(all, strings.NewReader(text[at:min(at+n, len(text))]))
	}
	return io.MultiReader(all...)
}

// TestMaskedPieces compares texts of few letters, in which keys overlap, with the whole.
func TestMaskedPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	letters := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "aaab"[random.IntN(4)]
		}
		return string(b)
	}
	changed := 0
	for range 3000 {
		s := secretsOf(letters(8+random.IntN(30)), letters(8+random.IntN(30)))
		text := letters(random.IntN(300))
		for _, key := range s.All() {
			if at := random.IntN(len(text) + 1); random.IntN(2) == 0 {
				text = text[:at] + key + text[at:]
			}
		}
		want := s.Text(text)
		if want != text {
			changed++
		}
		if got := throughMaskers(t, s.All(), pieces(text, 1+random.IntN(60))); got != want {
			t.Fatalf("keys %q: %q became %q, want %q", s.All(), text, got, want)
		}
	}
	if changed < 1000 {
		t.Errorf("only %d texts had a key", changed)
	}
}

// TestALargeArchiveStaysReadable: its files and names with keys go over many buffers, and
// a second reader gives the same bytes.
func TestALargeArchiveStaysReadable(t *testing.T) {
	const key = "tg-0123456789abcdefghijklmnopqrstuvwxyzABCDEF"
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for n := range 40 {
		body := strings.Repeat("0123456789", n*997) + key
		harness.Must(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%d-%s", n, key), Mode: 0o644, Size: int64(len(body))}))
		_, err := io.WriteString(w, body)
		harness.Must(t, err)
	}
	harness.Must(t, w.Close())
	file := secretsOf(key, "another-secret-of-the-rollout").file(Text(b.Bytes()))
	masked, err := io.ReadAll(file.Open())
	harness.Must(t, err)
	if again, err := io.ReadAll(iotest.OneByteReader(file.Open())); err != nil || !bytes.Equal(again, masked) || int64(len(masked)) != file.Size || len(masked) != b.Len() {
		t.Fatalf("got %d bytes and then %d of %d, %v", len(masked), len(again), b.Len(), err)
	}
	names := 0
	for r := tar.NewReader(bytes.NewReader(masked)); ; names++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		harness.Must(t, err)
		body, err := io.ReadAll(r)
		harness.Must(t, err)
		if strings.Contains(h.Name, key) || bytes.Contains(body, []byte(key)) || h.Name[:3] != fmt.Sprintf("%d-[", names)[:3] {
			t.Errorf("file %d is %q", names, h.Name)
		}
	}
	if names != 40 {
		t.Errorf("%d files are left", names)
	}
}

// TestAFileWithoutAKeyIsReadAsItIs, from the second time on.
func TestAFileWithoutAKeyIsReadAsItIs(t *testing.T) {
	data := harness.Noise(200_000)
	file := secretsOf("another-secret-of-the-rollout").file(Text(data))
	for range 2 {
		got, err := io.ReadAll(file.Open())
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("got %d bytes, %v", len(got), err)
		}
	}
	if _, ok := file.Open().(*io.SectionReader); !ok {
		t.Error("keys are looked for again")
	}
}

// TestTheEndOfAnAgentsErrors is the text that a fault quotes.
func TestTheEndOfAnAgentsErrors(t *testing.T) {
	for name, text := range map[string]string{
		"none":             "",
		"blank":            " \n\t",
		"short":            "\n it failed \n",
		"long":             "first " + strings.Repeat("é", 40_000) + " last",
		"blank at the end": strings.Repeat("x", 3000) + "last" + strings.Repeat(" \n", 100_000),
	} {
		var none *spool.Folder
		c := capped{none.New(), maxLog}
		_, _ = io.WriteString(&c, text)
		trimmed := strings.TrimSpace(text)
		if got, want := c.last(1000), trimmed[max(len(trimmed)-1000, 0):]; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestAnAgentsStreamIsCut at its limit.
func TestAnAgentsStreamIsCut(t *testing.T) {
	var none *spool.Folder
	c := capped{none.New(), 100_000}
	for range 3 {
		if n, err := c.Write(make([]byte, 60_000)); n != 60_000 || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
	}
	if got := c.file.Size(); got != 100_000 {
		t.Errorf("%d bytes were kept", got)
	}
}

// BenchmarkMask reads a file of 64 MB without a key, as most are, with three keys.
func BenchmarkMask(b *testing.B) {
	text := []byte(strings.Repeat("The quick brown fox jumps over the lazy dog. ", (64<<20)/45))
	keys := []string{"tg-q7Zr0Nf3uT1wK8sVbY2mC5xEoJ4hL9gPdAiU6nRtXQk", "tg-t7Zr0Nf3uT1wK8sVbY2mC5xEoJ4hL9gPdAiU6nRtXQk", "sk-proj-0123456789abcdef"}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, secretsOf(keys...).file(Text(text)).Open()); err != nil {
			b.Fatal(err)
		}
	}
}
