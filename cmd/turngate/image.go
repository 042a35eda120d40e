package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/images"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

func imageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Pull, build, export, list and remove images of tasks on this host's Docker engine"}
	cmd.AddCommand(
		imageWarmCommand(images.Pulls, "Pull the images that tasks name"),
		imageWarmCommand(images.Builds, "Build the images of tasks that have a Dockerfile"),
		imageExportCommand(), imageListCommand(), imagePruneCommand())
	return cmd
}

// open connects to this host's Docker engine.
func (f imageFlags) open(cmd *cobra.Command) (*docker.Store, error) {
	h, err := f.host(stateDir(), 0, 0)
	if err != nil {
		return nil, err
	}
	b, err := docker.New(docker.Config{Host: h})
	if err != nil {
		return nil, err
	}
	return b.Store(), b.Check(cmd.Context())
}

func imageWarmCommand(kind, short string) *cobra.Command {
	var f imageFlags
	var given taskEnv
	var parallel int
	cmd := &cobra.Command{
		Use: kind + " TASK...", Short: short, Args: cobra.MinimumNArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			return usageOf(f.check(), given.check(), checkPaths(args))
		},
		RunE: func(cmd *cobra.Command, paths []string) error {
			wants, closeFiles, err := imagesOf(cmd, &given, paths, kind)
			if err != nil {
				return err
			}
			defer closeFiles()
			store, err := f.open(cmd)
			if err != nil {
				return err
			}
			err = warm(cmd, store, wants, parallel)
			if kind == images.Builds {
				if err := store.PruneCache(cmd.Context()); err != nil {
					fmt.Fprintln(cmd.ErrOrStderr(), "the build cache was not pruned: "+oneLine(err.Error(), 200))
				}
			}
			return err
		},
	}
	cmd.Flags().VarP(newCount(&parallel, 2), "parallel", "j", "images at once")
	f.add(cmd.Flags())
	given.add(cmd.Flags())
	return cmd
}

// warm makes images ready and prints a line for each.
func warm(cmd *cobra.Command, e images.Engine, wants []images.Want, parallel int) error {
	verbose, _ := cmd.Flags().GetBool("verbose")
	err := images.Warm(cmd.Context(), e, wants, parallel, func(o images.Outcome) {
		if o.Err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s\t%s\t%.1f s\n", oneLine(o.Task, 60), o.Ref, o.Took.Seconds())
		}
	}, func(w images.Want, line string) {
		if verbose {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", oneLine(w.Task, 60), oneLine(line, 200))
		}
	})
	if err != nil {
		return &exitError{exitFault, err}
	}
	return nil
}

// maxWrong is the largest number of tasks with a mistake that an error lists.
const maxWrong = 20

// imagesOf returns the images of this kind that the tasks below the paths need.
// closeFiles closes the files of their builds.
func imagesOf(cmd *cobra.Command, given *taskEnv, paths []string, kind string) (wants []images.Want, closeFiles func(), err error) {
	dirs, err := tasks.Find(paths)
	if err != nil {
		return nil, nil, usageOf(err)
	}
	var all []*tasks.Task
	var bundles []*tasks.Bundle
	var wrong []error
	closeFiles = func() {
		for _, b := range bundles {
			_ = b.Close() // it was only read
		}
	}
	for _, dir := range dirs {
		t, err := given.load(cmd, dir, "")
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		all = append(all, t)
		of, bundle, err := imagesOfTask(t, kind)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("task %s: %w", dir, err))
			continue
		}
		wants, bundles = append(wants, of...), append(bundles, bundle)
	}
	printMissing(cmd.ErrOrStderr(), all...)
	if len(wrong) > maxWrong {
		wrong = wrong[:maxWrong]
	}
	if err := usageOf(wrong...); err != nil {
		closeFiles()
		return nil, nil, err
	}
	return wants, closeFiles, nil
}

// imagesOfTask returns the images of a task and the open bundle that their builds read,
// which is empty without builds: a data set can have more files than the disk has room for.
func imagesOfTask(t *tasks.Task, kind string) ([]images.Want, *tasks.Bundle, error) {
	bundle, err := tasks.Open(t.Bundle)
	if err != nil {
		return nil, nil, err
	}
	of, err := images.Of(t, bundle, kind)
	if err != nil {
		_ = bundle.Close() // it was only read
		return nil, nil, err
	}
	if !slices.ContainsFunc(of, func(w images.Want) bool { return w.Build != nil }) {
		_ = bundle.Close() // it was only read
		bundle = &tasks.Bundle{}
	}
	return of, bundle, nil
}

// addNetwork adds the flag that selects images of builds with a network.
func (f *imageFlags) addNetwork(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.buildNetwork, "build-network", schema.NetworkOpen, "with tasks: the network of the builds that made their images, as the worker's flag")
}

func imageListCommand() *cobra.Command {
	var f imageFlags
	var given taskEnv
	var output string
	cmd := &cobra.Command{
		Use: "ls [TASK...]", Short: "List the images that builds left, the last used first, or the images of tasks",
		PreRunE: func(_ *cobra.Command, args []string) error {
			return usageOf(f.check(), given.check(), checkPaths(args))
		},
		RunE: func(cmd *cobra.Command, paths []string) error {
			wants, closeFiles, err := imagesOf(cmd, &given, paths, "")
			if err != nil {
				return err
			}
			defer closeFiles()
			store, err := f.open(cmd)
			if err != nil {
				return err
			}
			if len(paths) > 0 {
				all, err := images.List(cmd.Context(), store, wants)
				if err != nil {
					return err
				}
				return showStatus(cmd, output, all)
			}
			all, err := store.BuiltImages(cmd.Context())
			if err != nil {
				return err
			}
			return showImages(cmd, output, all)
		},
	}
	addListOutput(cmd.Flags(), &output)
	f.addNetwork(cmd)
	given.add(cmd.Flags())
	return cmd
}

func imagePruneCommand() *cobra.Command {
	var f imageFlags
	var given taskEnv
	var keep sandboxes.Keep
	var gb float64
	cmd := &cobra.Command{
		Use: "prune [TASK...]", Short: "Remove images that builds left: the ones of tasks, or the ones with the oldest last use; never an image that a container uses",
		PreRunE: func(_ *cobra.Command, args []string) error {
			keep.Bytes = int64(gb * 1e9)
			wrong := []error{f.check(), given.check(), checkPaths(args), atLeast("keep-images", keep.Images, 0), atLeast("keep-images-gb", gb, 0), atLeast("unused-for", keep.Age, 0)}
			switch bounds := keep != (sandboxes.Keep{}); {
			case len(args) == 0 && !bounds:
				wrong = append(wrong, errors.New("image prune: name tasks, or a bound: --keep-images N, --keep-images-gb N or --unused-for 72h"))
			case len(args) > 0 && bounds:
				wrong = append(wrong, errors.New("image prune: tasks and bounds exclude each other: leave out the tasks, or --keep-images, --keep-images-gb and --unused-for"))
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, paths []string) error {
			wants, closeFiles, err := imagesOf(cmd, &given, paths, "")
			if err != nil {
				return err
			}
			defer closeFiles()
			store, err := f.open(cmd)
			if err != nil {
				return err
			}
			if len(paths) > 0 {
				return pruneTasks(cmd, store, wants)
			}
			removed, err := store.PruneImages(cmd.Context(), keep)
			if serr := showImages(cmd, formatTable, removed); err == nil {
				err = serr
			}
			return err
		},
	}
	cmd.Flags().IntVar(&keep.Images, "keep-images", 0, "number of images to keep")
	cmd.Flags().Float64Var(&gb, "keep-images-gb", 0, "GB of images to keep")
	cmd.Flags().DurationVar(&keep.Age, "unused-for", 0, "remove images without a use for this time, such as 72h")
	f.addNetwork(cmd)
	given.add(cmd.Flags())
	return cmd
}

func pruneTasks(cmd *cobra.Command, store images.Store, wants []images.Want) error {
	all, err := images.Remove(cmd.Context(), store, wants)
	if serr := showStatus(cmd, formatTable, all); err != nil || serr != nil {
		return errors.Join(err, serr)
	}
	used := 0
	for _, i := range all {
		if i.State == images.InUse {
			used++
		}
	}
	if used > 0 {
		return &exitError{exitFault, fmt.Errorf("%s not removed: a container uses it", plural(used, "image"))}
	}
	return nil
}

func showStatus(cmd *cobra.Command, output string, all []images.Status) error {
	if !isTable(output) {
		return printList(cmd.OutOrStdout(), output, all)
	}
	t := newList(cmd.OutOrStdout(), output, "TASK", "IMAGE", "FROM", "MB", "USED", "STATE")
	t.spare, t.names = []string{"FROM"}, []string{"TASK"}
	for _, i := range all {
		mb, used := "-", "-"
		if i.State != images.Missing {
			mb = fmt.Sprintf("%.1f", float64(i.Size)/1e6)
			if i.Kind == images.Builds {
				used = time.Since(i.Used).Round(time.Second).String() + " ago"
			}
		}
		t.row(oneLine(i.Task, 60), oneLine(i.Ref, 120), i.Kind, mb, used, i.State)
	}
	return t.flush()
}

func showImages(cmd *cobra.Command, output string, all []sandboxes.BuiltImage) error {
	if !isTable(output) {
		return printList(cmd.OutOrStdout(), output, all)
	}
	t := newList(cmd.OutOrStdout(), output, "IMAGE", "TASK", "MB", "USED", "STATE")
	t.names = []string{"TASK"}
	for _, i := range all {
		state := "idle"
		if i.InUse {
			state = "in use"
		}
		t.row(i.Ref, oneLine(i.Task, 60), fmt.Sprintf("%.1f", float64(i.Size)/1e6), time.Since(i.Used).Round(time.Second).String()+" ago", state)
	}
	return t.flush()
}
