package box

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// account is a user of the sandbox, read from its own /etc/passwd.
type account struct {
	uid, gid uint32
	groups   []uint32
	name     string
	home     string
}

// lookupAccount resolves "user", "uid", "user:group" or "uid:gid"; empty is
// root. A uid that has no entry is taken as it is.
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
			return a, fmt.Errorf("user %q is not in the sandbox's /etc/passwd", user)
		}
	}
	for _, f := range readColons("/etc/group", 4) {
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		if hasGroup && (f[0] == group || f[2] == group) {
			a.gid = uint32(gid)
			return a, nil
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
			return a, fmt.Errorf("group %q is not in the sandbox's /etc/group", group)
		}
		a.gid = uint32(gid)
	}
	return a, nil
}

// readColons reads the lines of a colon-separated file that have at least n
// fields.
func readColons(path string, n int) [][]string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var out [][]string
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Split(s.Text(), ":"); len(fields) >= n {
			out = append(out, fields)
		}
	}
	return out
}
