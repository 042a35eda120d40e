package box

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// maxNamed is the most commands that a release names, and maxName the most bytes of
// each.
const (
	maxNamed = 20
	maxName  = 80
)

// release kills the processes that use one of the folders, except the box, spared
// processes and commands that the worker started. Only the first process of a
// namespace may call it.
func (p *processes) release(folders []string) (sandboxes.Released, error) {
	var out sandboxes.Released
	if os.Getpid() != 1 {
		return out, errors.New("the box is not the sandbox's first process")
	}
	places := newPlaces(folders)
	ended := map[int]uint64{} // pid to start time
	for range 200 {
		killed := false
		out.Left = nil
		for _, pr := range p.strangers() {
			name := commandLine(pr.pid)
			started, ending := ended[pr.pid]
			switch {
			case places.usedBy(pr.pid):
				_ = syscall.Kill(pr.pid, syscall.SIGKILL)
				killed = true
				ended[pr.pid] = pr.started
				out.Ended = add(out.Ended, name)
			case !ending || started != pr.started: // one that ends has no folder and no command line any more
				out.Left = add(out.Left, name)
			}
		}
		if !killed {
			p.keepAll()
			return out, nil
		}
		time.Sleep(5 * time.Millisecond) // the kernel needs a moment; then check again
	}
	out.Left = nil // they start others that use the folders, without an end
	return out, p.killAll()
}

func add(names []string, name string) []string {
	if name == "" || len(names) >= maxNamed || slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// keepAll notes the processes that run now: a command that starts later does not own
// them.
func (p *processes) keepAll() {
	kept := map[int]uint64{}
	for _, pr := range listProcesses() {
		kept[pr.pid] = pr.started
	}
	p.mu.Lock()
	p.kept = kept
	p.mu.Unlock()
}

// strangers lists the processes that neither the worker nor the box started, and
// that are not spared.
func (p *processes) strangers() []procInfo {
	p.mu.Lock()
	spared := maps.Clone(p.spared)
	ours := map[int]bool{os.Getpid(): true}
	for pid := range p.waiting { // also the first processes of nested namespaces
		ours[pid] = true
	}
	sessions := map[int]bool{}
	for _, j := range p.active {
		sessions[j.pid] = true
	}
	p.mu.Unlock()
	var out []procInfo
	for _, pr := range listProcesses() {
		if started, ok := spared[pr.pid]; pr.dead || ours[pr.pid] || sessions[pr.session] || ok && started == pr.started {
			continue
		}
		out = append(out, pr)
	}
	return out
}

// commandLine returns the start of a process's command; empty if it has ended.
func commandLine(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	text := strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(data), "\x00", " "), "?"))
	if text == "" {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		text = strings.TrimSpace(strings.ToValidUTF8(string(name), "?"))
	}
	return schema.Clip(text, maxName)
}

// places are folders, by their paths and by their numbers in the kernel.
type places struct {
	paths  []string
	inodes map[[2]uint64]bool // device and inode
}

func newPlaces(folders []string) places {
	p := places{inodes: map[[2]uint64]bool{}}
	for _, dir := range folders {
		p.paths = append(p.paths, dir)
		if real, err := filepath.EvalSymlinks(dir); err == nil && real != dir {
			p.paths = append(p.paths, real)
		}
		var st unix.Stat_t
		if unix.Stat(dir, &st) == nil {
			// The kernel prints the device of a watch in its own form.
			dev := uint64(unix.Major(st.Dev))<<20 | uint64(unix.Minor(st.Dev))
			p.inodes[[2]uint64{dev, st.Ino}] = true
		}
	}
	return p
}

func (p places) has(path string) bool {
	return slices.ContainsFunc(p.paths, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
}

// usedBy reports whether a process has one of the folders, or a file in it, as its
// working directory, root, program, open file, mapped file or watch.
func (p places) usedBy(pid int) bool {
	proc := fmt.Sprintf("/proc/%d/", pid)
	for _, link := range []string{"cwd", "root", "exe"} {
		if at, err := os.Readlink(proc + link); err == nil && p.has(at) {
			return true
		}
	}
	open, _ := os.ReadDir(proc + "fd")
	for _, fd := range open {
		at, err := os.Readlink(proc + "fd/" + fd.Name())
		if err == nil && (p.has(at) || at == "anon_inode:inotify" && p.watched(proc+"fdinfo/"+fd.Name())) {
			return true
		}
	}
	maps, _ := os.ReadFile(proc + "maps")
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		if i := strings.IndexByte(lines.Text(), '/'); i >= 0 && p.has(lines.Text()[i:]) {
			return true
		}
	}
	return false
}

// watched reports whether an inotify descriptor watches one of the folders.
func (p places) watched(info string) bool {
	data, _ := os.ReadFile(info)
	for line := range strings.Lines(string(data)) {
		var ino, dev uint64
		for _, field := range strings.Fields(line) {
			if v, ok := strings.CutPrefix(field, "ino:"); ok {
				ino, _ = strconv.ParseUint(v, 16, 64)
			} else if v, ok := strings.CutPrefix(field, "sdev:"); ok {
				dev, _ = strconv.ParseUint(v, 16, 64)
			}
		}
		if ino != 0 && p.inodes[[2]uint64{dev, ino}] {
			return true
		}
	}
	return false
}
