package vocabulary_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/vocabulary"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The texts are those that a model's own library decodes, for each kind of file.
func TestTheTextsOfTokens(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{
			"bytes, as in Qwen and Llama 3",
			`{"added_tokens":[{"id":5,"content":"<|im_start|>"}],"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"}]},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"Hello":0,"Ġworld":1,"ĊĊ":2,"âĢ":3,"Ķ":4}}}`,
			`["Hello" " world" "\n\n" "\\xe2\\x80" "\\x94" "<|im_start|>" ""]`,
		},
		{
			"SentencePiece with bytes, as in Gemma and Llama 2",
			`{"added_tokens":[{"id":0,"content":"<bos>"}],"decoder":{"type":"Sequence","decoders":[{"type":"Replace"},{"type":"ByteFallback"}]},"model":{"type":"BPE","vocab":{"<bos>":0,"▁a":1,"<0x0A>":2,"<0xE2>":3}}}`,
			`["<bos>" " a" "\n" "\\xe2" "" "" ""]`,
		},
		{
			"a list with scores",
			`{"decoder":{"type":"Metaspace"},"model":{"type":"Unigram","vocab":[["<unk>",0],["▁x",-1.5]]}}`,
			`["<unk>" " x" "" "" "" "" ""]`,
		},
		{
			"WordPiece",
			`{"decoder":{"type":"WordPiece"},"model":{"type":"WordPiece","vocab":{"play":0,"##ing":1}}}`,
			`[" play" "ing" "" "" "" "" ""]`,
		},
	} {
		v, err := vocabulary.Read(write(t, c.file))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := fmt.Sprintf("%q", v.Texts([]int32{0, 1, 2, 3, 4, 5, -1})); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestFilesThatAreNoTokenizer(t *testing.T) {
	for _, file := range []string{``, `[]`, `{}`, `{"model":{"vocab":7}}`, `{"model":{"vocab":{}}}`, `{"model":{"vocab":{"a":-1}}}`, `{"model":{"vocab":{"a":999999999}}}`, `{"added_tokens":[{"id":1e9}],"model":{"vocab":{"a":1}}}`} {
		path := write(t, file)
		if _, err := vocabulary.Read(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "want the tokenizer.json") {
			t.Errorf("%s: got %v", file, err)
		}
	}
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		if _, err := vocabulary.Read(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
	}
}
