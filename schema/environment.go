package schema

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// checkEnv checks environment variables: names that a shell can hold, values
// without NUL.
func checkEnv(field string, env map[string]string) error {
	if err := checkEnvLike(field, env, maxList); err != nil {
		return err
	}
	for k := range env {
		for i := range len(k) {
			c := k[i]
			if !(c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || i > 0 && c >= '0' && c <= '9') {
				return invalid(field, k, "a variable's name has letters, digits and _, and does not begin with a digit")
			}
		}
	}
	return nil
}

func checkEnvLike(field string, m map[string]string, limit int) error {
	if err := checkCount(field, len(m), limit); err != nil {
		return err
	}
	for k, v := range m {
		if err := checkName(field, k); err != nil {
			return err
		}
		if err := checkText(fmt.Sprintf("%s[%s]", field, k), v, maxText); err != nil {
			return err
		}
	}
	return nil
}

// maxUID is the largest uid and gid of Linux. The number above it means "no
// change" in system calls.
const maxUID = 1<<32 - 2

// CheckUser accepts a user's name or uid, optionally with ":group".
func CheckUser(field, s string) error {
	if s == "" {
		return nil
	}
	user, group, grouped := strings.Cut(s, ":")
	if len(s) > 64 || !userOrGroup(user) || grouped && !userOrGroup(group) {
		return invalid(field, s, "want a user name or uid, optionally :group")
	}
	return nil
}

// userOrGroup accepts a name or a number up to maxUID.
func userOrGroup(s string) bool {
	if s == "" || s[0] == '-' {
		return false
	}
	digits := true
	for i := range len(s) {
		c := s[i]
		digits = digits && c >= '0' && c <= '9'
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_-.", c) >= 0) {
			return false
		}
	}
	if !digits {
		return true
	}
	n, err := strconv.ParseUint(s, 10, 32)
	return err == nil && n <= maxUID
}

// CheckPath checks an absolute path in a sandbox: clean, without ".." and NUL.
func CheckPath(field, p string) error {
	if err := checkText(field, p, 4096); err != nil {
		return err
	}
	if !path.IsAbs(p) || path.Clean(p) != p {
		return invalid(field, p, `want an absolute path without "..", "." or double slashes`)
	}
	return nil
}
