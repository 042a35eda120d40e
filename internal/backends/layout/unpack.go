package layout

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go/v1"
)

// Bounds of the files of an image.
const (
	maxBytes  = 128 << 30 // of all layers without compression, and of all files
	maxFiles  = 5_000_000 // and folders, also folders without an entry of their own
	maxNames  = 512 << 20 // bytes of all names of a layer, which are kept in memory
	maxWindow = 128 << 20 // memory of a zstd decoder
)

// unpacking is the state of an image that is unpacked.
type unpacking struct {
	root    string
	owners  bool  // files get the owners that the layers name; otherwise that of this process
	bytes   int64 // of the layers
	content int64 // bytes of the files; the layers lack the bytes of sparse files
	files   int
	names   int    // bytes of the names of this layer
	last    string // name before this one
}

// errTooLarge means that an image is beyond the bounds.
var errTooLarge = fmt.Errorf("its layers have more than %d bytes or %d files, or one has more than %d bytes of names", int64(maxBytes), maxFiles, maxNames)

// unpack applies the layers to an empty folder. No name or link in a layer leads out of it.
func (u *unpacking) unpack(ctx context.Context, i *Image) error {
	for n, layer := range i.layers {
		if err := u.layer(ctx, i.layout, layer, i.diffs[n]); err != nil {
			return fmt.Errorf("layer %d of %d: %w", n+1, len(i.layers), err)
		}
	}
	return nil
}

// layer applies one layer and checks both of its digests.
func (u *unpacking) layer(ctx context.Context, layout string, layer v1.Descriptor, diff digest.Digest) error {
	path, err := blobPath(layout, layer.Digest)
	if err != nil {
		return err
	}
	if err := diff.Validate(); err != nil {
		return fmt.Errorf("the digest %q: %w", diff, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	u.names, u.last = 0, ""
	stored := layer.Digest.Verifier()
	plain, done, err := decompress(io.TeeReader(f, stored))
	if err != nil {
		return err
	}
	defer done()
	content := diff.Verifier()
	files := io.TeeReader(&bounded{plain, &u.bytes}, content)
	options := []archive.ApplyOpt{archive.WithFilter(u.filter)}
	if !u.owners {
		options = append(options, archive.WithNoSameOwner())
	}
	if _, err := archive.Apply(ctx, u.root, files, options...); err != nil {
		return err
	}
	// The digests include padding after the archive.
	if _, err := io.Copy(io.Discard, files); err != nil {
		return err
	}
	if _, err := io.Copy(stored, f); err != nil {
		return err
	}
	if !stored.Verified() || !content.Verified() {
		return errors.New("it has other content than its digest says")
	}
	return nil
}

// filter counts files and changes their headers before they are made.
func (u *unpacking) filter(h *tar.Header) (bool, error) {
	u.files += newParts(u.last, h.Name)
	u.names += len(h.Name)
	if u.files > maxFiles || u.names > maxNames || h.Size > maxBytes-u.content {
		return false, errTooLarge
	}
	u.content += h.Size
	u.last = h.Name
	switch h.Typeflag {
	case tar.TypeBlock, tar.TypeChar:
		return false, nil // a sandbox has its own devices
	}
	// The folder is on the host. Commands in a sandbox gain no rights from a program, so
	// they miss nothing.
	const set = 0o6000
	// Attributes can give rights, and are marks of overlay file systems. Headers of folders
	// stay in memory, so they get copies of their names without the rest.
	*h = tar.Header{
		Typeflag: h.Typeflag, Name: strings.Clone(h.Name), Linkname: strings.Clone(h.Linkname), Size: h.Size, Mode: h.Mode &^ set, Uid: h.Uid, Gid: h.Gid,
		ModTime: h.ModTime, AccessTime: h.AccessTime,
	}
	if h.Typeflag == tar.TypeDir {
		h.Linkname = ""
	}
	if !u.owners {
		// This user has no other right to its files. In the sandbox it is root and needs none.
		switch h.Typeflag {
		case tar.TypeDir:
			h.Mode |= 0o700
		case tar.TypeReg:
			h.Mode |= 0o400
		}
	}
	return true, nil
}

// newParts returns the number of files and folders on the path name that are not on the
// path last. The others exist already.
func newParts(last, name string) int {
	last += "/"
	shared := 0
	for i := 0; i < len(last) && i < len(name) && last[i] == name[i]; i++ {
		if name[i] == '/' {
			shared = i + 1
		}
	}
	return strings.Count(name[shared:], "/") + 1
}

// magic is the number of bytes that tell the compression of a layer.
const magic = 4

func isGzip(start []byte) bool { return bytes.HasPrefix(start, []byte{0x1f, 0x8b}) }
func isZstd(start []byte) bool { return bytes.HasPrefix(start, []byte{0x28, 0xb5, 0x2f, 0xfd}) }

// decompress returns the content of a layer, which its first bytes tell.
func decompress(r io.Reader) (plain io.Reader, done func(), err error) {
	in := bufio.NewReaderSize(r, 1<<20)
	start, err := in.Peek(magic)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case isGzip(start):
		plain, err := gzip.NewReader(in)
		return plain, func() {}, err
	case isZstd(start):
		plain, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, nil, err
		}
		return plain, plain.Close, nil
	default:
		return in, func() {}, nil
	}
}

// bounded counts the bytes of all layers.
type bounded struct {
	r    io.Reader
	read *int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if *b.read += int64(n); *b.read > maxBytes {
		return n, errTooLarge
	}
	return n, err
}
