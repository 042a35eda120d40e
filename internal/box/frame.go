package box

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/turngate/turngate/sandboxes"
)

// A frame is one byte of kind, four bytes of big-endian length, and that many
// bytes.
const (
	frameHeader  = 'h' // worker → box: JSON header that opens an operation
	frameData    = 'd' // both ways: stdin or file content
	frameEOF     = 'e' // both ways: no more data
	frameResize  = 's' // worker → box: four bytes, rows and columns of the command's terminal
	frameStdout  = 'o' // box → worker
	frameStderr  = 'r' // box → worker
	frameAck     = 'a' // box → worker: eight bytes, the count of bytes delivered so far
	frameStarted = 'p' // box → worker: JSON, the command runs
	frameOK      = 'k' // box → worker: JSON result; the operation is over
	frameFail    = 'f' // box → worker: JSON failure; the operation is over
)

const (
	maxFrame = 256 << 10
	// maxHeader bounds the header of an operation, which has a command's arguments and
	// environment. Linux takes 2 MiB of them.
	maxHeader = 4 << 20
	chunk     = 32 << 10
)

type frameReader struct {
	r     *bufio.Reader
	buf   []byte
	limit int // of a frame, in bytes
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, chunk+16), limit: maxFrame}
}

// next returns one frame; its payload is valid until the next call.
func (f *frameReader) next() (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(binary.BigEndian.Uint32(head[1:]))
	if n > f.limit {
		return 0, nil, fmt.Errorf("a frame of %d bytes exceeds %d", n, f.limit)
	}
	if cap(f.buf) < n {
		f.buf = make([]byte, max(n, chunk))
	}
	f.buf = f.buf[:n]
	_, err = io.ReadFull(f.r, f.buf)
	return head[0], f.buf, err
}

// frameWriter writes whole frames; it is safe for concurrent use.
type frameWriter struct {
	mu sync.Mutex
	w  io.Writer
	b  []byte
}

func (f *frameWriter) write(kind byte, payload []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.b = append(f.b[:0], kind)
	f.b = binary.BigEndian.AppendUint32(f.b, uint32(len(payload)))
	f.b = append(f.b, payload...)
	_, err := f.w.Write(f.b)
	return err
}

func (f *frameWriter) json(kind byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	return f.write(kind, data)
}

// stream returns a writer that sends its input as frames of one kind.
func (f *frameWriter) stream(kind byte) io.Writer { return kindWriter{f, kind} }

type kindWriter struct {
	f    *frameWriter
	kind byte
}

func (w kindWriter) Write(p []byte) (int, error) {
	for n := 0; n < len(p); n += chunk {
		if err := w.f.write(w.kind, p[n:min(n+chunk, len(p))]); err != nil {
			return n, err
		}
	}
	return len(p), nil
}

// dataReader reads data frames up to the EOF frame as a stream.
type dataReader struct {
	f     *frameReader
	other func(kind byte, payload []byte) // receives frames of other kinds; nil: they are dropped
	rest  []byte
	err   error
}

func (d *dataReader) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.err != nil {
			return 0, d.err
		}
		kind, payload, err := d.f.next()
		switch {
		case err != nil:
			d.err = io.ErrUnexpectedEOF
		case kind == frameEOF:
			d.err = io.EOF
		case kind == frameData:
			d.rest = payload
		case d.other != nil:
			d.other(kind, payload)
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// header opens an operation. Fields that an operation does not use are empty.
type header struct {
	Op string `json:"op"`

	Path    string   `json:"path,omitempty"`
	Mode    uint32   `json:"mode,omitempty"`
	Owner   string   `json:"owner,omitempty"`
	Limit   int64    `json:"limit,omitempty"`
	Exclude []string `json:"exclude,omitempty"` // opTarOut only
	Links   bool     `json:"links,omitempty"`   // opTarOut only
	Folders []string `json:"folders,omitempty"` // opRelease only

	Args      []string `json:"args,omitempty"`
	Env       []string `json:"env,omitempty"`
	User      string   `json:"user,omitempty"`
	TimeoutMS int64    `json:"timeout_ms,omitempty"`
	Untrusted bool     `json:"untrusted,omitempty"`

	Terminal *sandboxes.TerminalSize `json:"terminal,omitempty"` // nil: the command has pipes

	Port int `json:"port,omitempty"` // opConnect and opForward only

	Job    uint64 `json:"job,omitempty"`
	Signal int    `json:"signal,omitempty"`
}

// The operations.
const (
	opExec    = "exec"
	opSignal  = "signal"
	opRead    = "read"
	opWrite   = "write"
	opStat    = "stat"
	opList    = "list"
	opMkdir   = "mkdir"
	opEmpty   = "empty"
	opRemove  = "remove"
	opTarIn   = "tar_in"
	opTarOut  = "tar_out"
	opForward = "forward"
	opPorts   = "ports"
	opConnect = "connect" // to a port of the sandbox
	opKillAll = "kill_all"
	opRelease = "release"
	opSpare   = "spare"
	opFreeze  = "freeze"
	opThaw    = "thaw"
	opHold    = "hold" // a stream of bytes as signs of life of the worker
)

// failure is the wire form of an error.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Arg     string `json:"arg,omitempty"`
	Limit   int64  `json:"limit,omitempty"`
}

// Codes of failures that callers distinguish.
const (
	failNotExist  = "not_exist"
	failNoCommand = "no_command"
	failNoUser    = "no_user"
	failTooLarge  = "too_large"
	failRefused   = "refused" // an operation on files
	failOther     = "other"
)
