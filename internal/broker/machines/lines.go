package machines

import (
	"sync"
	"time"

	"github.com/turngate/turngate/internal/line"
)

// lines are the open lines of a process, by their random names.
type lines struct {
	mu    sync.Mutex
	open  map[string]opened
	ended map[string]ending // names that are not used again
}

// opened is an open line.
type opened struct {
	*line.Line
	short bool // it has one short operation, and takes no slot
}

// ending is the end of a line.
type ending struct {
	at  time.Time
	out func(encoded []byte) // as that of the line
}

// endedTime is the time for which the name of an ended line is remembered. It is above
// the silence after which every side gives a line up.
const endedTime = 5 * time.Minute

func (s *lines) get(name string) *line.Line {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[name].Line
}

// add keeps a line. It returns false if the name was used before, or if most lines of its
// kind, short or not, are open; 0: no bound.
func (s *lines) add(name string, l opened, most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open, s.ended = map[string]opened{}, map[string]ending{}
	}
	if s.open[name].Line != nil || s.ended[name].out != nil || most > 0 && s.number(l.short) >= most {
		return false
	}
	s.open[name] = l
	return true
}

func (s *lines) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, l := time.Now(), s.open[name]
	delete(s.open, name)
	for old, e := range s.ended {
		if now.Sub(e.at) > endedTime {
			delete(s.ended, old)
		}
	}
	s.ended[name] = ending{now, l.Out()} // not the line, which has its bytes
}

// late returns the way to the other side of a line that has ended; nil: no line had this
// name.
func (s *lines) late(name string) (out func(encoded []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[name].out
}

// knows reports whether a line of this name is or was open.
func (s *lines) knows(name string) bool { return s.get(name) != nil || s.late(name) != nil }

// count returns the number of open lines that take a slot.
func (s *lines) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.number(false)
}

func (s *lines) number(short bool) (n int) {
	for _, l := range s.open {
		if l.short == short {
			n++
		}
	}
	return n
}
