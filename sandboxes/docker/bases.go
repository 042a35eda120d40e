package docker

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// bases checks the images that a Dockerfile names. The classic builder also finds
// images by the first digits of their ids, so a build could try all of them and
// read the files of another trainer.
type bases struct {
	stages []string
	ids    bool // the value of a variable looks like an id
}

// idLike matches the id of an image and its first digits.
var idLike = regexp.MustCompile(`^(sha256:)?[0-9a-f]{1,64}$`) //nolint:gochecknoglobals // a constant

var variable = regexp.MustCompile(`\$(\w+|\{[^}]*\})`) //nolint:gochecknoglobals // a constant

func newBases(lines []*parser.Node, args map[string]string) *bases {
	b := &bases{}
	for _, v := range args {
		b.ids = b.ids || idLike.MatchString(unquoted(v))
	}
	for _, n := range lines {
		words := wordsOf(n)
		switch {
		case strings.EqualFold(n.Value, "from") && len(words) > 2 && strings.EqualFold(words[1], "as"):
			b.stages = append(b.stages, words[2])
		case strings.EqualFold(n.Value, "arg") || strings.EqualFold(n.Value, "env"):
			for _, w := range words {
				_, value, _ := strings.Cut(w, "=")
				b.ids = b.ids || idLike.MatchString(variable.ReplaceAllString(value, ""))
			}
		}
	}
	return b
}

// check refuses FROM and COPY --from with an id.
func (b *bases) check(n *parser.Node) error {
	var names []string
	if words := wordsOf(n); strings.EqualFold(n.Value, "from") && len(words) > 0 {
		names = append(names, words[0])
	}
	for _, f := range n.Flags {
		if name, ok := strings.CutPrefix(strings.ToLower(f), "--from="); ok && len(name) > 3 { // a shorter number is a stage's
			names = append(names, unquoted(name))
		}
	}
	for _, name := range names {
		if b.mayBeID(name) && !slices.ContainsFunc(b.stages, func(s string) bool { return strings.EqualFold(s, name) }) {
			return fmt.Errorf("line %d: %s %s may be the id of an image, which the classic builder would take; want a name with a tag or a digest", n.StartLine, strings.ToUpper(n.Value), name)
		}
	}
	return nil
}

// mayBeID reports whether a name is an id, or may be one after its variables are
// replaced.
func (b *bases) mayBeID(name string) bool {
	for _, v := range variable.FindAllString(name, -1) {
		if _, value, ok := strings.Cut(strings.Trim(v, "${}"), ":"); ok && len(value) > 1 && idLike.MatchString(value[1:]) { // ${NAME:-value}
			return true
		}
	}
	plain := variable.ReplaceAllString(name, "")
	return idLike.MatchString(plain) || plain == "" && b.ids
}

func wordsOf(n *parser.Node) []string {
	var out []string
	for w := n.Next; w != nil; w = w.Next {
		out = append(out, unquoted(w.Value))
	}
	return out
}

// unquoted removes quotes and escapes, as the builder does after the parser.
func unquoted(word string) string {
	return strings.ToLower(strings.NewReplacer(`"`, "", "'", "", `\`, "", "`", "").Replace(word))
}
