// Package contexts keeps servers and credentials by name. A context is one of the
// nats command: a JSON file in nats/context, below XDG_CONFIG_HOME or ~/.config. The
// current context is turngate's own choice, in turngate/context there, so that a
// choice made for the nats command moves no rollouts.
package contexts

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/schema"
)

// Context is a server with a credential.
type Context struct {
	Name        string `json:"name"`
	URL         string `json:"url"`
	Creds       string `json:"creds"` // path of a .creds file or of an nkey seed; empty: none
	Description string `json:"description,omitempty"`
	Inbox       string `json:"inbox_prefix,omitempty"` // for the nats command; turngate knows its own
}

// file is the form in which the nats command stores a context.
type file struct {
	Description string `json:"description"`
	URL         string `json:"url"`
	Creds       string `json:"creds"`
	NKey        string `json:"nkey"`
	Inbox       string `json:"inbox_prefix,omitempty"`
}

// unused are fields of the nats command that turngate does not use. A context that
// has one is refused: without it the connection would be another.
type unused struct {
	Token    string `json:"token,omitempty"`
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`
	NSC      string `json:"nsc,omitempty"`
	Cert     string `json:"cert,omitempty"`
	Key      string `json:"key,omitempty"`
	CA       string `json:"ca,omitempty"`
	Domain   string `json:"jetstream_domain,omitempty"`
	Prefix   string `json:"jetstream_api_prefix,omitempty"`
	JWT      string `json:"user_jwt,omitempty"`
	Seed     string `json:"user_seed,omitempty"`
	Proxy    string `json:"socks_proxy,omitempty"`
	TLSFirst bool   `json:"tls_first,omitempty"`
}

const (
	// maxFile is the largest size of a context in bytes.
	maxFile = 64 << 10
	// maxName is the largest length of a context's name.
	maxName = 64
	ext     = ".json"
)

// ErrExists is returned for a new context with the name of an existing one.
var ErrExists = errors.New("there is a context of that name")

// Store has the contexts of one user.
type Store struct {
	dir     string // of the contexts
	current string // file with the name of the current one
}

// Open returns the store of this process's user.
func Open() (*Store, error) {
	home, err := home()
	if err != nil {
		return nil, fmt.Errorf("find the contexts: %w", err)
	}
	return &Store{filepath.Join(home, "nats", "context"), filepath.Join(home, "turngate", "context")}, nil
}

// Folder returns the folder of this process's user with the files of turngate's own, which
// may not exist.
func Folder() (string, error) {
	home, err := home()
	if err != nil {
		return "", fmt.Errorf("find the folder of the configuration: %w", err)
	}
	return filepath.Join(home, "turngate"), nil
}

func home() (string, error) {
	if home := os.Getenv("XDG_CONFIG_HOME"); home != "" {
		return home, nil
	}
	dir, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, ".config"), nil
}

// CheckName returns an error unless a context may have the name.
func CheckName(name string) error {
	bad := strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	})
	if name == "" || len(name) > maxName || name[0] == '.' || bad {
		return fmt.Errorf("%q is not valid: want a name of letters, digits, '-', '_' and '.', of at most %d characters", schema.Clip(name, 80), maxName)
	}
	return nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name+ext) }

// Get returns a context. The error names the contexts that there are.
func (s *Store) Get(name string) (Context, error) {
	if err := CheckName(name); err != nil {
		return Context{}, fmt.Errorf("context %w", err)
	}
	c, err := s.read(name)
	if errors.Is(err, os.ErrNotExist) {
		all := "none"
		if names := s.Names(); len(names) > 0 {
			all = strings.Join(names, ", ")
		}
		return c, fmt.Errorf("context %q: there is none of that name; contexts are: %s", name, all)
	}
	if err != nil {
		return c, fmt.Errorf("context %q: %w", name, err)
	}
	return c, nil
}

func (s *Store) read(name string) (Context, error) {
	path := s.path(name)
	if err := owned.Check(path); err != nil {
		return Context{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return Context{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return Context{}, fmt.Errorf("%s: want a file of at most %d bytes", path, maxFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Context{}, err
	}
	var f file
	var more unused
	if err := errors.Join(json.Unmarshal(data, &f), json.Unmarshal(data, &more)); err != nil {
		return Context{}, fmt.Errorf("%s: want a JSON object whose url, creds and nkey are strings", path)
	}
	if more != (unused{}) {
		return Context{}, fmt.Errorf("%s: turngate does not use its %s: want url, and creds or nkey", path, strings.Join(more.names(), ", "))
	}
	if f.URL == "" || f.Creds != "" && f.NKey != "" {
		return Context{}, fmt.Errorf("%s: want url, and one of creds and nkey", path)
	}
	creds := f.Creds + f.NKey
	if rest, ok := strings.CutPrefix(creds, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return Context{}, err
		}
		creds = filepath.Join(home, rest)
	}
	return Context{Name: name, URL: f.URL, Creds: creds, Description: f.Description, Inbox: f.Inbox}, nil
}

// names returns the names of the fields that are set.
func (u unused) names() []string {
	data, _ := json.Marshal(u) // strings always encode
	var set map[string]any
	_ = json.Unmarshal(data, &set)
	return slices.Sorted(maps.Keys(set))
}

// Names returns the names of all contexts.
func (s *Store) Names() []string {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ext); ok && CheckName(name) == nil {
			out = append(out, name)
		}
	}
	return out
}

// Add stores a context in a file of mode 0600. It returns ErrExists if another has
// its name, unless mine reports that the caller made that one.
func (s *Store) Add(c Context, mine func(Context) bool) error {
	if err := CheckName(c.Name); err != nil {
		return fmt.Errorf("context %w", err)
	}
	switch old, err := s.read(c.Name); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil || mine == nil || !mine(old):
		return fmt.Errorf("context %q: %w", c.Name, ErrExists)
	}
	f := file{Description: c.Description, URL: c.URL, NKey: c.Creds, Inbox: c.Inbox}
	if filepath.Ext(c.Creds) == ".creds" {
		f.Creds, f.NKey = c.Creds, ""
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err == nil {
		err = write(s.path(c.Name), append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("store the context %q: %w", c.Name, err)
	}
	return nil
}

// Remove deletes a context. After a removal of the current context there is none.
func (s *Store) Remove(name string) error {
	if _, err := os.Lstat(s.path(name)); CheckName(name) != nil || err != nil {
		_, err := s.Get(name)
		return err
	}
	current, err := s.Current()
	if err == nil && current == name {
		err = s.Use("")
	}
	if err == nil {
		err = os.Remove(s.path(name))
	}
	if err != nil {
		return fmt.Errorf("remove the context %q: %w", name, err)
	}
	return nil
}

// Use makes a context the current one; an empty name: none is.
func (s *Store) Use(name string) error {
	if name == "" {
		if err := os.Remove(s.current); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("choose no context: %w", err)
		}
		return nil
	}
	if _, err := s.Get(name); err != nil {
		return err
	}
	if err := write(s.current, []byte(name+"\n")); err != nil {
		return fmt.Errorf("choose the context %q: %w", name, err)
	}
	return nil
}

// Current returns the name of the current context; empty: there is none.
func (s *Store) Current() (string, error) {
	if err := owned.Check(s.current); err != nil {
		return "", fmt.Errorf("the current context: %w", err)
	}
	data, err := os.ReadFile(s.current)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("the current context: %w", err)
	}
	name := strings.TrimSpace(string(data))
	if err := CheckName(name); err != nil {
		return "", fmt.Errorf("the current context, in %s: %w", s.current, err)
	}
	return name, nil
}

// write replaces a file. A reader gets the old content or the new one.
func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	part, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(part.Name())
	_, err = part.Write(data)
	if err == nil {
		err = part.Sync()
	}
	if err = errors.Join(err, part.Close()); err != nil {
		return err
	}
	return os.Rename(part.Name(), path)
}
