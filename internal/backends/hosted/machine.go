package hosted

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	neturl "net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/plain"
)

// Machine is a sandbox of a service.
type Machine struct {
	*far.Host
	Remote

	lapses lapses
	over   chan struct{} // closed by End
	once   sync.Once
	why    error // valid after over
}

// Remote is the part of a machine that differs between services.
type Remote interface {
	// Process returns a process that can be started once.
	Process() Process
	// Put stores a file of this host, which is a program, under an absolute path.
	Put(ctx context.Context, file, path string) error
	// Gone returns the reason if the service has ended the machine, and nil otherwise.
	Gone(ctx context.Context) error
}

// Process is a command in a machine. It goes on when its stream breaks.
type Process interface {
	// Run starts a shell script and passes on its output until it ends. It returns the
	// way in which it ended, such as "exit status 1". An error means that the stream broke.
	Run(ctx context.Context, script string, to Streams) (end string, err error)
	// Input writes to the process, after Run has called Started.
	Input(ctx context.Context, data []byte) error
}

// Streams receive the events of a process. Calls do not overlap.
type Streams struct {
	Started        func() error // an error ends the process
	Output, Errors func([]byte)
}

// NewMachine returns a machine.
func NewMachine(host *far.Host, r Remote) *Machine {
	return &Machine{Host: host, Remote: r, over: make(chan struct{})}
}

// End breaks the lines to the machine. It keeps the first reason.
func (m *Machine) End(why error) {
	m.once.Do(func() {
		m.why = why
		close(m.over)
	})
}

// isOver reports whether End was called.
func (m *Machine) isOver() bool {
	select {
	case <-m.over:
		return true
	default:
		return false
	}
}

// goneTime bounds a look at the state of a machine.
const goneTime = 20 * time.Second

// ended returns the reason if the machine is over, for which it asks the service.
func (m *Machine) ended(ctx context.Context) error {
	if !m.isOver() {
		limited, cancel := context.WithTimeout(ctx, goneTime)
		defer cancel()
		gone := m.Gone(limited)
		if gone == nil {
			return nil
		}
		m.End(m.lapses.explain(gone))
	}
	return m.why
}

// saidMissing is the first line of the other side after its mark if turngate is not
// there. The system, the machine and the folder for the program follow.
const saidMissing = "missing"

// startScript starts the program with this digest, which may be a part of the machine's
// image, with flags before its folder and arguments after it, or says that it is missing.
func startScript(backend, digest, flags, args string) string {
	return `umask 077; d="${HOME:-/root}/.cache/turngate/` + backend + `"; mkdir -p "$d" || exit 1; for f in "$d/` + program(digest) + `" /usr/local/bin/turngate; do ` +
		`[ -s "$f" ] || continue; case $(sha256sum <"$f") in ` + digest + `*) [ -x "$f" ] || chmod 755 "$f" || exit 1; exec "$f" ` + far.Command + flags + ` "$d"` + args + `;; esac; done; ` +
		`echo "` + far.Mark + saidMissing + ` $(uname -s) $(uname -m) $d"`
}

func program(digest string) string { return "turngate-" + digest }

// Dial returns a line to far.Serve in the machine. It brings the program of this path and
// digest if the machine does not have it. image says in an error where the machine comes
// from, see far.Fits.
func (m *Machine) Dial(ctx context.Context, helper, digest, image string, log func(string)) (*Line, error) {
	l, missing, err := m.tryDial(ctx, digest)
	if err != nil || missing == nil {
		return l, err
	}
	if err := far.Fits(missing[0]+" "+missing[1], m.Backend, image, ""); err != nil {
		return nil, err
	}
	log("turngate travels to " + m.Called)
	if err := m.Put(ctx, helper, missing[2]+"/"+program(digest)); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Called, err)
	}
	if l, missing, err = m.tryDial(ctx, digest); err == nil && missing != nil {
		err = fmt.Errorf("%s: turngate has arrived there with another digest", m.Called)
	}
	return l, err
}

// maxFolder bounds the name of the folder for the program.
const maxFolder = 1 << 10

// Bounds of the wait for the first line of a process. A service may find a new machine late.
const (
	dialTime   = 4 * time.Minute
	attachTime = 20 * time.Second
)

// tryDial returns a line to far.Serve, or the system, machine and folder if turngate is
// missing.
func (m *Machine) tryDial(ctx context.Context, digest string) (_ *Line, missing []string, err error) {
	l, said, err := m.begin(ctx, dialTime, startScript(m.Backend, digest, "", ""))
	if err != nil || said == far.Ready {
		return l, nil, err
	}
	l.End(ctx)
	words, _ := strings.CutPrefix(said, saidMissing+" ")
	if missing = strings.SplitN(words, " ", 3); len(missing) < 3 || !strings.HasPrefix(missing[2], "/") || len(missing[2]) > maxFolder {
		return nil, nil, fmt.Errorf("%s answers %q", m.Called, plain.Line(said, far.MaxSays))
	}
	return nil, missing, nil
}

// attach returns a connection to the Serve that keeps the line of this name.
func (m *Machine) attach(ctx context.Context, digest, name string) (far.Carrier, error) {
	l, said, err := m.begin(ctx, attachTime, startScript(m.Backend, digest, " "+far.AttachFlag, " "+name))
	if err == nil {
		if err = far.Attached(said); err == nil {
			return l, nil
		}
		l.End(ctx)
	}
	if m.isOver() {
		err = fmt.Errorf("%w: %w", far.ErrGone, m.why)
	}
	return nil, err
}

// begin starts a script and returns its first marked line. More than limit is an error.
func (m *Machine) begin(ctx context.Context, limit time.Duration, script string) (*Line, string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s: no answer within %s", m.Called, limit))
	defer cancel()
	l, err := m.start(ctx, script)
	if err != nil {
		return nil, "", err
	}
	said, err := l.Marked(ctx)
	if err == nil {
		err = context.Cause(ctx) // its end may have set a deadline
	}
	if err != nil {
		l.End(ctx)
		return nil, "", err
	}
	return l, said, nil
}

// uploadTime bounds the upload of a program.
const uploadTime = 10 * time.Minute

// Upload sends a file of this host as a form to a URL, which it keeps out of its errors,
// and returns the answer's body.
func (s *Service) Upload(ctx context.Context, by *http.Client, url, file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read turngate's own program: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read turngate's own program: %w", err)
	}
	var frame bytes.Buffer
	form := multipart.NewWriter(&frame)
	if _, err := form.CreateFormFile("file", "turngate"); err != nil {
		return nil, fmt.Errorf("write a form: %w", err)
	}
	head := frame.Len()
	if err := form.Close(); err != nil {
		return nil, fmt.Errorf("write a form: %w", err)
	}
	all := frame.Bytes()
	ctx, cancel := context.WithTimeoutCause(ctx, uploadTime, fmt.Errorf("turngate did not arrive within %s", uploadTime))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, io.MultiReader(bytes.NewReader(all[:head]), f, bytes.NewReader(all[head:])))
	if err != nil {
		return nil, fmt.Errorf("send turngate: %w", withoutURL(err))
	}
	req.ContentLength = int64(len(all)) + info.Size()
	req.Header.Set("Content-Type", form.FormDataContentType())
	res, err := by.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("send turngate: %w", withoutURL(err))
	}
	defer res.Body.Close()
	body, err := s.Read(res)
	if err != nil {
		return nil, fmt.Errorf("send turngate: %w", err)
	}
	return body, nil
}

// withoutURL removes the URL, which may have a signature, from an error of http.
func withoutURL(err error) error {
	var u *neturl.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
