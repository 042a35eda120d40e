package front

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// maxBundle is the largest bundle that a front takes, in bytes.
const maxBundle = 64 << 20

// bundleWithin bounds the time of an upload.
const bundleWithin = 10 * time.Minute

// file answers with a file of an ended rollout, chunk by chunk.
func (s *Server) file(w http.ResponseWriter, r *http.Request, t *tenant) error {
	l, err := t.dial(r.Context())
	if err != nil {
		return err
	}
	one, err := l.find(r.Context(), t, r.PathValue("id"), false)
	if err != nil {
		return err
	}
	name := r.PathValue("name")
	if one.Result == nil {
		return problemf(http.StatusConflict, codeConflict, string(one.ID)+" has not ended, so it has no files yet")
	}
	for _, a := range one.Result.Artifacts {
		if a.Name != name {
			continue
		}
		h := w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Disposition", "attachment") // no browser opens an agent's file
		h.Set("Content-Length", strconv.FormatInt(a.Size, 10))
		err := l.b.Objects.CopyArtifact(r.Context(), t.name, a.SHA256, slowly{w})
		if errors.Is(err, broker.ErrNotFound) {
			return problemf(http.StatusNotFound, codeNotFound, "the file is not kept any more")
		}
		return err
	}
	return problemf(http.StatusNotFound, codeNotFound, string(one.ID)+" has no file "+strconv.Quote(schema.Clip(name, 200)))
}

// slowly writes as long as the client reads.
type slowly struct{ w http.ResponseWriter }

func (s slowly) Write(p []byte) (int, error) {
	if err := http.NewResponseController(s.w).SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
		return 0, err
	}
	return s.w.Write(p)
}

// stored is the answer to an upload.
type stored struct {
	SHA256 string `json:"sha256"` // for task.bundle
}

// putBundle stores the files of a task: a tar archive, compressed with zstd.
func (s *Server) putBundle(w http.ResponseWriter, r *http.Request, t *tenant) error {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != "application/zstd" {
		return problemf(http.StatusUnsupportedMediaType, schema.CodeUnsupported, "want the header Content-Type: application/zstd")
	}
	done, err := t.upload()
	if err != nil {
		return err
	}
	defer done()
	control, until := http.NewResponseController(w), time.Now().Add(bundleWithin)
	if err := errors.Join(control.SetReadDeadline(until), control.SetWriteDeadline(until.Add(answerWithin))); err != nil {
		return err
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBundle))
	if err != nil {
		return readError(err)
	}
	l, err := t.dial(r.Context())
	if err != nil {
		return err
	}
	sha, err := l.queue.PutBundle(r.Context(), data)
	if err != nil {
		return err
	}
	return reply(w, http.StatusCreated, stored{sha})
}
