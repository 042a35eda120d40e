package collect

import "strings"

// names maps the name of each artifact to the source of its rule; empty: no rule names it.
type names map[string]string

// claim gives a name to a source. It reports whether an earlier artifact has the name, a
// parent of it or a name below it, and by has its source as text.
func (n names) claim(name, source string) (by string, taken bool) {
	for have, from := range n {
		if from == source && from != "" {
			continue
		}
		if have == name || strings.HasPrefix(have, name+"/") || strings.HasPrefix(name, have+"/") {
			if from != "" {
				by = " by " + from
			}
			return by, true
		}
	}
	n[name] = source
	return "", false
}
