package main

import (
	"cmp"
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// imageFlags limit the resources that image builds of a worker use, and the disk
// space of their images.
type imageFlags struct {
	buildNetwork     string
	buildMemoryMB    int64
	buildCPUs        float64
	buildTimeout     time.Duration
	keepImages       int
	keepImagesGB     float64
	keepBuildCacheGB float64
}

// Disk space in GB.
const (
	defaultKeepGB  = 100 // for images that workers built, and for unpacked ones
	defaultCacheGB = 100 // for the cache of image builds, with workers only
)

func (f *imageFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.buildNetwork, "build-network", schema.NetworkOpen, "network of image builds: open or none")
	fl.Int64Var(&f.buildMemoryMB, "build-memory-mb", 0, "most memory of each command of an image build (0: as --max-memory-mb, -1: any)")
	fl.Float64Var(&f.buildCPUs, "build-cpus", 0, "most cpus of each command of an image build (0: as --max-cpus, -1: any)")
	fl.DurationVar(&f.buildTimeout, "build-timeout", time.Hour, "how long an image build may take, also when its request allows more")
	fl.IntVar(&f.keepImages, "keep-images", 0, "how many images of builds are kept, the last used ones (0: any number)")
	fl.Float64Var(&f.keepImagesGB, "keep-images-gb", defaultKeepGB, "how many GB images of builds may take of the disk, and as many the unpacked images of --local-images (0: any number)")
	fl.Float64Var(&f.keepBuildCacheGB, "keep-build-cache-gb", defaultCacheGB, "how many GB of the engine's BuildKit cache a worker leaves, of all builds of the engine (0: any number)")
}

// check returns all errors in these flags.
func (f imageFlags) check() error {
	wrong := []error{
		atLeast("build-memory-mb", f.buildMemoryMB, -1), atLeast("build-cpus", f.buildCPUs, -1), atLeast("build-timeout", f.buildTimeout, 0),
		atLeast("keep-images", f.keepImages, 0), atLeast("keep-images-gb", f.keepImagesGB, 0), atLeast("keep-build-cache-gb", f.keepBuildCacheGB, 0),
	}
	if f.buildNetwork != "" {
		wrong = append(wrong, oneOf("build-network", f.buildNetwork, schema.NetworkOpen, schema.NetworkNone))
	}
	return errors.Join(wrong...)
}

// host returns the settings of the sandbox backends for a worker with these caps.
func (f imageFlags) host(state string, maxCPUs float64, maxMemoryMB int64) (sandboxes.Host, error) {
	if err := f.check(); err != nil {
		return sandboxes.Host{}, usageOf(err)
	}
	program, err := helper()
	if err != nil {
		return sandboxes.Host{}, err
	}
	return sandboxes.Host{
		Helper: program, StateDir: state,
		Build: sandboxes.BuildLimits{
			Network: f.buildNetwork, Time: f.buildTimeout,
			MemoryBytes: max(cmp.Or(f.buildMemoryMB, maxMemoryMB), 0) << 20, CPUs: max(cmp.Or(f.buildCPUs, maxCPUs), 0),
		},
		Keep: sandboxes.Keep{Images: f.keepImages, Bytes: int64(f.keepImagesGB * 1e9), Cache: int64(f.keepBuildCacheGB * 1e9)},
	}, nil
}
