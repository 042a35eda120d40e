package box

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// steady sets back those properties of the box that a process of root in the
// sandbox can change: the processors that it may use, and its rank among the
// processes that the kernel kills for lack of memory.
type steady struct {
	processors unix.CPUSet
	oom        []byte // content of oom_score_adj
}

const oomScore = "/proc/self/oom_score_adj"

func newSteady() *steady {
	s := &steady{}
	_ = unix.SchedGetaffinity(0, &s.processors)
	s.oom, _ = os.ReadFile(oomScore)
	return s
}

// restore acts on each thread, because each has processors of its own.
func (s *steady) restore() {
	if now, err := os.ReadFile(oomScore); err == nil && string(now) != string(s.oom) {
		_ = os.WriteFile(oomScore, s.oom, 0)
	}
	if s.processors.Count() == 0 {
		return
	}
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		var now unix.CPUSet
		tid, err := strconv.Atoi(t.Name())
		if err != nil || unix.SchedGetaffinity(tid, &now) != nil || now == s.processors {
			continue
		}
		_ = unix.SchedSetaffinity(tid, &s.processors)
	}
}

// reserveThreads starts n threads before any command runs: as many system calls that
// block at once. The runtime keeps the threads of ended ones, and it ends the program
// if it needs a further one when the limit of processes is reached.
func reserveThreads(n int) error {
	var hold [2]int
	if err := syscall.Pipe2(hold[:], syscall.O_CLOEXEC); err != nil {
		return fmt.Errorf("reserve threads: %w", err)
	}
	var begun, all sync.WaitGroup
	for range n {
		begun.Add(1)
		all.Go(func() {
			begun.Done()
			_, _ = syscall.Read(hold[0], make([]byte, 1)) // blocks until the pipe is closed
		})
	}
	begun.Wait()
	_ = syscall.Close(hold[1])
	all.Wait()
	_ = syscall.Close(hold[0])
	return nil
}
