// Package vocabulary reads the texts of tokens from a tokenizer.json, the file that the
// tokenizers library of Hugging Face writes for a model.
package vocabulary

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of a file. Large vocabularies have 260,000 tokens in 35 MB.
const (
	maxFile = 256 << 20 // bytes
	maxID   = 4 << 20
)

// Vocabulary has the text of each token.
type Vocabulary struct {
	texts []string // by the id
}

// layout is the part of the file that is read.
type layout struct {
	Added []struct {
		ID      int    `json:"id"`
		Content string `json:"content"`
	} `json:"added_tokens"`
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
	Decoder      json.RawMessage `json:"decoder"`
	Model        struct {
		Type  string          `json:"type"`
		Vocab json.RawMessage `json:"vocab"`
	} `json:"model"`
}

// Read reads the tokenizer.json at a path.
func Read(path string) (*Vocabulary, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the tokenizer: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the tokenizer: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read the tokenizer: %s is no file: want the tokenizer.json of the model", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the tokenizer: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read the tokenizer: %s has more than %d MB", path, maxFile>>20)
	}
	v, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("read the tokenizer: %s: %w: want the tokenizer.json of the model", path, err)
	}
	return v, nil
}

func parse(data []byte) (*Vocabulary, error) {
	var l layout
	if err := json.Unmarshal(data, &l); err != nil {
		return nil, errors.New("it has another form")
	}
	ids, err := vocab(l.Model.Vocab)
	if err != nil {
		return nil, err
	}
	decode := decoder(&l)
	v := &Vocabulary{}
	for piece, id := range ids {
		if err := v.set(id, decode(piece)); err != nil {
			return nil, err
		}
	}
	for _, a := range l.Added { // these are as they are
		if err := v.set(a.ID, a.Content); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// vocab reads the pieces with their ids: an object, or the list of a Unigram model, in which
// each piece has its score.
func vocab(raw json.RawMessage) (map[string]int, error) {
	ids := map[string]int{}
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		return ids, nil
	}
	var list [][]any
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		return nil, errors.New("it has no vocabulary")
	}
	ids = map[string]int{}
	for id, entry := range list {
		if len(entry) > 0 {
			if piece, ok := entry[0].(string); ok {
				ids[piece] = id
			}
		}
	}
	return ids, nil
}

func (v *Vocabulary) set(id int, text string) error {
	if id < 0 || id > maxID {
		return fmt.Errorf("a token has the id %d", id)
	}
	for len(v.texts) <= id {
		v.texts = append(v.texts, "")
	}
	v.texts[id] = text
	return nil
}

// decoder returns the function from a piece of the vocabulary to its text, which may be a
// part of a character.
func decoder(l *layout) func(string) string {
	uses := func(step string) bool {
		name := `"` + step + `"`
		return strings.Contains(string(l.Decoder), name) || strings.Contains(string(l.PreTokenizer), name)
	}
	switch {
	case uses("ByteLevel"):
		return byteLevel()
	case l.Model.Type == "WordPiece":
		return func(piece string) string {
			if rest, ok := strings.CutPrefix(piece, "##"); ok {
				return rest
			}
			return " " + piece
		}
	default: // as SentencePiece writes them
		return func(piece string) string {
			if len(piece) == 6 && strings.HasPrefix(piece, "<0x") && piece[5] == '>' {
				if b, err := strconv.ParseUint(piece[3:5], 16, 8); err == nil {
					return string([]byte{byte(b)})
				}
			}
			return strings.ReplaceAll(piece, "▁", " ")
		}
	}
}

// byteLevel decodes pieces in which each byte is a visible character, as in GPT-2: one that
// is visible in Latin-1 is itself, and the others are the characters from U+0100 on.
func byteLevel() func(string) string {
	bytes := map[rune]byte{}
	next := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			bytes[rune(b)] = byte(b)
		} else {
			bytes[next] = byte(b)
			next++
		}
	}
	return func(piece string) string {
		out := make([]byte, 0, len(piece))
		for _, c := range piece {
			if b, ok := bytes[c]; ok {
				out = append(out, b)
			} else {
				out = utf8.AppendRune(out, c)
			}
		}
		return string(out)
	}
}

// Texts returns the text of each token. A token that is a part of a character has the bytes,
// such as "\xe2", and one that is not in the vocabulary has none.
func (v *Vocabulary) Texts(ids []int32) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		if id < 0 || int(id) >= len(v.texts) {
			continue
		}
		if out[i] = v.texts[id]; !utf8.ValidString(out[i]) {
			quoted := strconv.Quote(out[i])
			out[i] = quoted[1 : len(quoted)-1]
		}
	}
	return out
}
