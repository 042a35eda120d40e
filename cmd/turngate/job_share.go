package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/console"
)

func jobShareCommand() *cobra.Command {
	var out, tokenizer string
	var limit int64
	cmd := &cobra.Command{
		Use:   "share DIR",
		Short: "Write the console's pages of a job as one HTML file, which a browser opens without a server",
		Long: "Write the console's pages of a job as one HTML file: the report, the groups, the rollouts with their conversations and tokens. A browser opens it from the disk; it loads nothing else and runs no other script.\n\n" +
			"Texts that look like credentials are masked and counted: known forms of keys, and the values of variables with such names in the job's flags and in this command's environment. The tokens of a rollout with such a text are left out, since they have it, too. Read the file before you give it to others: a secret in another form stays in it. Files of the rollouts and folders of this host are left out.",
		Args: needArgs(1, 1, "the folder of one job"),
		PreRunE: func(*cobra.Command, []string) error {
			return usageOf(atLeast("max-mb", limit, 1))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			texts, err := readTokenizer(tokenizer)
			if err != nil {
				return err
			}
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return fmt.Errorf("share the job: %w", err)
			}
			if out == "" {
				out = filepath.Base(dir) + ".html"
			}
			f, err := os.OpenFile(out, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return usage("--out: %w", err)
			}
			share := console.Share{Dir: dir, MaxBytes: limit << 20, Variables: os.Environ(), Tokenizer: texts}
			done, err := share.Write(cmd.Context(), f)
			if err = errors.Join(err, f.Close()); err != nil {
				os.Remove(out)
				return err
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "%s: %s, %.1f MB\n", out, plural(done.Rollouts, "rollout"), float64(done.Bytes)/(1<<20))
			if done.Left > 0 {
				fmt.Fprintf(w, "%s without a page, since the file would be larger than %d MB; --max-mb raises the limit\n", plural(done.Left, "rollout"), limit)
			}
			if done.Tokens > 0 {
				fmt.Fprintf(w, "%s without tokens for the same reason\n", plural(done.Tokens, "training row"))
			}
			if done.Hidden > 0 {
				fmt.Fprintf(w, "%s without tokens, since a text of their rollouts is masked\n", plural(done.Hidden, "training row"))
			}
			for _, kind := range slices.Sorted(maps.Keys(done.Masked)) {
				fmt.Fprintf(w, "%d × masked: %s\n", done.Masked[kind], kind)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&out, "out", "o", "", "file to write, which must not exist (default: the name of the job's folder with .html)")
	cmd.Flags().Int64Var(&limit, "max-mb", 64, "largest size of the file; rollouts that do not fit have no page")
	addTokenizer(cmd.Flags(), &tokenizer)
	return cmd
}
