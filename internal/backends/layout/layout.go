// Package layout reads and writes images in OCI layouts on disk, and unpacks them. It needs
// no engine.
package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/distribution/reference"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/turngate/turngate/internal/rawjson"
)

// ErrNoImage means that no layout of the folder has the image.
var ErrNoImage = errors.New("no such image")

// ErrFolder means that this process cannot use the folder of images, or that of their
// unpacked files.
var ErrFolder = errors.New("cannot use a folder of this host")

// PlatformError means that an image is for another system or processor.
type PlatformError struct{ Want, Has string }

func (e *PlatformError) Error() string {
	return fmt.Sprintf("it is for %s, and this host runs %s", e.Has, e.Want)
}

// Bounds of the files of a layout that are read into memory.
const (
	maxJSON    = 4 << 20
	maxImages  = 10_000 // manifests that an index lists
	maxLayers  = 512
	maxNesting = 3 // indexes within indexes
)

// rootFolder is the folder with an image's files below the folder of its name, in
// place of a layout.
const rootFolder = "rootfs"

// Dir is a folder of images: an OCI layout, or a folder of OCI layouts. An image can be a plain
// folder of files, too: DIR/NAME/rootfs, such as DIR/debian:12/rootfs.
type Dir string

// Image is an image of a Dir.
type Image struct {
	Ref    string
	Config dockerspec.DockerOCIImageConfig // empty for a plain folder
	// Root is a folder with the files of the image; empty: they are in the layers of a
	// layout, see Roots.
	Root string
	// Digest is that of the manifest; empty with a Root.
	Digest digest.Digest

	layout string
	layers []v1.Descriptor
	diffs  []digest.Digest // of the layers without compression
}

// Find returns the image with this reference, such as debian:12. An error that wraps
// ErrNoImage means that there is none.
func (d Dir) Find(ref string) (*Image, error) {
	named, err := normal(ref)
	if err != nil {
		return nil, err
	}
	if root := filepath.Join(string(d), reference.FamiliarString(named), rootFolder); isFolder(root) {
		return &Image{Ref: ref, Root: root}, nil
	}
	layouts, err := d.layouts()
	if err != nil {
		return nil, err
	}
	for _, at := range layouts {
		index, err := readIndex(at)
		if err != nil {
			return nil, err
		}
		for _, m := range index.Manifests {
			if !isNamed(m, named) {
				continue
			}
			i, err := open(at, m)
			if err != nil {
				return nil, fmt.Errorf("image %s in %s: %w", ref, at, err)
			}
			i.Ref = ref
			return i, nil
		}
	}
	return nil, fmt.Errorf("%s has %w", d, ErrNoImage)
}

// Refs returns the references of all images in layouts.
func (d Dir) Refs() ([]string, error) {
	layouts, err := d.layouts()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, at := range layouts {
		index, err := readIndex(at)
		if err != nil {
			return nil, err
		}
		for _, m := range index.Manifests {
			if named, err := normal(nameOf(m)); err == nil && !slices.Contains(out, reference.FamiliarString(named)) {
				out = append(out, reference.FamiliarString(named))
			}
		}
	}
	return out, nil
}

// layouts returns the folders that are OCI layouts.
func (d Dir) layouts() ([]string, error) {
	if !isFolder(string(d)) {
		return nil, fmt.Errorf("%w: %s, the folder of images, does not exist", ErrFolder, d)
	}
	var out []string
	inner, err := os.ReadDir(string(d))
	if err != nil {
		return nil, fmt.Errorf("%w: list the images of %s: %w", ErrFolder, d, err)
	}
	at := []string{string(d)}
	for _, e := range inner {
		at = append(at, filepath.Join(string(d), e.Name()))
	}
	for _, layout := range at {
		if _, err := os.Stat(filepath.Join(layout, v1.ImageIndexFile)); err == nil {
			out = append(out, layout)
		}
	}
	return out, nil
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// normal returns the full form of a reference, with the tag latest if it has neither a tag
// nor a digest.
func normal(ref string) (reference.Named, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return nil, fmt.Errorf("%q is not a reference of an image such as debian:12: %w", ref, err)
	}
	return reference.TagNameOnly(named), nil
}

// containerdName is the annotation with the full name of an image in layouts that Docker
// and containerd write. Their name by the standard is the tag alone.
const containerdName = "io.containerd.image.name"

func nameOf(m v1.Descriptor) string {
	if name := m.Annotations[containerdName]; name != "" {
		return name
	}
	return m.Annotations[v1.AnnotationRefName]
}

// isNamed reports whether a manifest has a name, or the digest in it.
func isNamed(m v1.Descriptor, want reference.Named) bool {
	if canonical, ok := want.(reference.Canonical); ok && canonical.Digest() == m.Digest {
		return true
	}
	has, err := normal(nameOf(m))
	return err == nil && has.String() == want.String()
}

func readIndex(layout string) (index v1.Index, err error) {
	path := filepath.Join(layout, v1.ImageIndexFile)
	data, err := readFile(path)
	if err == nil {
		err = rawjson.Plain(json.Unmarshal(data, &index))
	}
	if err == nil && len(index.Manifests) > maxImages {
		err = fmt.Errorf("it lists more than %d images", maxImages)
	}
	var broken *json.SyntaxError
	if errors.As(err, &broken) {
		err = fmt.Errorf("%w: export its images again", err)
	}
	if err != nil {
		return index, fmt.Errorf("read %s: %w", path, err)
	}
	return index, nil
}

// open reads the manifest and the configuration of an image.
func open(layout string, m v1.Descriptor) (*Image, error) {
	for range maxNesting {
		if m.MediaType != v1.MediaTypeImageIndex && m.MediaType != "application/vnd.docker.distribution.manifest.list.v2+json" {
			break
		}
		var index v1.Index
		if err := readBlob(layout, m.Digest, &index); err != nil {
			return nil, err
		}
		i := slices.IndexFunc(index.Manifests, func(m v1.Descriptor) bool {
			return m.Platform == nil || m.Platform.OS == "linux" && m.Platform.Architecture == runtime.GOARCH
		})
		if i < 0 {
			return nil, &PlatformError{thisPlatform(), "other platforms"}
		}
		m = index.Manifests[i]
	}
	var manifest v1.Manifest
	if err := readBlob(layout, m.Digest, &manifest); err != nil {
		return nil, err
	}
	var config dockerspec.DockerOCIImage
	if err := readBlob(layout, manifest.Config.Digest, &config); err != nil {
		return nil, err
	}
	i := &Image{Config: config.Config, Digest: m.Digest, layout: layout, layers: manifest.Layers, diffs: config.RootFS.DiffIDs}
	switch {
	case !runsHere(config.Platform):
		return nil, &PlatformError{thisPlatform(), config.OS + "/" + config.Architecture}
	case len(i.layers) > maxLayers:
		return nil, fmt.Errorf("it has more than %d layers", maxLayers)
	case len(i.layers) != len(i.diffs):
		return nil, fmt.Errorf("it has %d layers, and its configuration lists %d", len(i.layers), len(i.diffs))
	}
	return i, nil
}

func thisPlatform() string { return "linux/" + runtime.GOARCH }

// runsHere reports whether this host's processor runs programs of a platform.
func runsHere(p v1.Platform) bool {
	arch := p.Architecture
	return (p.OS == "" || p.OS == "linux") && (arch == "" || arch == runtime.GOARCH || runtime.GOARCH == "amd64" && arch == "386" || runtime.GOARCH == "arm64" && arch == "arm")
}

// blobPath returns the path of a blob. It refuses a digest that is no sha256, so that a
// name in a manifest cannot lead out of the layout.
func blobPath(layout string, d digest.Digest) (string, error) {
	if err := d.Validate(); err != nil {
		return "", fmt.Errorf("the digest %q: %w", d, err)
	}
	if d.Algorithm() != digest.SHA256 {
		return "", fmt.Errorf("the digest %q is not a sha256", d)
	}
	return filepath.Join(layout, v1.ImageBlobsDir, string(digest.SHA256), d.Encoded()), nil
}

// readBlob reads a JSON blob and checks its digest.
func readBlob(layout string, d digest.Digest, to any) error {
	path, err := blobPath(layout, d)
	if err != nil {
		return err
	}
	data, err := readFile(path)
	if err != nil {
		return fmt.Errorf("read the blob %s: %w", d, err)
	}
	if digest.FromBytes(data) != d {
		return fmt.Errorf("the blob %s has other content than its digest says", d)
	}
	if err := json.Unmarshal(data, to); err != nil {
		return fmt.Errorf("read the blob %s: %w", d, rawjson.Plain(err))
	}
	return nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
	if err == nil && len(data) > maxJSON {
		err = fmt.Errorf("it is larger than %d bytes", maxJSON)
	}
	return data, err
}
