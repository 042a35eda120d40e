package modaltest

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
)

// sandbox is a sandbox with its commands.
type sandbox struct {
	id, task, app, token string
	place                *hostedtest.Place
	tags                 map[string]string
	definition           *pb.Sandbox
	started              time.Time
	life                 *time.Timer
	over                 chan struct{} // closed when it has ended

	mu    sync.Mutex
	lost  chan struct{} // closed to end the streams; replaced by LoseStreams
	idle  *time.Timer   // nil: it never ends by it
	execs map[string]*command
	live  int // commands that have not ended
	why   *pb.GenericResult
}

// make makes a sandbox.
func (s *Server) make(app string, tags map[string]string, d *pb.Sandbox) (*sandbox, error) {
	for name, value := range tags {
		for _, text := range []string{name, value} {
			if !regexp.MustCompile(`^[a-zA-Z0-9._-]{1,63}$`).MatchString(text) {
				return nil, fmt.Errorf("tag %q: %w", text, errTag)
			}
		}
	}
	name := strings.ToLower(rand.Text())
	sb := &sandbox{id: "sb-" + name, task: "ta-" + name + "V", app: app, token: jwt(), tags: tags, definition: d, over: make(chan struct{}), lost: make(chan struct{}), execs: map[string]*command{}}
	var err error
	if sb.place, err = hostedtest.NewPlace(filepath.Join(s.homes, name)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb.started = time.Now()
	s.all[sb.id] = sb
	s.made = append(s.made, sb.started)
	sb.life = time.AfterFunc(time.Duration(d.GetTimeoutSecs())*time.Second, func() { sb.end(pb.GenericResult_GENERIC_STATUS_TIMEOUT) })
	if after := time.Duration(d.GetIdleTimeoutSecs()) * time.Second; after > 0 {
		sb.idle = time.AfterFunc(after, func() { sb.end(pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT) })
	}
	return sb, nil
}

func (sb *sandbox) created() float64 { return float64(sb.started.UnixNano()) / float64(time.Second) }

func (sb *sandbox) tagList() []*pb.SandboxTag {
	var list []*pb.SandboxTag
	for name, value := range sb.tags {
		list = append(list, pb.SandboxTag_builder{TagName: name, TagValue: value}.Build())
	}
	return list
}

func (sb *sandbox) info() Info {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	d := sb.definition
	return Info{
		ID: sb.id, Tags: sb.tags, Runtime: d.GetRuntime(), Closed: d.GetNetworkAccess().GetNetworkAccessType() == pb.NetworkAccess_BLOCKED,
		MilliCPU: d.GetResources().GetMilliCpu(), MemoryMiB: d.GetResources().GetMemoryMb(),
		Life: time.Duration(d.GetTimeoutSecs()) * time.Second, Idle: time.Duration(d.GetIdleTimeoutSecs()) * time.Second, IsIdle: sb.live == 0, Pids: sb.place.Pids(),
	}
}

// result returns the reason for the end; nil: it has not ended.
func (sb *sandbox) result() *pb.GenericResult {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.why
}

// streams returns the channel that ends the streams of now.
func (sb *sandbox) streams() <-chan struct{} {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.lost
}

// start starts a command, unless a call that came before has.
func (sb *sandbox) start(id string, with hostedtest.Command) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.execs[id] != nil {
		return nil
	}
	proc, events, err := sb.place.Start(with)
	if err != nil {
		return err
	}
	c := &command{Process: proc, stdout: newKept(), stderr: newKept(), ended: make(chan struct{})}
	sb.execs[id] = c
	sb.live++
	if sb.idle != nil {
		sb.idle.Stop()
	}
	go func() {
		defer sb.done()
		c.run(events)
	}()
	return nil
}

// done counts the end of a command.
func (sb *sandbox) done() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.live--; sb.live == 0 && sb.idle != nil && sb.why == nil {
		sb.idle.Reset(time.Duration(sb.definition.GetIdleTimeoutSecs()) * time.Second)
	}
}

// end ends a sandbox, and reports whether it was there.
func (sb *sandbox) end(why pb.GenericResult_GenericStatus) bool {
	sb.mu.Lock()
	if sb.why != nil {
		sb.mu.Unlock()
		return false
	}
	sb.why = result(why, "")
	sb.life.Stop()
	if sb.idle != nil {
		sb.idle.Stop()
	}
	sb.mu.Unlock()
	close(sb.over)
	sb.place.End()
	return true
}
