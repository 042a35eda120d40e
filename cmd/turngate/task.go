package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/importer"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/tasks"
)

func taskCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "task", Short: "Make, import and check tasks; print them as requests"}
	cmd.AddCommand(taskCheckCommand(), taskInitCommand(), taskImportCommand(), taskRequestCommand())
	return cmd
}

func taskInitCommand() *cobra.Command {
	var image string
	cmd := &cobra.Command{
		Use:   "init NAME",
		Short: "Make a small whole task in a new folder, to start from",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := tasks.Init(args[0], image); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "made %s; next: turngate task check %s\n", args[0], plain.Arg(args[0]))
			return nil
		},
	}
	cmd.Flags().StringVar(&image, "image", "debian:bookworm-slim", "image that the task's own is built on")
	return cmd
}

func taskImportCommand() *cobra.Command {
	var out, format string
	var o importer.Options
	cmd := &cobra.Command{
		Use:   "import FILE...",
		Short: "Make task directories of the rows of JSON lines",
		Long: "Make a task directory of each row of JSON lines (- is stdin). The layouts: SWE-bench, SWE-smith, R2E-Gym, OpenEnv\n" +
			"(instruction, setup, verify, upload_files) and plain rows (instruction, image, verify); the fields of a row decide.\n\n" +
			"A bad row is reported with its line and field, and the others are made. Exit status: 1 when a row was bad.",
		Args: cobra.MinimumNArgs(1),
		PreRunE: func(_ *cobra.Command, files []string) error {
			wrong := []error{atLeast("limit", o.Limit, 0)}
			if format != "" && !slices.Contains(importer.Formats(), importer.Format(format)) {
				wrong = append(wrong, fmt.Errorf("--format: %q is not valid: want one of %v", format, importer.Formats()))
			}
			for _, name := range files {
				if name != "-" {
					_, err := os.Stat(name)
					wrong = append(wrong, err)
				}
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, files []string) error {
			o.Format = importer.Format(format)
			bad := 0
			for _, name := range files {
				n, err := importFile(cmd, name, out, o)
				if err != nil {
					return err
				}
				bad += n
			}
			if bad > 0 {
				return &exitError{code: exitFault}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&out, "out", "tasks", "folder of the new task directories")
	fl.StringVar(&format, "format", "", fmt.Sprintf("layout of every row, one of %v (default: the fields decide)", importer.Formats()))
	fl.StringVar(&o.Image, "image", "", "image of rows without one; {id} is the row's name")
	fl.BoolVar(&o.Skip, "skip", false, "leave out rows with a folder that exists")
	fl.IntVar(&o.Limit, "limit", 0, "largest number of tasks of each file (0: all)")
	return cmd
}

func importFile(cmd *cobra.Command, name, out string, o importer.Options) (bad int, err error) {
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return 0, usage("%w", err)
		}
		defer f.Close()
		in = f
	}
	r, err := importer.Import(in, out, o)
	if r != nil {
		for _, e := range r.Bad {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", oneLine(name, 200), oneLine(e.Error(), 400))
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s made in %s, %d skipped, %s\n", oneLine(name, 200), plural(len(r.Made), "task"), out, r.Skipped, plural(len(r.Bad), "bad row"))
		bad = len(r.Bad)
	}
	return bad, err
}
