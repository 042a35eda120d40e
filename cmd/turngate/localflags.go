package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/sandboxes"
)

// localFlags are the settings of local sandboxes.
type localFlags struct {
	localImages string
}

func (f *localFlags) add(fl *pflag.FlagSet, prefix string) {
	fl.StringVar(&f.localImages, "local-images", "", prefix+"folder of images for the local sandbox, such as turngate image export writes (default: it has none)")
}

func (f *localFlags) check() error {
	if f.localImages == "" {
		return nil
	}
	if info, err := os.Stat(f.localImages); err != nil || !info.IsDir() {
		return fmt.Errorf("--local-images: %q is not valid: want a folder that exists", f.localImages)
	}
	return nil
}

func (f *localFlags) settings() sandboxes.Local {
	if f.localImages == "" {
		return sandboxes.Local{}
	}
	return sandboxes.Local{Images: f.localImages, Unpacked: cacheFor("images")}
}

// images reports whether sandboxes of a backend can be made of images.
func (f *localFlags) images(sandbox string) bool {
	return hasImages(sandbox) || f.localImages != "" && sandbox == local.Kind().Name
}
