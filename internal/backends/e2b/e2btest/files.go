package e2btest

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turngate/turngate/internal/backends/e2b/envd"
	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
)

// filesystem is envd's filesystem service, for the home of the sandbox.
type filesystem struct{ server *Server }

func (f filesystem) at(h http.Header, p string) (string, error) {
	sb, _, err := processes(f).sandboxOf(h)
	if err != nil {
		return "", err
	}
	path, err := sb.Path(p)
	if err != nil {
		return "", connect.NewError(connect.CodePermissionDenied, err)
	}
	return path, nil
}

// problem makes the error of an operation on a file.
func problem(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, fs.ErrExist):
		return connect.NewError(connect.CodeAlreadyExists, err)
	}
	return connect.NewError(connect.CodeInternal, err)
}

func entry(path string) (*envd.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, problem(err)
	}
	e := &envd.EntryInfo{Name: info.Name(), Path: path, Size: info.Size(), Mode: uint32(info.Mode().Perm()), Permissions: info.Mode().String(), Owner: "root", Group: "root", ModifiedTime: timestamppb.New(info.ModTime())}
	switch {
	case info.IsDir():
		e.Type = envd.FileType_FILE_TYPE_DIRECTORY
	case info.Mode().IsRegular():
		e.Type = envd.FileType_FILE_TYPE_FILE
	case info.Mode().Type() == fs.ModeSymlink:
		e.Type = envd.FileType_FILE_TYPE_SYMLINK
		if target, err := os.Readlink(path); err == nil {
			e.SymlinkTarget = &target
		}
	}
	return e, nil
}

// Stat implements envdconnect.FilesystemHandler.
func (f filesystem) Stat(_ context.Context, r *connect.Request[envd.StatRequest]) (*connect.Response[envd.StatResponse], error) {
	path, err := f.at(r.Header(), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	e, err := entry(path)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.StatResponse{Entry: e}), nil
}

// MakeDir implements envdconnect.FilesystemHandler.
func (f filesystem) MakeDir(_ context.Context, r *connect.Request[envd.MakeDirRequest]) (*connect.Response[envd.MakeDirResponse], error) {
	path, err := f.at(r.Header(), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err == nil {
		return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("%s exists", path))
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, problem(err)
	}
	e, err := entry(path)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.MakeDirResponse{Entry: e}), nil
}

// Move implements envdconnect.FilesystemHandler.
func (f filesystem) Move(_ context.Context, r *connect.Request[envd.MoveRequest]) (*connect.Response[envd.MoveResponse], error) {
	from, err := f.at(r.Header(), r.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	to, err := f.at(r.Header(), r.Msg.GetDestination())
	if err != nil {
		return nil, err
	}
	if err := os.Rename(from, to); err != nil {
		return nil, problem(err)
	}
	e, err := entry(to)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.MoveResponse{Entry: e}), nil
}

// ListDir implements envdconnect.FilesystemHandler.
func (f filesystem) ListDir(_ context.Context, r *connect.Request[envd.ListDirRequest]) (*connect.Response[envd.ListDirResponse], error) {
	dir, err := f.at(r.Header(), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	out := &envd.ListDirResponse{}
	depth := max(int(r.Msg.GetDepth()), 1)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		e, err := entry(path)
		if err != nil {
			return err
		}
		out.Entries = append(out.Entries, e)
		if rel, _ := filepath.Rel(dir, path); d.IsDir() && strings.Count(rel, "/")+1 >= depth {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, problem(err)
	}
	return connect.NewResponse(out), nil
}

// Remove implements envdconnect.FilesystemHandler.
func (f filesystem) Remove(_ context.Context, r *connect.Request[envd.RemoveRequest]) (*connect.Response[envd.RemoveResponse], error) {
	path, err := f.at(r.Header(), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, problem(err)
	}
	return connect.NewResponse(&envd.RemoveResponse{}), nil
}

// files serves GET and POST of /files.
func (s *Server) files(w http.ResponseWriter, r *http.Request) {
	sb, _ := s.find(r.Header.Get("E2b-Sandbox-Id"))
	if r.Header.Get("E2b-Sandbox-Id") == "" {
		sb = s.signedFor(r)
	}
	if sb == nil {
		fail(w, http.StatusBadGateway, "the sandbox was not found")
		return
	}
	if err := sb.mayUse(r); err != nil {
		fail(w, http.StatusUnauthorized, err.Error())
		return
	}
	switch r.Method {
	case http.MethodGet:
		sb.download(w, r)
	case http.MethodPost:
		sb.upload(w, r)
	default:
		fail(w, http.StatusMethodNotAllowed, r.Method)
	}
}

// signedFor returns the sandbox for which a URL is signed: E2B's service reads it from the
// host's name, but all sandboxes of the test server have one.
func (s *Server) signedFor(r *http.Request) *sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sb := range s.all {
		if sb.mayUse(r) == nil {
			return sb
		}
	}
	return nil
}

// mayUse checks the token, or the signature of the URL.
func (sb *sandbox) mayUse(r *http.Request) error {
	if token := r.Header.Get("X-Access-Token"); token != "" {
		if token != sb.token {
			return errors.New("access token present in header but does not match")
		}
		return nil
	}
	q := r.URL.Query()
	operation := map[string]string{http.MethodGet: "read", http.MethodPost: "write"}[r.Method]
	text := q.Get("path") + ":" + operation + ":" + q.Get("username") + ":" + sb.token
	if q.Has("signature_expiration") {
		text += ":" + q.Get("signature_expiration")
		if at, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64); err != nil || time.Unix(at, 0).Before(time.Now()) {
			return errors.New("signature is already expired")
		}
	}
	sum := sha256.Sum256([]byte(text))
	if subtle.ConstantTimeCompare([]byte(q.Get("signature")), []byte("v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))) != 1 {
		return errors.New("invalid signature")
	}
	return nil
}

func (sb *sandbox) download(w http.ResponseWriter, r *http.Request) {
	path, err := sb.Path(r.URL.Query().Get("path"))
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	f, err := os.Open(path)
	if err != nil {
		fail(w, http.StatusNotFound, fmt.Sprintf("path '%s' does not exist", path))
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		fail(w, http.StatusBadRequest, fmt.Sprintf("path '%s' is a directory", path))
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), f)
}

func (sb *sandbox) upload(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, err := gzip.NewReader(r.Body)
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		r.Body = body
	}
	var stored []map[string]string
	store := func(name string, from io.Reader) bool {
		if p := r.URL.Query().Get("path"); p != "" {
			name = p
		}
		path, err := sb.Path(name)
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return false
		}
		if err := hostedtest.Write(path, from); err != nil {
			fail(w, http.StatusInternalServerError, err.Error())
			return false
		}
		stored = append(stored, map[string]string{"path": path, "name": filepath.Base(path), "type": "file"})
		return true
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/octet-stream" {
		if !store("", r.Body) {
			return
		}
		reply(w, http.StatusOK, stored)
		return
	}
	parts, err := r.MultipartReader()
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if part.FormName() == "file" && !store(params["filename"], part) {
			return
		}
	}
	reply(w, http.StatusOK, stored)
}
