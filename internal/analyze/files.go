package analyze

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// Bounds of the files that are remembered of a rollout.
const (
	maxFiles = 256
	maxFile  = 256 << 10 // bytes
)

// files are the files that an agent has written, with the text that it gave. A script
// among them is read when a command runs it.
type files struct{ text map[string]string }

func (f *files) put(dir, name, text string) {
	if text == "" || len(text) > maxFile || len(f.text) >= maxFiles && f.text[key(dir, name)] == "" {
		return
	}
	f.text[key(dir, name)] = text
}

// key is the absolute path of a file, or its relative one if the folder is not known.
func key(dir, name string) string {
	if at := absolute(dir, name); at != "" {
		return at
	}
	return path.Clean(name)
}

// get returns the text of a file, or "". If the folder of a relative path is not known, a
// written file with the same end is taken.
func (f *files) get(dir, name string) string {
	at := key(dir, name)
	if text := f.text[at]; text != "" || path.IsAbs(at) {
		return text
	}
	for _, have := range slices.Sorted(maps.Keys(f.text)) {
		if strings.HasSuffix(have, "/"+at) {
			return f.text[have]
		}
	}
	return ""
}
