package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/kernel"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/rollout"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// keeperCommand is the first argument of a keeper: the process that does the work of a command
// that may keep sandboxes or detach its job. The keeper has the sandboxes or the job after the
// command has ended. The command itself waits for the result.
const keeperCommand = "keeper"

// keepTime is how long a sandbox is kept by default, mostKeep how long at most.
const (
	keepTime = time.Hour
	mostKeep = 7 * 24 * time.Hour
)

// keptState is the folder of a keeper's worker in the folder of the keeper.
const keptState = "state"

// keeper is the part of a keeper beside its command.
type keeper struct {
	host *reach.Host
	line *os.File    // to the command, which has the other end
	over atomic.Bool // the command has the result, or will not get it
	left *left       // nil: no worker has begun
}

// left names the sandboxes of a process for their removal after it was killed.
type left struct {
	Owner      string               `json:"owner"`
	Sandboxes  string               `json:"sandboxes"`
	SSH        sandboxes.SSH        `json:"ssh"`
	E2B        sandboxes.E2B        `json:"e2b"`   // without the key, which the environment has
	Prime      sandboxes.Prime      `json:"prime"` // without the key, as above
	Kubernetes sandboxes.Kubernetes `json:"kubernetes"`
	Modal      sandboxes.Modal      `json:"modal"`
}

// addKeep adds a flag for the time that sandboxes are kept.
func addKeep(fl *pflag.FlagSet, to *time.Duration, name, help string) {
	fl.DurationVar(to, name, 0, help)
	fl.Lookup(name).NoOptDefVal = keepTime.String()
}

func checkKeep(name string, d time.Duration) error {
	if d < 0 || d > mostKeep {
		return fmt.Errorf("--%s: %s is not valid: want a time of at most %s, such as 1h", name, d, mostKeep)
	}
	return nil
}

// keeperError has the exit status of a keeper, which has printed its errors itself.
type keeperError struct{ code int }

func (e *keeperError) Error() string { return fmt.Sprintf("the keeper ended with status %d", e.code) }

// viaKeeper runs this command again in a keeper, at the same streams, until the keeper has
// the result. The keeper gets the signals of the command, and stops and goes on with it:
// alone it would take the keys of the shell.
func viaKeeper(cmd *cobra.Command) error {
	if err := sweepKept(cmd.Context()); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "sandboxes of a killed process were not removed: %s\n", oneLine(err.Error(), 500))
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	ours, theirs, err := kernel.Pair()
	if err != nil {
		return fmt.Errorf("open a line to the keeper: %w", err)
	}
	defer ours.Close()
	c := exec.Command(self, append([]string{keeperCommand}, os.Args[1:]...)...)
	c.Stdin, c.Stdout, c.Stderr, c.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{theirs}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	screen := int(os.Stdin.Fd())
	before, notTerminal := term.GetState(screen)
	came := make(chan os.Signal, 8)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it, in the keeper, too
		signal.Notify(came, syscall.SIGHUP)
	}
	signal.Notify(came, syscall.SIGINT, syscall.SIGTERM, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT)
	defer signal.Stop(came)
	err = c.Start()
	theirs.Close()
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	result := make(chan int, 1)
	go func() {
		code := []byte{0}
		if _, err := io.ReadFull(ours, code); err == nil {
			result <- int(code[0])
			return
		}
		_ = c.Wait()
		result <- c.ProcessState.ExitCode()
	}()
	for {
		select {
		case s := <-came:
			if s == syscall.SIGTSTP {
				_ = c.Process.Signal(syscall.SIGSTOP)
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
				continue
			}
			_ = c.Process.Signal(s)
		case code := <-result:
			if code < 0 {
				if notTerminal == nil { // a killed keeper has not restored it
					_ = term.Restore(screen, before)
				}
				return fmt.Errorf("the keeper ended: %s", c.ProcessState)
			}
			if code == 0 {
				return nil
			}
			return &keeperError{code}
		}
	}
}

// keep is the main function of a keeper.
func keep(args []string) int {
	line := os.NewFile(3, "command")
	unix.CloseOnExec(3)
	root, err := filepath.Abs(reach.Root()) // stay changes the working directory
	var host *reach.Host
	if err == nil {
		host, err = reach.Open(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "turngate:", safeText(err.Error()))
		return exitFault
	}
	k := &keeper{host: host, line: line}
	go k.watch()
	code := runFor(args, k)
	k.stay(code)
	if err := k.clean(); err != nil && !k.over.Load() {
		fmt.Fprintln(os.Stderr, "turngate:", safeText(err.Error()))
	}
	host.Close()
	return code
}

// watch ends the work when the command has died.
func (k *keeper) watch() {
	_, _ = k.line.Read(make([]byte, 1))
	if !k.over.Swap(true) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	}
}

// outputName is the file in the folder of a detached job with the output of its process.
const outputName = "output.log"

// outputOf opens the file of that name to append to it. Only its owner can read it.
func outputOf(j *jobs.Job) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(j.Dir, outputName), os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the job's output: %w", err)
	}
	return f, nil
}

// detach ends the command. The job goes on in this process, with its output in the job's
// folder.
func (k *keeper) detach(cmd *cobra.Command, j *jobs.Job) error {
	out, err := outputOf(j)
	if err != nil {
		return err
	}
	defer out.Close()
	none, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("detach the job: %w", err)
	}
	defer none.Close()
	dir := oneLine(shown(j.Dir), 4096)
	fmt.Fprintln(cmd.OutOrStdout(), dir) // for a script, which reads the line
	fmt.Fprintf(cmd.ErrOrStderr(), "the job runs as process %d, with its output in %s\nfollow it with: turngate job attach %s\n", os.Getpid(), oneLine(shown(out.Name()), 4096), plain.Arg(dir))
	for fd, to := range []*os.File{none, out, out} {
		if err := kernel.Replace(fd, to); err != nil {
			return fmt.Errorf("detach the job: %w", err)
		}
	}
	k.over.Store(true)
	_, _ = k.line.Write([]byte{exitOK}) // it fails if the command has died
	return nil
}

// stay gives the command its result and waits until no sandbox is kept.
func (k *keeper) stay(code int) {
	if len(k.host.Kept()) == 0 {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if none, err := os.OpenFile(os.DevNull, os.O_RDWR, 0); err == nil {
		for fd := range 3 { // the terminal or a reader of the output must not wait for this process
			_ = kernel.Replace(fd, none)
		}
		none.Close()
	}
	_ = os.Chdir("/")
	k.over.Store(true)
	_, _ = k.line.Write([]byte{byte(code)}) // it fails if the command has died
	debug.FreeOSMemory()                    // the server and the worker have ended
	k.host.Wait(ctx)
}

// state makes the folder of a worker's state.
func (k *keeper) state() (string, error) {
	dir := filepath.Join(k.host.Dir(), keptState)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a state directory: %w", err)
	}
	return dir, nil
}

// note notes the sandboxes of an owner.
func (k *keeper) note(owner string, f *runFlags) error {
	pods, err := f.backends.kubernetes.settings()
	if err != nil {
		return err
	}
	k.left = &left{Owner: owner, Sandboxes: f.sandbox, SSH: f.backends.ssh.settings(), E2B: f.backends.e2b.unread(), Prime: f.backends.prime.unread(), Kubernetes: pods, Modal: f.backends.modal.settings()}
	return k.host.Note(k.left)
}

// clean removes the rest of a worker's sandboxes.
func (k *keeper) clean() error {
	if k.left == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return k.left.clean(ctx, filepath.Join(k.host.Dir(), keptState))
}

func (l *left) clean(ctx context.Context, state string) error {
	host, err := imageFlags{}.host(state, 0, 0)
	if err != nil {
		return err
	}
	host.SSH, host.E2B, host.Prime, host.Kubernetes, host.Modal = l.SSH, l.E2B, l.Prime, l.Kubernetes, l.Modal
	if host.E2B.Template != "" {
		if host.E2B.Key, err = serviceKey("E2B", "E2B_API_KEY"); err != nil {
			return err
		}
	}
	if host.Prime.Image != "" {
		if host.Prime.Key, err = serviceKey("Prime Intellect", "PRIME_API_KEY"); err != nil {
			return err
		}
	}
	list, err := (patience{}).open(ctx, splitList(l.Sandboxes), host, zerolog.Nop())
	if err != nil {
		return err
	}
	var failed []error
	for _, b := range list {
		_, err := b.Sweep(ctx, l.Owner, func(schema.ID) bool { return false })
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// sweepKept removes the folders and sandboxes of keepers that were killed.
func sweepKept(ctx context.Context) error {
	return reach.Sweep(reach.Root(), func(dir string, note json.RawMessage) error {
		var l left
		if err := json.Unmarshal(note, &l); err != nil {
			return fmt.Errorf("read %s: %w", dir, rawjson.Plain(err))
		}
		return l.clean(ctx, filepath.Join(dir, keptState))
	})
}

// printKept prints the sandboxes that are kept.
func (k *keeper) printKept(w io.Writer) {
	if k == nil {
		return
	}
	for _, s := range k.host.Kept() {
		fmt.Fprintf(w, "the sandbox of %s is kept until %s: turngate sandbox exec %s\n", oneLine(s.Task, 100), s.Until.Format(time.DateTime), s.ID)
	}
}

func (f *runFlags) checkKeepFailed() error {
	if f.keepFailed > 0 && f.nats.url != "" {
		return fmt.Errorf("--keep-failed: only the worker of this command keeps sandboxes, and those at %s run this job: leave out --nats, and name no context by --context \"\"", broker.ShownURL(f.nats.url))
	}
	return checkKeep("keep-failed", f.keepFailed)
}

// keeping returns the settings of a worker's rollouts.
func (f *runFlags) keeping() rollout.Keep {
	return rollout.Keep{For: max(f.keep, f.keepFailed), Each: f.keep > 0}
}
