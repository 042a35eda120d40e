package layout

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/distribution/reference"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	"github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/rawjson"
)

// Add adds an image to the OCI layout of the folder, which it makes if there is none, and
// returns the digest of its manifest. saved is an archive with this image alone, as `docker
// save` writes it. The layers stay as they are; layers that the layout has are not stored
// again. An earlier image of this name is replaced. An index that cannot be read, after a power
// failure for example, is begun anew.
func (d Dir) Add(ref string, saved io.Reader) (digest.Digest, error) {
	named, err := normal(ref)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return "", fmt.Errorf("make the folder of images: %w", err)
	}
	tmp, remove, err := d.scratch()
	if err != nil {
		return "", fmt.Errorf("make the folder of images: %w", err)
	}
	defer remove()
	a := &adding{layout: string(d), tmp: tmp, files: map[string]blob{}, links: map[string]string{}}
	if err := a.read(saved); err != nil {
		return "", fmt.Errorf("read the archive of image %s: %w", ref, err)
	}
	manifest, err := a.manifest()
	if err != nil {
		return "", fmt.Errorf("add image %s to %s: %w", ref, d, err)
	}
	manifest.Annotations = map[string]string{v1.AnnotationRefName: reference.FamiliarString(named)}
	if err := d.list(manifest, named); err != nil {
		return "", fmt.Errorf("add image %s to %s: %w", ref, d, err)
	}
	return manifest.Digest, nil
}

// scratchPrefix begins the names of folders that a process has while it adds an image.
const scratchPrefix = ".export-"

// scratch makes a folder for the files of an archive, and removes the folders of dead
// processes.
func (d Dir) scratch() (tmp string, remove func(), err error) {
	unlock, err := d.lock()
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	old, err := filepath.Glob(filepath.Join(string(d), scratchPrefix+"*"))
	if err != nil {
		return "", nil, err
	}
	for _, path := range old {
		if held, err := os.Open(path); err == nil {
			if unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				_ = os.RemoveAll(path)
			}
			_ = held.Close()
		}
	}
	if tmp, err = os.MkdirTemp(string(d), scratchPrefix); err != nil {
		return "", nil, err
	}
	held, err := os.Open(tmp)
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(tmp); _ = held.Close() }
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		remove()
		return "", nil, err
	}
	return tmp, remove, nil
}

// lock locks the layout against other processes.
func (d Dir) lock() (unlock func(), err error) {
	lock, err := os.OpenFile(filepath.Join(string(d), ".lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return func() { _ = lock.Close() }, nil
}

// adding is an archive of an engine that becomes a part of a layout.
type adding struct {
	layout string
	tmp    string
	files  map[string]blob   // by their names in the archive
	links  map[string]string // the targets of links in it
}

// blob is a file that is not in the layout yet.
type blob struct {
	path   string
	digest digest.Digest
	size   int64
	start  []byte
}

// read stores the files of the archive.
func (a *adding) read(saved io.Reader) error {
	for r := tar.NewReader(saved); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, saved) // the engine waits until all is read
			return err
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			a.links[name] = path.Clean(h.Linkname)
		case tar.TypeReg:
			if a.files[name], err = a.store(r); err != nil {
				return err
			}
		}
	}
}

func (a *adding) store(r io.Reader) (b blob, err error) {
	f, err := os.CreateTemp(a.tmp, "")
	if err != nil {
		return b, err
	}
	defer f.Close()
	start, sum := &bytes.Buffer{}, sha256.New()
	if b.size, err = io.CopyN(io.MultiWriter(f, sum, start), r, magic); errors.Is(err, io.EOF) {
		err = nil
	} else if err == nil {
		var more int64
		more, err = io.Copy(io.MultiWriter(f, sum), r)
		b.size += more
	}
	b.path, b.digest, b.start = f.Name(), digest.NewDigest(digest.SHA256, sum), start.Bytes()
	// After a power failure the layout must not have its name without its content.
	return b, errors.Join(err, f.Chmod(0o644), f.Sync())
}

// file returns a file of the archive by its name or that of a link to it.
func (a *adding) file(name string) (blob, error) {
	const most = 8
	for range most {
		if b, ok := a.files[name]; ok {
			return b, nil
		}
		name = a.links[name]
	}
	return blob{}, fmt.Errorf("the archive lacks %s", name)
}

// manifest stores the blobs of the image and its manifest.
func (a *adding) manifest() (v1.Descriptor, error) {
	var none v1.Descriptor
	list, err := a.file("manifest.json")
	if err != nil {
		return none, err
	}
	data, err := readFile(list.path)
	if err != nil {
		return none, err
	}
	var images []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(data, &images); err != nil {
		return none, fmt.Errorf("read manifest.json: %w", rawjson.Plain(err))
	}
	if len(images) != 1 {
		return none, fmt.Errorf("the archive has %d images, want 1", len(images))
	}
	config, err := a.file(path.Clean(images[0].Config))
	if err != nil {
		return none, err
	}
	if data, err = readFile(config.path); err != nil {
		return none, err
	}
	var about dockerspec.DockerOCIImage
	if err := json.Unmarshal(data, &about); err != nil {
		return none, fmt.Errorf("read the configuration: %w", rawjson.Plain(err))
	}
	out := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	if out.Config, err = a.put(config, v1.MediaTypeImageConfig); err != nil {
		return none, err
	}
	for _, name := range images[0].Layers {
		layer, err := a.file(path.Clean(name))
		if err != nil {
			return none, err
		}
		kind := v1.MediaTypeImageLayer
		switch {
		case isGzip(layer.start):
			kind = v1.MediaTypeImageLayerGzip
		case isZstd(layer.start):
			kind = v1.MediaTypeImageLayerZstd
		}
		stored, err := a.put(layer, kind)
		if err != nil {
			return none, err
		}
		out.Layers = append(out.Layers, stored)
	}
	if data, err = json.Marshal(out); err != nil {
		return none, err
	}
	made, err := a.store(bytes.NewReader(data))
	if err != nil {
		return none, err
	}
	m, err := a.put(made, v1.MediaTypeImageManifest)
	m.Platform = &about.Platform
	return m, err
}

// put moves a blob into the layout, unless the layout has it.
func (a *adding) put(b blob, mediaType string) (v1.Descriptor, error) {
	out := v1.Descriptor{MediaType: mediaType, Digest: b.digest, Size: b.size}
	to, err := blobPath(a.layout, b.digest)
	if err != nil {
		return out, err
	}
	if info, err := os.Stat(to); err == nil && info.Size() == b.size {
		return out, nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return out, err
	}
	return out, os.Rename(b.path, to)
}

// list writes an image into the index of the layout. Other processes may do so, too.
func (d Dir) list(m v1.Descriptor, named reference.Named) error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	if _, err := os.Stat(filepath.Join(string(d), v1.ImageIndexFile)); err == nil {
		old, err := readIndex(string(d))
		var broken *json.SyntaxError
		switch {
		case err == nil:
			index = old
		case !errors.As(err, &broken):
			return err
		}
	}
	index.Manifests = slices.DeleteFunc(index.Manifests, func(old v1.Descriptor) bool {
		has, err := normal(nameOf(old))
		return err == nil && has.String() == named.String()
	})
	index.Manifests = append(index.Manifests, m)
	if err := d.replace(v1.ImageLayoutFile, v1.ImageLayout{Version: v1.ImageLayoutVersion}); err != nil {
		return err
	}
	return d.replace(v1.ImageIndexFile, index)
}

// replace writes a JSON file at once. The caller holds the lock of the layout.
func (d Dir) replace(name string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	part := filepath.Join(string(d), "."+name+".part")
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(string(d), name))
}
