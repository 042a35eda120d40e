package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// choice is a flag with a fixed set of values.
type choice struct {
	to   *string
	want []string
}

// newChoice makes a flag that takes one of the values; the first is the default.
func newChoice(to *string, want ...string) *choice {
	*to = want[0]
	return &choice{to, want}
}

func (c *choice) String() string { return *c.to }
func (c *choice) Type() string   { return "string" }
func (c *choice) Set(s string) error {
	if !slices.Contains(c.want, s) {
		want := slices.DeleteFunc(slices.Clone(c.want), func(w string) bool { return w == "" })
		if len(want) == 1 {
			return fmt.Errorf("want %s, or none", want[0])
		}
		return errors.New("want " + orList(want))
	}
	*c.to = s
	return nil
}

// addOutput adds the flag --output; the first format is the default.
func addOutput(fl *pflag.FlagSet, to *string, formats ...string) {
	fl.VarP(newChoice(to, formats...), "output", "o", orList(formats))
}

// count is a flag for a number of least or more.
type count struct {
	to    *int
	least int
}

// newCount returns a flag for a number of 1 or more.
func newCount(to *int, value int) *count {
	*to = value
	return &count{to, 1}
}

// newAmount returns a flag for a number of 0 or more.
func newAmount(to *int, value int) *count {
	*to = value
	return &count{to, 0}
}

func (c *count) String() string { return strconv.Itoa(*c.to) }
func (c *count) Type() string   { return "int" }
func (c *count) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < c.least {
		return fmt.Errorf("want a number of %d or more", c.least)
	}
	*c.to = n
	return nil
}

// flagErrors parses all flags of a command, despite errors, and returns an error
// for each wrong flag.
func flagErrors(cmd *cobra.Command, args []string, first error) error {
	var all []error
	err := first
	known := true // which of the arguments are not values of flags
	for range len(args) + 1 {
		all = append(all, flagError(cmd, err))
		at, words := wrongFlag(args, err)
		if at < 0 {
			return usageOf(all...)
		}
		var unknown *pflag.NotExistError
		known = known && !errors.As(err, &unknown)
		args = slices.Delete(slices.Clone(args), at, at+words)
		if err = cmd.Flags().Parse(args); err == nil {
			break
		}
	}
	var rest []string
	if known {
		rest = cmd.Flags().Args()
		for range strings.Count(cmd.CommandPath(), " ") { // names of commands
			rest = rest[min(1, len(rest)):]
		}
	}
	return usageOf(append(all, fromEnvironment(cmd.Flags()), checkFlags(cmd, rest))...)
}

// checkFlags returns the command's own errors about its flags and arguments. Nil
// args are not checked.
func checkFlags(cmd *cobra.Command, args []string) error {
	if cmd.PreRunE == nil {
		return nil
	}
	return cmd.PreRunE(cmd, args)
}

// usageOf joins errors to one of bad usage; nil if there are none.
func usageOf(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return &exitError{exitUsage, err}
	}
	return nil
}

// flagOf names the flag in an error.
func flagOf(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%s: %w", name, err)
}

// atLeast returns an error for a flag below a limit.
func atLeast[N int | int64 | float64 | time.Duration](name string, value, low N) error {
	if value < low {
		return fmt.Errorf("--%s: %v is not valid: want %v or more", name, value, low)
	}
	return nil
}

// oneOf returns an error for a flag with none of the values.
func oneOf(name, value string, want ...string) error {
	if !slices.Contains(want, value) {
		return fmt.Errorf("--%s: %q is not valid: want one of %s", name, value, strings.Join(want, ", "))
	}
	return nil
}

// flagError returns an error that names the wrong flag, its value and a valid
// value; for an unknown flag the ones that are spelled alike.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		if known := flagsLike(cmd, unknown.GetSpecifiedName()); len(known) > 0 {
			return fmt.Errorf("%w: want %s", err, orList(known))
		}
		return fmt.Errorf("%w: `%s --help` lists the flags", err, cmd.CommandPath())
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		name := "--" + invalid.GetFlag().Name
		if s := invalid.GetFlag().Shorthand; s != "" {
			name = "-" + s + ", " + name
		}
		return fmt.Errorf("%s: %q is not valid: %w", name, invalid.GetValue(), validForm(invalid))
	}
	return err
}

// validForm returns the reason why a value is not valid. The standard library names no valid
// form.
func validForm(e *pflag.InvalidValueError) error {
	var number *strconv.NumError
	isNumber := errors.As(e, &number)
	switch kind := e.GetFlag().Value.Type(); {
	case kind == "duration":
		return errors.New("want a duration such as 90s, 10m or 1h30m")
	case isNumber && kind == "bool":
		return errors.New("want true or false")
	case isNumber && kind == "float64":
		return errors.New("want a number")
	case isNumber:
		return errors.New("want a whole number")
	}
	return e.Unwrap()
}

// flagsLike returns the flags of a command whose names are like a wrong one.
func flagsLike(cmd *cobra.Command, name string) []string {
	names := &cobra.Command{SuggestionsMinimumDistance: min(2, len(name)/2)} // cobra compares the names of commands
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	var out []string
	if len(name) > 1 {
		for _, known := range names.SuggestionsFor(name) {
			out = append(out, "--"+known)
		}
	}
	return out
}

// wrongFlag returns the index of the argument that caused an error; -1 if it is
// not known.
func wrongFlag(args []string, err error) (at, words int) {
	name, value := "", ""
	var invalid *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	var syntax *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &invalid):
		name, value = invalid.GetFlag().Name, invalid.GetValue()
		for i, a := range args {
			short := invalid.GetFlag().Shorthand
			if a == "--"+name+"="+value || short != "" && (a == "-"+short+value || a == "-"+short+"="+value) {
				return i, 1
			}
			if i+1 < len(args) && args[i+1] == value && (a == "--"+name || short != "" && a == "-"+short) {
				return i, 2
			}
		}
	case errors.As(err, &unknown):
		name = unknown.GetSpecifiedName()
	case errors.As(err, &syntax):
		return slices.Index(args, syntax.GetSpecifiedFlag()), 1
	}
	if name == "" {
		return -1, 0
	}
	return slices.IndexFunc(args, func(a string) bool {
		long, _, _ := strings.Cut(a, "=")
		return long == "--"+name || len(name) == 1 && strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.Contains(a, name)
	}), 1
}
