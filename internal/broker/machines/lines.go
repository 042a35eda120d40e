package machines

import (
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lines are the open lines of a process, by their random names.
type lines struct {
	mu    sync.Mutex
	open  map[string]*line
	ended map[string]ending // names that are not used again
}

// ending is the end of a line.
type ending struct {
	at  time.Time
	out func(encoded []byte) // as that of the line
}

// endedTime is the time for which the name of an ended line is remembered. It is above
// the silence after which every side gives a line up.
const endedTime = 5 * time.Minute

func (s *lines) get(name string) *line {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[name]
}

// add keeps a line. It returns false if the name was used before, or if most lines are
// open; 0: no bound.
func (s *lines) add(name string, l *line, most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open, s.ended = map[string]*line{}, map[string]ending{}
	}
	if s.open[name] != nil || s.ended[name].out != nil || most > 0 && len(s.open) >= most {
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
	s.ended[name] = ending{now, l.out}
}

// late returns the way to the other side of a line that has ended; nil: no line had this
// name.
func (s *lines) late(name string) (out func(encoded []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[name].out
}

func (s *lines) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// pair returns two connected ends.
func pair() (line *net.UnixConn, other *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	other = os.NewFile(uintptr(fds[1]), "line")
	ours := os.NewFile(uintptr(fds[0]), "line")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		other.Close()
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	return conn.(*net.UnixConn), other, nil
}
