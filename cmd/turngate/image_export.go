package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/backends/layout"
	"github.com/turngate/turngate/internal/images"
	"github.com/turngate/turngate/sandboxes"
)

// exporter is an engine that exports its images to a folder, too.
type exporter struct {
	*docker.Store
	to layout.Dir
}

// EnsureImage implements images.Engine.
func (e exporter) EnsureImage(ctx context.Context, ref string, how *sandboxes.Build, log func(line string)) (string, error) {
	ref, err := e.Store.EnsureImage(ctx, ref, how, log)
	if err != nil {
		return ref, err
	}
	r, w := io.Pipe()
	saved := make(chan struct{})
	go func() {
		defer close(saved)
		w.CloseWithError(e.Save(ctx, ref, w))
	}()
	_, err = e.to.Add(ref, r)
	r.CloseWithError(err) // the end of Save, if Add has not read all
	<-saved
	return ref, err
}

func imageExportCommand() *cobra.Command {
	var f imageFlags
	var given taskEnv
	var to string
	var parallel int
	cmd := &cobra.Command{
		Use: "export TASK|IMAGE... --to DIR", Short: "Export the images of tasks, or images, into a folder for --local-images, as an OCI layout", Args: cobra.MinimumNArgs(1),
		Long: "Export the images of tasks, or images, into a folder, which workers on hosts without an engine take with --local-images. The folder is an OCI layout.\n" +
			"Images that the engine lacks are pulled or built first. An argument that is no folder is an image. An image of the same name is replaced.",
		PreRunE: func(_ *cobra.Command, args []string) error {
			wrong := []error{f.check(), given.check()}
			if to == "" {
				wrong = append(wrong, errors.New("--to: want the folder for the images"))
			}
			paths, refs := tasksAndImages(args)
			wrong = append(wrong, checkPaths(paths))
			for _, ref := range refs {
				if _, err := reference.ParseNormalizedNamed(ref); err != nil {
					wrong = append(wrong, fmt.Errorf("%q is not valid: want a task directory, or an image such as debian:12", ref))
				}
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			paths, refs := tasksAndImages(args)
			var wants []images.Want
			if len(paths) > 0 {
				of, closeFiles, err := imagesOf(cmd, &given, paths, "")
				if err != nil {
					return err
				}
				defer closeFiles()
				wants = of
			}
			for _, ref := range refs {
				wants = append(wants, images.Want{Task: "-", Image: ref})
			}
			store, err := f.open(cmd)
			if err != nil {
				return err
			}
			return warm(cmd, exporter{store, layout.Dir(to)}, wants, parallel)
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "folder for the images, which is made if it is missing")
	cmd.Flags().VarP(newCount(&parallel, 2), "parallel", "j", "images at once")
	f.add(cmd.Flags())
	given.add(cmd.Flags())
	return cmd
}

// tasksAndImages separates the paths of tasks and the references of images.
func tasksAndImages(args []string) (paths, refs []string) {
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err == nil && info.IsDir() || strings.HasPrefix(arg, ".") || strings.HasPrefix(arg, "/") {
			paths = append(paths, arg)
		} else if !slices.Contains(refs, arg) {
			refs = append(refs, arg)
		}
	}
	return paths, refs
}
