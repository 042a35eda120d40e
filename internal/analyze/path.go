package analyze

import (
	"path"
	"strings"
	"unicode"
)

// The folders of a rollout that its agent has no reason to use.
const (
	testsDir    = "/tests"         // the verifier's files, once the agent has ended
	solutionDir = "/solution"      // the task's solution, for the agent oracle alone
	rewardDir   = "/logs/verifier" // the reward
)

// maxPath is the length of the longest path that is looked at, in bytes.
const maxPath = 4096

// use is a path that a command or a tool uses.
type use struct {
	path  string // absolute; its elements may be patterns
	write bool   // the path is written, moved or removed
	cited string // the part of the command
}

// within reports whether the path is a folder or is below it. An element that is a
// pattern counts if it has two characters of its own or more.
func (u use) within(dir string) bool {
	have, want := strings.Split(u.path, "/"), strings.Split(dir, "/")
	if len(have) < len(want) {
		return false
	}
	for i, name := range want {
		if have[i] == name {
			continue
		}
		own := strings.IndexFunc(have[i], func(r rune) bool { return unicode.IsLetter(r) }) >= 0 && len(strings.Trim(have[i], "*?[]!^")) >= 2
		if ok, err := path.Match(have[i], name); err != nil || !ok || !own {
			return false
		}
	}
	return true
}

// absolute returns a path as it is from the root. The folder from which it is taken
// may be unknown (empty): then only a path that climbs far above it is known. It
// returns "" for a path that is not known and for text that is no path.
func absolute(dir, text string) string {
	if text == "" || len(text) > maxPath || strings.ContainsFunc(text, unicode.IsSpace) {
		return ""
	}
	switch {
	case strings.HasPrefix(text, "/"):
	case dir != "":
		text = dir + "/" + text
	case strings.HasPrefix(path.Clean(text), "../../../"):
		text = "/" + text
	default:
		return ""
	}
	text = path.Clean("/" + text)
	if rest, ok := strings.CutPrefix(text, "/proc/"); ok { // /proc/1/root is the root
		if _, rest, _ = strings.Cut(rest, "/"); rest == "root" || strings.HasPrefix(rest, "root/") {
			return path.Clean("/" + strings.TrimPrefix(rest, "root"))
		}
	}
	return text
}

// named reports whether a text, such as an instruction, names a folder or a path below
// it, as a path of its own.
func named(text, dir string) bool {
	for rest := text; ; {
		i := strings.Index(rest, dir)
		if i < 0 {
			return false
		}
		before, after := rest[:i], rest[i+len(dir):]
		if !strings.HasSuffix(before, ".") && !endsInName(before) && !beginsWithName(after) {
			return true
		}
		rest = after
	}
}

func endsInName(s string) bool {
	return s != "" && isName(s[len(s)-1])
}

// beginsWithName reports whether a text goes on with the same name. A full stop at the
// end of a sentence does not.
func beginsWithName(s string) bool {
	if strings.HasPrefix(s, ".") {
		return len(s) > 1 && isName(s[1])
	}
	return s != "" && s[0] != '/' && isName(s[0])
}

func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '/' || c >= 0x80
}
