package masks

import "bytes"

// Search finds a key in a text, of which more may come.
type Search struct {
	key string
	at  []int // the place in the text from which each block of the key is looked for
}

// Part is a part of the text that has the key or a part of it.
type Part struct {
	Block    int // of the key, with which it was found
	From, To int
}

// NewSearch returns a search for a key from the beginning of a text.
func NewSearch(key string) *Search { return &Search{key, make([]int, len(key)/shortestKey)} }

// Parts finds the key in the text, and its parts of at least shortestPart bytes. Each of
// them has one of the key's blocks of shortestKey bytes, in which Parts looks for it. If
// the text is not whole, Parts leaves out each part that later bytes may make longer. It
// returns each part once for each block.
func (s *Search) Parts(text []byte, whole bool) (found []Part) {
	least := min(len(s.key), shortestPart)
	for b := range s.at {
		off := b * shortestKey
		block := []byte(s.key[off : off+shortestKey])
		for {
			i := bytes.Index(text[s.at[b]:], block)
			if i < 0 {
				s.at[b] = max(s.at[b], len(text)-shortestKey+1)
				break
			}
			from, to := s.at[b]+i, s.at[b]+i+shortestKey
			if !whole && from+len(s.key)-off > len(text) {
				s.at[b] = from
				break
			}
			s.at[b] = from + 1
			for first := off; from > 0 && first > 0 && text[from-1] == s.key[first-1]; from-- {
				first--
			}
			for next := off + shortestKey; to < len(text) && next < len(s.key) && text[to] == s.key[next]; to++ {
				next++
			}
			if to-from >= least {
				found = append(found, Part{b, from, to})
				s.at[b] = max(s.at[b], to)
			}
		}
	}
	return found
}

// Settled returns the number of bytes of the text in which no later part can begin, and
// which Parts does not need any more.
func (s *Search) Settled() int {
	n := s.at[0]
	for b, at := range s.at {
		n = min(n, at-b*shortestKey)
	}
	return max(n, 0)
}

// Forget says that the text begins n bytes later from now on; n is at most Settled.
func (s *Search) Forget(n int) {
	for b := range s.at {
		s.at[b] -= n
	}
}

// Hide masks the bytes of the part that are in the text.
func (p Part) Hide(text []byte) {
	for i := max(p.From, 0); i < min(p.To, len(text)); i++ {
		text[i] = '*'
		if n := i - p.From; n < len(masked) {
			text[i] = masked[n]
		}
	}
}
