package box

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// stdio is a connection over standard input and output.
type stdio struct {
	io.Reader
	in, out *os.File
}

// openStdio moves standard input and output to other descriptors. A write to an output
// without a reader then fails, where it would end the process as descriptor 1, and Close
// ends a read.
func openStdio(ahead io.Reader) (io.ReadWriteCloser, error) {
	var moved [2]*os.File
	for fd, name := range []string{"stdin", "stdout"} {
		to, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err == nil {
			err = unix.SetNonblock(to, true) // before NewFile, which asks for it
		}
		if err != nil {
			return nil, fmt.Errorf("move %s: %w", name, err)
		}
		moved[fd] = os.NewFile(uintptr(to), name)
	}
	nothing, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("replace standard input and output: %w", err)
	}
	defer nothing.Close()
	for fd := range moved {
		if err := unix.Dup3(int(nothing.Fd()), fd, 0); err != nil {
			return nil, fmt.Errorf("replace standard input and output: %w", err)
		}
	}
	s := &stdio{Reader: moved[0], in: moved[0], out: moved[1]}
	if ahead != nil {
		s.Reader = io.MultiReader(ahead, s.in)
	}
	return s, nil
}

func (s *stdio) Write(p []byte) (int, error) { return s.out.Write(p) }

func (s *stdio) Close() error {
	s.in.Close()
	return s.out.Close()
}
