package box

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// diskWatch measures the bytes that a sandbox has written to file systems
// without a quota, and calls over when they exceed the limit.
//
// The file systems report their total use at once, including writes of other
// processes of the host. diskWatch walks the sandbox's own folders only after
// that total has grown, or once in a while. A walk counts the files that were
// created or changed since the box began, by their change times, which the
// kernel sets and no process can forge. A walk stops as soon as the limit is
// passed, and walks together take a small part of the time only. A file that is
// open and has no name any more is not counted.
type diskWatch struct {
	limit  int64 // bytes
	since  unix.Timespec
	mounts []string
	over   func()

	bound atomic.Int64 // limit, or a higher value once the limit was passed
	last  time.Time
	took  time.Duration
	used  int64
	grown fill // fill at the last walk
}

// fill is the use of all watched file systems together.
type fill struct{ bytes, inodes int64 }

const (
	diskLook = time.Second
	// A walk takes at most 1/diskShare of the time while the file systems grow,
	// and 1/diskIdle while they do not.
	diskShare = 25
	diskIdle  = 200
	diskLeast = 30 * time.Second // between walks while the file systems do not grow
	// inodeCost is the cost of a file in addition to its blocks, in bytes.
	inodeCost = 1 << 10
)

func newDiskWatch(limit int64, mountinfo io.Reader, skip []string, over func()) *diskWatch {
	w := &diskWatch{limit: limit, mounts: writableMounts(mountinfo, skip), over: over}
	_ = unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &w.since)
	w.bound.Store(limit)
	w.grown = w.full()
	return w
}

// writableMounts lists the mount points of file systems on disks that are
// mounted read-write, except the ones at skip.
func writableMounts(mountinfo io.Reader, skip []string) []string {
	var out []string
	for s := bufio.NewScanner(mountinfo); s.Scan(); {
		before, after, ok := strings.Cut(s.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 6 || len(kind) < 1 || !slices.Contains(strings.Split(fields[5], ","), "rw") {
			continue
		}
		switch kind[0] {
		case "proc", "sysfs", "devpts", "mqueue", "tmpfs", "devtmpfs", "cgroup", "cgroup2": // not on a disk
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
		if slices.Contains(skip, at) {
			continue
		}
		if info, err := os.Lstat(at); err == nil && info.IsDir() {
			out = append(out, at)
		}
	}
	return out
}

// full reads the current use of the file systems.
func (w *diskWatch) full() (f fill) {
	for _, at := range w.mounts {
		var st unix.Statfs_t
		if unix.Statfs(at, &st) == nil {
			f.bytes += int64(st.Blocks-st.Bfree) * st.Bsize
			f.inodes += int64(st.Files - st.Ffree)
		}
	}
	return f
}

// run checks every diskLook until done is closed. busy reports whether a
// command runs.
func (w *diskWatch) run(done <-chan struct{}, busy func() bool) {
	tick := time.NewTicker(diskLook)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if busy() && w.due() && w.walk() {
			w.over()
		}
	}
}

// due reports whether it is time for a walk.
func (w *diskWatch) due() bool {
	now, since := w.full(), time.Since(w.last)
	step := max((w.bound.Load()-w.used)/16, 1<<20)
	if now.bytes-w.grown.bytes >= step || now.inodes-w.grown.inodes >= step/inodeCost {
		return since >= diskShare*w.took
	}
	return since >= max(diskIdle*w.took, diskLeast)
}

// walk measures and reports whether the bound is exceeded. It then raises the
// bound by a tenth of the limit, so that a later command, such as a verifier,
// can run.
func (w *diskWatch) walk() bool {
	start, now := time.Now(), w.full()
	m := measure{since: w.since, bound: w.bound.Load()}
	for _, at := range w.mounts {
		m.folder(unix.AT_FDCWD, at, 0)
	}
	w.last, w.took, w.used, w.grown = time.Now(), time.Since(start), m.bytes, now
	if m.bytes <= m.bound {
		return false
	}
	w.bound.Store(m.bytes + w.limit/10)
	return true
}

// measure adds up the files that were created or changed since a time.
type measure struct {
	since unix.Timespec
	bound int64
	bytes int64
}

// folder adds a folder and everything below it on the same mount. It does not
// follow links. A folder nested deeper than maxDepth exceeds the bound.
func (m *measure) folder(parent int, name string, depth int) {
	if depth > maxDepth {
		m.bytes = max(m.bytes, m.bound+1)
		return
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if errors.Is(err, syscall.EPERM) { // only the owner may use O_NOATIME
		fd, err = unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	var own unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &own) != nil {
		return
	}
	m.add(&own)
	for m.bytes <= m.bound {
		entries, err := dir.ReadDir(1000)
		if err != nil || !m.entries(fd, entries, &own, depth) {
			return
		}
	}
}

func (m *measure) entries(dir int, entries []fs.DirEntry, own *unix.Statx_t, depth int) bool {
	for _, e := range entries {
		if m.bytes > m.bound {
			return false
		}
		var st unix.Statx_t
		if unix.Statx(dir, e.Name(), unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st) != nil {
			continue
		}
		switch {
		case st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0: // a file or folder of another mount
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			m.add(&st)
		case st.Dev_major == own.Dev_major && st.Dev_minor == own.Dev_minor: // for kernels without the attribute
			m.folder(dir, e.Name(), depth+1)
		}
	}
	return true
}

// add counts one file. A file with several names counts in equal parts under
// each.
func (m *measure) add(st *unix.Statx_t) {
	if st.Ctime.Sec < m.since.Sec || st.Ctime.Sec == m.since.Sec && int64(st.Ctime.Nsec) < m.since.Nsec {
		return
	}
	links := int64(1)
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		links = max(int64(st.Nlink), 1)
	}
	m.bytes += (int64(st.Blocks)*512 + inodeCost) / links
}
