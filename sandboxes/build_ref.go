package sandboxes

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/turngate/turngate/schema"
)

// BuildRepo is the repository of the images that builds leave.
const BuildRepo = "turngate-build"

// Refs returns the name of the image of a build, and its name as a build of the worker's
// operator. The same files, settings and network give the same name on every host, and for
// every trainer unless a step may mount a trainer's cache. network is that of BuildLimits.
func (b *Build) Refs(repo, network string) (own, shared string, err error) {
	files, mounts, err := digest(b.Tar)
	if err != nil {
		return "", "", fmt.Errorf("read the build context: %w", err)
	}
	settings, _ := json.Marshal([]any{"1", b.File(), b.Target, b.Args, cmp.Or(network, schema.NetworkOpen)}) // only strings: never fails
	tag := func(space string) string {
		h := sha256.New()
		fmt.Fprintf(h, "%d\n%s%s%s", len(settings), settings, space, files)
		return repo + ":" + hex.EncodeToString(h.Sum(nil)[:16])
	}
	own, shared = tag(""), tag("")
	if b.Trainer != "" && mounts {
		own = tag(b.CacheSpace() + "\n") // the content of a cache can change the image
	}
	return own, shared, nil
}

// File returns the path of the Dockerfile in the context.
func (b *Build) File() string { return path.Clean(cmp.Or(b.Dockerfile, "Dockerfile")) }

// CacheSpace returns the namespace of the caches that RUN mounts in a build. One
// trainer's build must not change the files of another's.
func (b *Build) CacheSpace() string {
	if b.Trainer == "" {
		return "operator"
	}
	return "trainer-" + b.Trainer
}

// digest returns the sha256 of a build context and reports whether a step of its
// Dockerfile may mount something.
func digest(context Content) (sum []byte, mounts bool, err error) {
	const mount = "--mount"
	h := sha256.New()
	buf := make([]byte, 64<<10)
	end := 0 // of the bytes kept of the last round, which may begin the word
	for from := io.NewSectionReader(context, 0, context.Size()); ; {
		n, err := from.Read(buf[end:])
		h.Write(buf[end : end+n])
		mounts = mounts || bytes.Contains(buf[:end+n], []byte(mount))
		if errors.Is(err, io.EOF) {
			return h.Sum(nil), mounts, nil
		}
		if err != nil {
			return nil, false, err
		}
		end = copy(buf, buf[max(end+n-len(mount), 0):end+n])
	}
}
