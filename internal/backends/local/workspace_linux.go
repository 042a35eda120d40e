package local

import (
	"fmt"
	"os"
	"syscall"
)

// owner is the user of a workspace, as ids of the host.
type owner struct{ uid, gid int }

// ownerOf returns the owner of a workspace. It refuses the host's root, which could change
// settings of the kernel as root of the sandbox.
func ownerOf(dir string) (*owner, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("look at the workspace: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return nil, fmt.Errorf("the workspace %s is not a folder", dir)
	}
	o := &owner{int(st.Uid), int(st.Gid)}
	switch all := ownsAllUsers(); {
	case all && (o.uid == 0 || o.gid == 0):
		return nil, fmt.Errorf("the workspace %s belongs to the user or the group root: give it to another one, such as by chown 1000:1000 %s", dir, dir)
	case !all && o.uid != os.Geteuid():
		return nil, fmt.Errorf("the workspace %s belongs to the user %d, want this process's user %d", dir, o.uid, os.Geteuid())
	}
	return o, nil
}
