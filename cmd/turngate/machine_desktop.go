package main

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/desktop"
	"github.com/turngate/turngate/internal/desktop/computer"
)

// desktopHelp is a part of the help of each command for a machine's desktop.
const desktopHelp = "The owner of the machine offers its display with `turngate machine serve --desktop`, and its pointer and keyboard with --desktop-input. The credential is that of the admin."

// atDesktop calls do with the desktop of a machine.
func atDesktop(cmd *cobra.Command, nf *natsFlags, name string, do func(*desktop.Client) error) error {
	return withFleet(cmd, nf, func(fleet *machines.Fleet) error { return do(&desktop.Client{Fleet: fleet, Machine: name}) })
}

func addMaxSide(fl *pflag.FlagSet, to *int, value int) {
	fl.IntVar(to, "max-side", value, "most pixels of the longer side of a screenshot, whose points are those of input; 0: that of the display")
}

func machineScreenshotCommand() *cobra.Command {
	var nf natsFlags
	var file string
	o := desktop.Order{Op: desktop.Screenshot}
	cmd := &cobra.Command{
		Use:   "screenshot NAME",
		Short: "Take a screenshot of the desktop of a machine",
		Long:  "Take a screenshot of the desktop of a machine, as PNG. Its size, and that of the display, are on stderr.\n\n" + desktopHelp,
		Args:  cobra.ExactArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			var where error
			if file == "" && isTerminal(os.Stdout) {
				where = fmt.Errorf("-o: want a file for the screenshot; stdout is a terminal")
			}
			return usageOf(machineAccess().check(args[0]), flagOf("max-side", o.Check()), where)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return atDesktop(cmd, &nf, args[0], func(c *desktop.Client) error {
				a, picture, err := c.Do(cmd.Context(), o)
				if err != nil {
					return err
				}
				if file == "" {
					_, err = cmd.OutOrStdout().Write(picture)
				} else {
					err = os.WriteFile(file, picture, 0o600)
				}
				if err != nil {
					return fmt.Errorf("write the screenshot: %w", err)
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "%d bytes of a display of %d x %d pixels\n", len(picture), a.Width, a.Height)
				return nil
			})
		},
	}
	nf.add(cmd, defaultURL)
	cmd.Flags().StringVarP(&file, "output", "o", "", "file for the screenshot (default: stdout)")
	addMaxSide(cmd.Flags(), &o.MaxSide, 0)
	return cmd
}

func machineInputCommand() *cobra.Command {
	var nf natsFlags
	var o desktop.Order
	cmd := &cobra.Command{
		Use:   "input NAME ACTION [ARG...]",
		Short: "Use the pointer and the keyboard of a machine's desktop",
		Long: "Use the pointer and the keyboard of a machine's desktop. The actions are:\n\n" +
			"  move X Y                      move the pointer\n" +
			"  click X Y                     click, with --button and --count\n" +
			"  drag X Y TO_X TO_Y            drag, with --button\n" +
			"  scroll X Y DIRECTION [STEPS]  scroll up, down, left or right\n" +
			"  key KEYS...                   press keys, such as ctrl+c, alt+F4, Return or plus, one argument after another\n" +
			"  type [TEXT]                   type a text; without TEXT that of stdin, which no list of processes shows\n\n" + desktopHelp,
		Args: cobra.MinimumNArgs(2),
		PreRunE: func(cmd *cobra.Command, args []string) error {
			return usageOf(machineAccess().check(args[0]), inputOf(&o, cmd.InOrStdin(), args[1], args[2:]))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return atDesktop(cmd, &nf, args[0], func(c *desktop.Client) error {
				_, _, err := c.Do(cmd.Context(), o)
				return err
			})
		},
	}
	nf.add(cmd, defaultURL)
	fl := cmd.Flags()
	fl.StringVar(&o.Button, "button", "", "button of click and drag: left, middle or right (default left)")
	fl.Var(newCount(&o.Count, 1), "count", "clicks one after another, at most 3")
	addMaxSide(fl, &o.MaxSide, 0)
	return cmd
}

// inputOf reads the arguments of an action into an order.
func inputOf(o *desktop.Order, stdin io.Reader, action string, args []string) error {
	o.Op = action
	var numbers []*int
	least, most := 0, 0
	switch action {
	case desktop.Move, desktop.Click:
		numbers = []*int{&o.X, &o.Y}
		least, most = 2, 2
	case desktop.Drag:
		numbers = []*int{&o.X, &o.Y, &o.ToX, &o.ToY}
		least, most = 4, 4
	case desktop.Scroll:
		numbers = []*int{&o.X, &o.Y, nil, &o.Steps}
		least, most = 3, 4
	case desktop.Type:
		most = 1
	case desktop.Key:
		least, most = 1, desktop.MaxKeys
	default:
		return fmt.Errorf("%q is not valid: want move, click, drag, scroll, key or type", action)
	}
	if len(args) < least || len(args) > most {
		return fmt.Errorf("%s: %d arguments: want %d to %d; see turngate machine input --help", action, len(args), least, most)
	}
	switch action {
	case desktop.Key:
		o.Keys = args
	case desktop.Type:
		text, err := textOf(stdin, args)
		if err != nil {
			return err
		}
		o.Text = text
	case desktop.Scroll:
		o.Direction = args[2]
	}
	for i, to := range numbers[:min(len(args), len(numbers))] {
		if to == nil {
			continue
		}
		n, err := strconv.Atoi(args[i])
		if err != nil || n < 0 {
			return fmt.Errorf("%s: %q is not valid: want a number of 0 or more", action, args[i])
		}
		*to = n
	}
	return o.Check()
}

// textOf returns the text of the only argument, or else of stdin.
func textOf(stdin io.Reader, args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	text, err := io.ReadAll(io.LimitReader(stdin, 4*desktop.MaxText+1))
	if err != nil {
		return "", fmt.Errorf("read the text: %w", err)
	}
	return string(text), nil
}

func machineMCPCommand() *cobra.Command {
	var nf natsFlags
	o := desktop.Order{Op: desktop.Screenshot}
	cmd := &cobra.Command{
		Use:   "mcp NAME",
		Short: "Serve the desktop of a machine as an MCP tool over stdin and stdout",
		Long: "Serve the desktop of a machine to a program that takes MCP servers, over stdin and stdout. Its tool computer has the actions screenshot, move, click, drag, type, key and scroll.\n\n" +
			desktopHelp,
		Args: cobra.ExactArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			return usageOf(machineAccess().check(args[0]), flagOf("max-side", o.Check()))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return atDesktop(cmd, &nf, args[0], func(c *desktop.Client) error {
				return computer.Server(c, o.MaxSide, version).Run(cmd.Context(), &mcp.StdioTransport{})
			})
		},
	}
	nf.add(cmd, defaultURL)
	addMaxSide(cmd.Flags(), &o.MaxSide, 1280)
	return cmd
}
