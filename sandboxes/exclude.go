package sandboxes

import (
	"fmt"
	"regexp"
	"strings"
)

// TarOptions are the options of TarOut.
type TarOptions struct {
	Limit int64 // maximum size of the whole stream in bytes
	// Exclude lists patterns of paths to leave out, together with everything
	// below them. As in GNU tar's --exclude, * and ? also match a slash, and a
	// pattern may match from any part of a path on. A pattern that begins with
	// "./" matches from the top only.
	Exclude []string
	Links   bool // also the symbolic links, as they are
}

// Excluder matches paths against patterns of TarOptions.
type Excluder []*regexp.Regexp

// NewExcluder compiles patterns in the form of TarOptions.Exclude.
func NewExcluder(patterns []string) (Excluder, error) {
	var out Excluder
	for _, p := range patterns {
		re, err := regexp.Compile(globRegexp(strings.TrimRight(p, "/")))
		if err != nil {
			return nil, fmt.Errorf("the pattern %q is not valid: %w", p, err)
		}
		out = append(out, re)
	}
	return out, nil
}

// Excludes reports whether a pattern matches the path or one of its parent
// folders. The path is relative to the packed folder.
func (x Excluder) Excludes(path string) bool {
	for _, re := range x {
		if re.MatchString("./" + path) {
			return true
		}
	}
	return false
}

// globRegexp translates a shell pattern into a regular expression.
func globRegexp(glob string) string {
	var b strings.Builder
	b.WriteString(`(?s)(?:^|/)(?:`)
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; c {
		case '*':
			b.WriteString(".*")
		case '?':
			b.WriteByte('.')
		case '[':
			class, n := bracket(glob[i:])
			b.WriteString(class)
			i += n - 1
		case '\\':
			if i+1 < len(glob) {
				i++
			}
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		}
	}
	b.WriteString(`)(?:/|$)`)
	return b.String()
}

// bracket translates a class such as [!a-z] at the beginning of s and returns
// its length in s. A bracket without an end is taken literally.
func bracket(s string) (class string, length int) {
	i := 1
	if i < len(s) && (s[i] == '!' || s[i] == '^') {
		i++
	}
	from := i
	for i == from || i < len(s) && s[i] != ']' {
		if i++; i > len(s) {
			return `\[`, 1
		}
	}
	if i >= len(s) {
		return `\[`, 1
	}
	body := strings.NewReplacer(`\`, `\\`, `[`, `\[`, `]`, `\]`, `^`, `\^`, `&`, `\&`, `~`, `\~`).Replace(s[from:i])
	if from == 2 {
		return "[^" + body + "]", i + 1
	}
	return "[" + body + "]", i + 1
}
