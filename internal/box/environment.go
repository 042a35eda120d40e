package box

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/turngate/turngate/sandboxes"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// merge lays lists of variables over each other, as sandboxes.Environment does.
func merge(lists ...[]string) []string {
	at := map[string]int{}
	var out, direct []string
	for _, list := range lists {
		for _, kv := range list {
			k, v, _ := strings.Cut(kv, "=")
			if sandboxes.IsNoProxy(k) {
				direct = append(direct, v)
			}
			if i, ok := at[k]; ok {
				out[i] = kv
				continue
			}
			at[k] = len(out)
			out = append(out, kv)
		}
	}
	for k, i := range at {
		if sandboxes.IsNoProxy(k) {
			out[i] = k + "=" + sandboxes.NoProxy(direct)
		}
	}
	return out
}

func lookupEnv(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func lookPath(name, path, dir string) (string, error) {
	var tries []string
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		tries = []string{name}
	} else {
		for _, d := range filepath.SplitList(path) {
			if filepath.IsAbs(d) {
				tries = append(tries, filepath.Join(d, name))
			}
		}
	}
	reason := fs.ErrNotExist
	for _, t := range tries {
		info, err := os.Stat(t)
		if err != nil || info.IsDir() {
			continue
		}
		if info.Mode()&0o111 != 0 {
			return t, nil
		}
		reason = fs.ErrPermission
	}
	return "", fmt.Errorf("%w (looked in %s)", reason, strings.Join(tries, ", "))
}
