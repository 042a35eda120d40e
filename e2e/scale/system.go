package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
)

// trainerName is the trainer of a run.
const trainerName = "scale"

// system is one NATS server or three, with their files in a folder.
type system struct {
	dir     string
	urls    []string // of each server
	keys    *broker.Keyring
	servers []*child
}

// startSystem starts the servers of a run with credentials for so many workers.
func startSystem(ctx context.Context, o options, workers int) (*system, error) {
	dir, err := os.MkdirTemp("", "turngate-scale-")
	if err != nil {
		return nil, err
	}
	s := &system{dir: dir}
	if s.keys, err = broker.OpenKeyring(filepath.Join(dir, "creds")); err != nil {
		return nil, err
	}
	err = s.keys.AddTrainer(trainerName, "")
	for i := range workers {
		err = errors.Join(err, s.keys.AddWorker(workerName(i), ""))
	}
	if err == nil {
		err = s.start(ctx, o)
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func workerName(i int) string { return fmt.Sprintf("w%d", i) }

func (s *system) start(ctx context.Context, o options) error {
	ports, err := freePorts(2 * o.servers)
	if err != nil {
		return err
	}
	var routes []string
	for _, p := range ports[o.servers:] {
		routes = append(routes, "127.0.0.1:"+p)
	}
	for i, p := range ports[:o.servers] {
		args := []string{"nats", "--state", filepath.Join(s.dir, fmt.Sprintf("n%d", i)), "--port", p, "--trainers", trainerName}
		if o.servers > 1 {
			args = append(args, "--cluster-name", fmt.Sprintf("n%d", i), "--cluster-port", ports[o.servers+i], "--routes", strings.Join(routes, ","))
		}
		args = append(args, "--creds-dir", s.keys.Dir())
		if o.relaxed {
			args = append(args, "--relaxed-sync")
		}
		c, err := startChild(ctx, o.turngate, args...)
		if err != nil {
			return err
		}
		s.servers = append(s.servers, c)
		s.urls = append(s.urls, "nats://127.0.0.1:"+p)
	}
	for _, c := range s.servers {
		if err := c.await("more "); err != nil {
			return err
		}
	}
	return nil
}

// url is that of all servers.
func (s *system) url() string { return strings.Join(s.urls, ",") }

// startProcess starts this program as a worker or a trainer, and waits until it is ready.
func (s *system) startProcess(ctx context.Context, o options, kind string, p process) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c, err := startChild(ctx, self, kind, "-url", p.url, "-creds", p.creds, "-name", p.name, "-dir", filepath.Join(s.dir, p.name), "-rollouts", strconv.Itoa(o.rollouts), "-servers", strconv.Itoa(o.servers))
	if err != nil {
		return nil, err
	}
	if err := c.await("ready"); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// stop ends the servers and removes their files.
func (s *system) stop() {
	for _, c := range s.servers {
		c.stop()
	}
	_ = os.RemoveAll(s.dir)
}

// usage adds up the resources that the servers use.
func (s *system) usage() (u usage, err error) {
	for _, c := range s.servers {
		one, oneErr := c.usage()
		u.resident, u.cpu, err = u.resident+one.resident, u.cpu+one.cpu, errors.Join(err, oneErr)
	}
	return u, err
}

// dial connects to the servers. It tries again until ctx ends.
func (s *system) dial(ctx context.Context, role, name, creds string) (*broker.Broker, error) {
	return dial(ctx, role, process{url: s.url(), creds: creds, name: name})
}

func dial(ctx context.Context, role string, p process) (*broker.Broker, error) {
	for {
		b, err := broker.Dial(ctx, broker.Config{URL: p.url, Creds: p.creds, Name: p.name, Inbox: broker.InboxFor(role, p.name), Log: zerolog.Nop()})
		if err == nil || wire.Pause(ctx, 200*time.Millisecond) != nil {
			return b, err
		}
	}
}

// setUp makes the streams, with trainers of small bounds, since a server reserves them on
// its disk. A cluster answers once it has a leader.
func setUp(ctx context.Context, b *broker.Broker, c broker.StreamsConfig, trainers ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("the streams were not made within two minutes"))
	defer cancel()
	c.Trainer = broker.TrainerSettings{MaxQueueBytes: 64 << 20, MaxBundleBytes: 16 << 20, MaxArtifactBytes: 16 << 20}
	for {
		op, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := b.Streams.Setup(op, c)
		for _, tid := range trainers {
			if err == nil {
				_, err = b.Trainers.Open(op, tid)
			}
		}
		cancel()
		if err == nil || wire.Pause(ctx, 500*time.Millisecond) != nil {
			return err
		}
	}
}

func freePorts(n int) (out []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // after all are chosen
		_, port, _ := net.SplitHostPort(l.Addr().String())
		out = append(out, port)
	}
	return out, nil
}

// child is a process of a run. Its lines on stdout tell its progress.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	tell  *os.File // its stdin
}

func startChild(ctx context.Context, program string, args ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, program, args...)}
	c.cmd.Stderr = os.Stderr
	if strings.HasSuffix(program, "turngate") {
		c.cmd.Stderr = nil // its log
	}
	in, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	c.cmd.Stdin, c.tell = in, tell
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.lines = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s %s: %w", program, args[0], err)
	}
	return c, nil
}

// await waits for a line with this beginning.
func (c *child) await(begin string) error {
	_, err := c.line(begin)
	return err
}

// line waits for a line with this beginning, and returns its rest.
func (c *child) line(begin string) (string, error) {
	for c.lines.Scan() {
		if rest, ok := strings.CutPrefix(c.lines.Text(), begin); ok {
			return rest, nil
		}
	}
	return "", fmt.Errorf("%s %s ended before it said %q", c.cmd.Path, c.cmd.Args[1], begin)
}

func (c *child) stop() {
	c.tell.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// usage has the resources that a process uses.
type usage struct {
	resident int64         // bytes
	cpu      time.Duration // since its start
}

func (c *child) usage() (u usage, err error) {
	folder := fmt.Sprintf("/proc/%d/", c.cmd.Process.Pid)
	status, err := os.ReadFile(folder + "status")
	if err != nil {
		return u, err
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	if fields := strings.Fields(rest); len(fields) > 0 {
		kb, _ := strconv.ParseInt(fields[0], 10, 64)
		u.resident = kb << 10
	}
	stat, err := os.ReadFile(folder + "stat")
	if err != nil {
		return u, err
	}
	_, rest, _ = strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return u, fmt.Errorf("%sstat cannot be read", folder)
	}
	for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
		n, _ := strconv.ParseInt(f, 10, 64)
		u.cpu += time.Duration(n) * 10 * time.Millisecond
	}
	return u, nil
}
