package box

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// account is a user of the sandbox, read from its own /etc/passwd.
type account struct {
	uid, gid uint32
	groups   []uint32
	name     string
	home     string
}

// lookupAccount resolves "user", "uid", "user:group" or "uid:gid". Empty means
// root. A numeric uid without an entry is used as it is.
func lookupAccount(spec string) (account, error) {
	user, group, hasGroup := strings.Cut(spec, ":")
	if user == "" {
		user = "root"
	}
	a := account{name: user, home: "/"}
	found := false
	for _, f := range readColons("/etc/passwd", 6) {
		if f[0] != user && f[2] != user {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		a.name, a.uid, a.gid, a.home, found = f[0], uint32(uid), uint32(gid), f[5], true
		break
	}
	if !found {
		uid, err := strconv.ParseUint(user, 10, 32)
		switch {
		case err == nil:
			a.uid, a.gid = uint32(uid), uint32(uid)
		case user == "root":
			a.home = "/root"
		default:
			return a, &userError{spec, fmt.Sprintf("user %q is not in the sandbox's /etc/passwd", user)}
		}
	}
	if err := a.lookupGroups(spec, group, hasGroup); err != nil {
		return a, err
	}
	for _, id := range []struct {
		what, ranges string
		id           uint32
	}{{"uid", "/proc/self/uid_map", a.uid}, {"gid", "/proc/self/gid_map", a.gid}} {
		if has := mapped(id.ranges, id.id); has != "" {
			return a, &userError{spec, fmt.Sprintf("this sandbox has no %s %d, only %s", id.what, id.id, has)}
		}
	}
	return a, nil
}

// lookupGroups resolves the account's group and, without one, its further
// groups.
func (a *account) lookupGroups(spec, group string, hasGroup bool) error {
	for _, f := range readColons("/etc/group", 4) {
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		if hasGroup && (f[0] == group || f[2] == group) {
			a.gid = uint32(gid)
			return nil
		}
		for _, member := range strings.Split(f[3], ",") {
			if !hasGroup && member == a.name {
				a.groups = append(a.groups, uint32(gid))
			}
		}
	}
	if hasGroup {
		gid, err := strconv.ParseUint(group, 10, 32)
		if err != nil {
			return &userError{spec, fmt.Sprintf("group %q is not in the sandbox's /etc/group", group)}
		}
		a.gid = uint32(gid)
	}
	return nil
}

// mapped returns "" if the user namespace has an id. Otherwise it returns the
// ids that the namespace has, as text. file is a uid_map or a gid_map.
func mapped(file string, id uint32) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return "" // the system calls decide
	}
	var has []string
	for line := range strings.Lines(string(data)) {
		var first, outside, count uint64
		if _, err := fmt.Sscan(line, &first, &outside, &count); err != nil || count == 0 {
			continue
		}
		if last := first + count - 1; last == first {
			has = append(has, strconv.FormatUint(first, 10))
		} else {
			has = append(has, fmt.Sprintf("%d to %d", first, last))
		}
		if uint64(id) >= first && uint64(id) < first+count {
			return ""
		}
	}
	return strings.Join(has, ", ")
}

// maxAccounts is the most bytes of a list of users or groups that are read.
const maxAccounts = 4 << 20

// readColons returns the lines of a colon-separated file that have at least n
// fields. An agent may have put a pipe or a huge file in its place.
func readColons(path string, n int) [][]string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	var out [][]string
	for s := bufio.NewScanner(io.LimitReader(f, maxAccounts)); s.Scan(); {
		if fields := strings.Split(s.Text(), ":"); len(fields) >= n {
			out = append(out, fields)
		}
	}
	return out
}
