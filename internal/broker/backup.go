package broker

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/internal/stranger"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Backup describes the files of a backup. It has the streams on disk, in the order in
// which they were read.
type Backup struct {
	V       int           `json:"v"`
	Version string        `json:"version"` // of the program that wrote it
	At      time.Time     `json:"at"`
	Streams []SavedStream `json:"streams"`
}

// SavedStream is a stream of a backup, with its consumers.
type SavedStream struct {
	Name     string          `json:"name"`
	Messages uint64          `json:"messages"` // when its snapshot began
	File     string          `json:"file"`
	Bytes    int64           `json:"bytes"` // of the file
	SHA256   string          `json:"sha256"`
	Config   json.RawMessage `json:"config"` // as the server has it
	State    json.RawMessage `json:"state"`
}

// manifest is the file of a Backup. It is written last.
const manifest = "backup.json"

// maxManifest bounds the file in bytes.
const maxManifest = 256 << 20

// SaveBackup writes the streams of a server to a new or an empty folder, which gets the
// mode 0700, and calls saved after each. The server and its clients may work meanwhile.
// Streams in memory are left out: workers write them anew. The connection needs the
// rights of the admin.
//
// Queues are read first, then records, then files. So a request of a queue may have ended
// by its record, and is dropped when it is delivered; and a file that a record names is
// in the backup.
//
// The server reads the messages that were there at the beginning of a stream's snapshot,
// one after the other: one that is replaced before its turn is in no backup, nor is its
// successor.
// A folder that is not empty, or that belongs to another user, is refused and stays as it is.
func SaveBackup(ctx context.Context, b *Broker, dir, version string, saved func(*SavedStream)) (_ *Backup, err error) {
	if err := emptyFolder(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("the backup in %s is not complete, `turngate restore` refuses it: %w", dir, err)
		}
	}()
	all, err := b.streamsOnDisk(ctx)
	if err != nil {
		return nil, err
	}
	out := &Backup{V: schema.Version, Version: version, At: time.Now().UTC()}
	for _, name := range all {
		s, err := b.saveStream(ctx, dir, name)
		if IsMissing(err) { // its trainer was removed meanwhile
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("save stream %s: %w", name, err)
		}
		out.Streams = append(out.Streams, *s)
		saved(s)
	}
	data, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("describe the backup: %w", err)
	}
	if err := owned.Replace(filepath.Join(dir, manifest), append(data, '\n')); err != nil {
		return nil, fmt.Errorf("describe the backup: %w", err)
	}
	return out, nil
}

func emptyFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the backup: %w", err)
	}
	if err := owned.Check(dir); err != nil {
		return fmt.Errorf("make the folder of the backup: %w", err)
	}
	there, err := os.ReadDir(dir)
	if err == nil && len(there) > 0 {
		err = fmt.Errorf("%s is not empty, it has %s: want a new folder", dir, there[0].Name())
	}
	if err == nil {
		err = os.Chmod(dir, 0o700) //nolint:gosec // a folder
	}
	return err
}

// streamsOnDisk lists the streams to save, in the order of SaveBackup.
func (l *link) streamsOnDisk(ctx context.Context) ([]string, error) {
	order := map[string]int{}
	list := l.js.ListStreams(ctx)
	for info := range list.Info() {
		switch c := info.Config; {
		case c.Storage == jetstream.MemoryStorage:
		case c.Retention == jetstream.WorkQueuePolicy:
			order[c.Name] = 1
		case strings.HasPrefix(c.Name, subjects.ObjectStream("")):
			order[c.Name] = 3
		default:
			order[c.Name] = 2
		}
	}
	if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return nil, fmt.Errorf("list the streams: %w", Reach(err))
	}
	var names []string
	for name := range order {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(order[a], order[b]), cmp.Compare(a, b)) })
	return names, nil
}

// saveStream writes the snapshot of a stream to a file of its name.
func (l *link) saveStream(ctx context.Context, dir, name string) (_ *SavedStream, err error) {
	s := &SavedStream{Name: name, File: name + ".snapshot"}
	if !filepath.IsLocal(s.File) {
		return nil, errors.New("its name is no name of a file")
	}
	file, err := os.OpenFile(filepath.Join(dir, s.File), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := file.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = os.Remove(file.Name()) // the cause is reported
		}
	}()
	sum := sha256.New()
	to := bufio.NewWriterSize(io.MultiWriter(file, sum), chunkBytes)
	if s.Bytes, err = l.snapshot(ctx, s, to); err != nil {
		return nil, err
	}
	if err := to.Flush(); err != nil {
		return nil, err
	}
	s.SHA256 = hex.EncodeToString(sum.Sum(nil))
	var state struct{ Messages uint64 }
	if err := json.Unmarshal(s.State, &state); err != nil {
		return nil, fmt.Errorf("read its state: %w", rawjson.Plain(err))
	}
	s.Messages = state.Messages
	return s, file.Sync()
}

// ErrNotEmpty reports a server that has streams already.
var ErrNotEmpty = errors.New("the server is not empty")

// OpenBackup reads the description of a backup and checks the files with their sums. A folder
// and files of another user are refused: their streams would have what that user likes.
func OpenBackup(ctx context.Context, dir string) (*Backup, error) {
	folder, err := stranger.OpenOwn(dir)
	if err != nil {
		return nil, fmt.Errorf("open the backup: %w", err)
	}
	defer folder.Close()
	data, err := folder.Read(manifest, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no backup, or one that did not end: it has no %s", dir, manifest)
	}
	if err != nil {
		return nil, fmt.Errorf("open the backup %s: %w", dir, err)
	}
	var b Backup
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, manifest), rawjson.Plain(err))
	}
	if b.V != schema.Version {
		return nil, fmt.Errorf("%s has version %d of the protocol: want %d", dir, b.V, schema.Version)
	}
	for i := range b.Streams {
		if err := b.Streams[i].check(ctx, folder); err != nil {
			return nil, err
		}
	}
	return &b, nil
}

// check compares the file of a stream with its sum.
func (s *SavedStream) check(ctx context.Context, folder *stranger.Folder) error {
	if !filepath.IsLocal(s.File) || s.Name == "" || strings.ContainsAny(s.Name, ".*> \t\r\n") {
		return fmt.Errorf("the backup has a stream %q in the file %q: want the name of a stream and of a file in the backup", s.Name, s.File)
	}
	file, err := folder.Open(s.File, s.Bytes)
	if err != nil {
		return fmt.Errorf("open the backup of %s: %w", s.Name, err)
	}
	defer file.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, &endsWith{ctx, file})
	if err != nil {
		return fmt.Errorf("read the backup of %s: %w", s.Name, err)
	}
	if is := hexOf(sum); n != s.Bytes || is != s.SHA256 {
		return fmt.Errorf("%s is damaged: it has %d bytes with the sum %s; the backup had %d with %s", s.File, n, is, s.Bytes, s.SHA256)
	}
	return nil
}

// endsWith reads a file until a context ends.
type endsWith struct {
	ctx  context.Context
	file io.Reader
}

func (e *endsWith) Read(p []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.file.Read(p)
}

func hexOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// RestoreBackup makes the streams of a backup on a server without streams, and calls
// restored after each. The error wraps ErrNotEmpty if the server has streams, also a worker's
// streams. After an error it deletes the streams that it has made. Queues are made last, so
// that no worker takes a request before its records exist.
func RestoreBackup(ctx context.Context, b *Broker, dir string, from *Backup, restored func(*SavedStream)) (err error) {
	list := b.js.StreamNames(ctx)
	there := ""
	for name := range list.Name() {
		there = cmp.Or(there, name)
	}
	if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return fmt.Errorf("list the streams: %w", Reach(err))
	}
	if there != "" {
		return fmt.Errorf("%w: it has the stream %s; restore into a new server before a worker connects to it", ErrNotEmpty, there)
	}
	made := 0
	defer func() {
		if err == nil {
			return
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.OpTimeout)
		defer cancel()
		for i := range from.Streams[len(from.Streams)-made:] {
			derr := b.js.DeleteStream(clean, from.Streams[len(from.Streams)-1-i].Name)
			if derr != nil && !errors.Is(derr, jetstream.ErrStreamNotFound) {
				err = errors.Join(err, fmt.Errorf("delete the restored stream: %w", derr))
			}
		}
	}()
	folder, err := stranger.OpenOwn(dir)
	if err != nil {
		return fmt.Errorf("open the backup: %w", err)
	}
	defer folder.Close()
	for i := len(from.Streams) - 1; i >= 0; i-- {
		s := &from.Streams[i]
		made++
		if err := b.restoreStream(ctx, folder, s); err != nil {
			return fmt.Errorf("restore stream %s: %w", s.Name, err)
		}
		restored(s)
	}
	return nil
}

func (l *link) restoreStream(ctx context.Context, folder *stranger.Folder, s *SavedStream) error {
	file, err := folder.Open(s.File, s.Bytes)
	if err != nil {
		return err
	}
	defer file.Close()
	return l.unpackSnapshot(ctx, s, file)
}
