package front

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/internal/strictyaml"
	"github.com/turngate/turngate/schema"
)

// Tokens has the trainers that a front admits, by the sha256 of their bearer tokens.
type Tokens struct {
	all      []grant
	trainers map[string]string // the credential of each
}

// grant admits the holder of a token as a trainer.
type grant struct {
	sum     [sha256.Size]byte
	trainer string
}

// tokenEntry is one entry of the file.
type tokenEntry struct {
	Trainer string `yaml:"trainer"`
	SHA256  string `yaml:"sha256"`
	Creds   string `yaml:"creds"`
}

// ReadTokens reads a file of tokens: a list of trainer, sha256 (of the token, in hex) and
// creds (the file with the trainer's credential, from the folder of this file; without it
// the front connects without one). The file must belong to this user or to root, and no other
// user may write to it. A trainer may have several tokens.
func ReadTokens(path string) (*Tokens, error) {
	if err := checkOwner(path); err != nil {
		return nil, fmt.Errorf("the file of tokens: %w", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the file of tokens: %w", err)
	}
	t, err := parseTokens(data, filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("the file of tokens %s: %w", path, err)
	}
	return t, nil
}

func checkOwner(path string) error {
	if err := owned.Check(path); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("other users may write to %s (mode %#o): chmod go-w", path, info.Mode().Perm())
	}
	return nil
}

func parseTokens(data []byte, dir string) (*Tokens, error) {
	var entries []tokenEntry
	if err := strictyaml.Decode(data, &entries); err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, errors.New("it has no entry: want a list of trainer, sha256 and creds")
	}
	t := &Tokens{trainers: map[string]string{}}
	for i, e := range entries {
		if err := t.add(e, dir); err != nil {
			return nil, fmt.Errorf("[%d].%w", i, err)
		}
	}
	return t, nil
}

func (t *Tokens) add(e tokenEntry, dir string) error {
	if err := schema.CheckTrainer(e.Trainer); err != nil {
		return err
	}
	if err := schema.CheckSHA256("sha256", e.SHA256); err != nil {
		return err
	}
	creds := e.Creds
	if creds != "" && !filepath.IsAbs(creds) {
		creds = filepath.Join(dir, creds)
	}
	if role, name := broker.RoleOf(creds); role != "" && (role != broker.RoleTrainer || name != e.Trainer) {
		return &schema.InvalidError{Field: "creds", Value: e.Creds, Want: "want the credential of trainer " + e.Trainer}
	}
	if other, known := t.trainers[e.Trainer]; known && other != creds {
		return &schema.InvalidError{Field: "creds", Value: e.Creds, Want: "want the same file in each entry of trainer " + e.Trainer}
	}
	g := grant{trainer: e.Trainer}
	if _, err := hex.Decode(g.sum[:], []byte(e.SHA256)); err != nil {
		return &schema.InvalidError{Field: "sha256", Value: "of another form", Want: "want 64 hex digits"}
	}
	if g.sum == sha256.Sum256(nil) {
		return &schema.InvalidError{Field: "sha256", Value: e.SHA256, Want: "want that of a token: this one is of an empty text"}
	}
	for _, other := range t.all {
		if other.sum == g.sum {
			return &schema.InvalidError{Field: "sha256", Value: e.SHA256, Want: "want another token in each entry"}
		}
	}
	t.all, t.trainers[e.Trainer] = append(t.all, g), creds
	return nil
}

// holder returns the trainer of a token; empty: none has it. Its time depends on the
// number of tokens only.
func (t *Tokens) holder(token string) string {
	sum := sha256.Sum256([]byte(token))
	trainer := ""
	for i := range t.all {
		if subtle.ConstantTimeCompare(sum[:], t.all[i].sum[:]) == 1 {
			trainer = t.all[i].trainer
		}
	}
	return trainer
}
