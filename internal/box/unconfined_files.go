package box

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/turngate/turngate/sandboxes"
)

// do runs the operations on files.
func (u *unconfined) do(h *header, in *frameReader, out *frameWriter) (any, error) {
	if err := u.check(h.Owner); err != nil {
		return nil, err
	}
	at, err := u.at(h.Path)
	if err != nil {
		return nil, err
	}
	mode := fs.FileMode(h.Mode).Perm()
	switch h.Op {
	case opRead:
		return nil, u.readFile(at, h.Path, h.Limit, out.stream(frameData))
	case opWrite:
		return nil, u.writeFile(at, mode, &dataReader{f: in})
	case opStat:
		info, err := u.root.Stat(at)
		if err != nil {
			return nil, err
		}
		return fileInfo(path.Base(h.Path), info), nil
	case opList:
		list, err := u.list(at, h.Path)
		if err != nil {
			return nil, err
		}
		return nil, json.NewEncoder(out.stream(frameData)).Encode(list)
	case opMkdir:
		return nil, u.root.MkdirAll(at, mode)
	case opRemove:
		return nil, u.root.RemoveAll(at)
	case opTarIn:
		r := &dataReader{f: in}
		if err := u.tarIn(at, r); err != nil {
			return nil, err
		}
		_, err := io.Copy(io.Discard, r) // padding after the archive
		return nil, err
	case opTarOut:
		return nil, u.tarOut(at, h.Path, sandboxes.TarOptions{Limit: h.Limit, Exclude: h.Exclude, Links: h.Links}, out.stream(frameData))
	case opEmpty, opRelease, opSpare, opFreeze, opThaw:
		return nil, &needsSandboxError{h.Op}
	default:
		return nil, unknown(h.Op)
	}
}

// at returns a path below the folder.
func (u *unconfined) at(name string) (string, error) {
	rest := name
	if path.IsAbs(name) {
		inside, ok := strings.CutPrefix(path.Clean(name)+"/", u.name+"/")
		if !ok {
			return "", &fs.PathError{Op: "open", Path: name, Err: errOutside}
		}
		rest = inside
	}
	return path.Join(".", rest), nil // the folder refuses a way out
}

func fileInfo(name string, info fs.FileInfo) sandboxes.FileInfo {
	return sandboxes.FileInfo{Name: name, Size: info.Size(), Mode: info.Mode()}
}

// open opens a regular file or a folder. It does not wait for the other end of a pipe.
func (u *unconfined) open(at string) (*os.File, fs.FileInfo, error) {
	f, err := u.root.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: at, Err: errors.New("it is neither a file nor a folder")}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func (u *unconfined) readFile(at, name string, limit int64, to io.Writer) error {
	f, info, err := u.open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	if info.IsDir() {
		return fmt.Errorf("%s is not a regular file", name)
	}
	n, err := io.Copy(to, io.LimitReader(f, limit+1))
	if err == nil && n > limit {
		return &tooLargeError{name, limit}
	}
	return err
}

// writeFile replaces a file in one step.
func (u *unconfined) writeFile(at string, mode fs.FileMode, r io.Reader) error {
	if err := u.root.MkdirAll(path.Dir(at), 0o755); err != nil {
		return err
	}
	half := path.Join(path.Dir(at), fmt.Sprintf(".turngate-%d", rand.Uint64()))
	err := u.create(half, mode, r)
	if err == nil {
		err = u.root.Rename(half, at)
	}
	if err != nil {
		_ = u.root.Remove(half)
	}
	return err
}

// create writes a new file.
func (u *unconfined) create(at string, mode fs.FileMode, r io.Reader) error {
	f, err := u.root.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Chmod(mode), f.Close())
}

func (u *unconfined) list(at, name string) ([]sandboxes.FileInfo, error) {
	f, _, err := u.open(at)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(sandboxes.MaxList + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > sandboxes.MaxList {
		return nil, &tooLargeError{name + ": the list of its files", sandboxes.MaxList}
	}
	out := make([]sandboxes.FileInfo, 0, len(entries))
	for _, e := range entries {
		if info, err := u.root.Lstat(path.Join(at, e.Name())); err == nil {
			out = append(out, fileInfo(e.Name(), info))
		}
	}
	slices.SortFunc(out, func(a, b sandboxes.FileInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// tarIn unpacks below a folder, which no entry leaves.
func (u *unconfined) tarIn(at string, r io.Reader) error {
	if err := u.root.MkdirAll(at, 0o755); err != nil {
		return err
	}
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := u.unpack(at, h, archive); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
}

func (u *unconfined) unpack(dir string, h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	if name == ".." || strings.HasPrefix(name, "../") || path.IsAbs(name) {
		return errOutside
	}
	at, mode := path.Join(dir, name), fs.FileMode(h.Mode).Perm() //nolint:gosec // Perm takes the bits of permissions
	switch h.Typeflag {
	case tar.TypeDir:
		return u.root.MkdirAll(at, mode|0o700)
	case tar.TypeReg, tar.TypeSymlink:
	default:
		return fmt.Errorf("entries of type %q are not unpacked", h.Typeflag)
	}
	if err := u.root.MkdirAll(path.Dir(at), 0o755); err != nil {
		return err
	}
	if err := u.root.RemoveAll(at); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeSymlink {
		return u.root.Symlink(h.Linkname, at)
	}
	return u.create(at, mode, content)
}

// tarOut packs what walker.tarOut packs.
func (u *unconfined) tarOut(at, name string, o sandboxes.TarOptions, to io.Writer) error {
	excluded, err := sandboxes.NewExcluder(o.Exclude)
	if err != nil {
		return err
	}
	out, left := tar.NewWriter(&limitedWriter{w: to, left: o.Limit, err: &tooLargeError{name, o.Limit}}), maxWalk
	err = fs.WalkDir(u.root.FS(), at, func(file string, d fs.DirEntry, err error) error {
		switch {
		case file == at && err != nil:
			return err
		case err != nil: // it has vanished or cannot be read
			return nil
		}
		if left--; left < 0 {
			return &tooLargeError{name + ": the list of its files", maxWalk}
		}
		inside := strings.TrimPrefix(strings.TrimPrefix(file, at), "/")
		if at == "." {
			inside = file
		}
		switch {
		case file == at && d.IsDir():
			inside = "."
		case file == at:
			inside = path.Base(name)
		case excluded.Excludes(inside) && d.IsDir():
			return fs.SkipDir
		case excluded.Excludes(inside):
			return nil
		}
		return u.pack(out, file, inside, d, o.Links)
	})
	return errors.Join(err, out.Close())
}

// pack packs one file. It skips one that vanishes or cannot be read.
func (u *unconfined) pack(out *tar.Writer, file, name string, d fs.DirEntry, links bool) error {
	if d.Type() == fs.ModeSymlink {
		target, err := u.root.Readlink(file)
		if !links || err != nil {
			return nil //nolint:nilerr // see above
		}
		return out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777})
	}
	if !d.IsDir() && !d.Type().IsRegular() {
		return nil
	}
	f, info, err := u.open(file)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	defer f.Close()
	h, err := tar.FileInfoHeader(nameless{info}, "")
	if err != nil {
		return err
	}
	if h.Name = name; info.IsDir() {
		h.Name += "/"
		return out.WriteHeader(h)
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(f, h.Size))
	if err != nil {
		return err
	}
	_, err = io.CopyN(out, zeros{}, h.Size-n) // it may have shrunk
	return err
}
