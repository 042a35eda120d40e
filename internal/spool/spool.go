// Package spool keeps bytes in files of a worker until they are stored elsewhere, such as
// the output of an agent, so that they are not in memory.
package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// inMemory is the most bytes of one file in memory. A file that has no more is not on disk.
const inMemory = 64 << 10

// prefix begins the names of files on disk.
const prefix = "spool-"

// Folder makes files. A nil Folder makes them in the system's folder for temporary files.
type Folder struct{ dir string }

// Open makes the folder if it is missing. It removes the files of a process that was killed
// just after it made them: no other file has a name for longer.
func Open(dir string) (*Folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &Error{err}
	}
	found, err := os.ReadDir(dir)
	if err != nil {
		return nil, &Error{err}
	}
	for _, f := range found {
		if strings.HasPrefix(f.Name(), prefix) {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, &Error{err}
			}
		}
	}
	return &Folder{dir}, nil
}

// New returns an empty file. The caller closes it.
func (f *Folder) New() *File {
	if f == nil {
		return &File{}
	}
	return &File{dir: f.dir}
}

// Error means that the disk of the worker failed or is full.
type Error struct{ Err error }

func (e *Error) Error() string { return fmt.Sprintf("keep bytes on the worker's disk: %v", e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// File is a sequence of bytes. Its methods are safe for concurrent use.
type File struct {
	dir string

	mu   sync.Mutex
	buf  []byte   // the end, which is not on disk
	disk *os.File // nil: nothing is on disk. It has no name, and ends with the process.
	kept int64    // bytes on disk
	err  error    // of the disk, or os.ErrClosed
}

// Write adds bytes. It never fails: Content returns the error of the disk.
func (f *File) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for rest := p; len(rest) > 0 && f.err == nil; {
		n := min(len(rest), inMemory-len(f.buf))
		f.buf = append(f.buf, rest[:n]...)
		if rest = rest[n:]; len(rest) > 0 {
			f.flush()
		}
	}
	return len(p), nil
}

// flush writes the end to the disk. The caller holds the mutex.
func (f *File) flush() {
	if f.err == nil && f.disk == nil {
		if f.disk, f.err = os.CreateTemp(f.dir, prefix); f.err == nil {
			if f.err = os.Remove(f.disk.Name()); errors.Is(f.err, os.ErrNotExist) { // a process that starts has removed it
				f.err = nil
			}
		}
	}
	if f.err == nil {
		_, f.err = f.disk.WriteAt(f.buf, f.kept)
	}
	if f.err != nil {
		f.err = &Error{f.err}
		return
	}
	if f.kept == 0 { // a reader of Content may have it
		f.kept, f.buf = int64(len(f.buf)), nil
		return
	}
	f.kept += int64(len(f.buf))
	f.buf = f.buf[:0]
}

// Size returns the number of bytes so far.
func (f *File) Size() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept + int64(len(f.buf))
}

// Content returns the bytes so far, to be read until Reset or Close. It returns an *Error if
// some of them are missing; so do reads.
func (f *File) Content() (*io.SectionReader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil && f.disk == nil {
		return io.NewSectionReader(bytes.NewReader(f.buf), 0, int64(len(f.buf))), nil
	}
	if f.err == nil {
		f.flush()
	}
	if f.err != nil {
		return nil, f.err
	}
	return io.NewSectionReader(onDisk{f.disk}, 0, f.kept), nil
}

// onDisk reads a file on disk. Errors are io.EOF or an *Error.
type onDisk struct{ f *os.File }

func (d onDisk) ReadAt(p []byte, at int64) (int, error) {
	n, err := d.f.ReadAt(p, at)
	if err != nil && err != io.EOF {
		err = &Error{err}
	}
	return n, err
}

// Reset removes all bytes.
func (f *File) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(nil)
}

// Close frees the memory and the disk. Later bytes are dropped. Only the first call has an
// effect.
func (f *File) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(&Error{os.ErrClosed})
}

// drop removes all bytes and keeps err for later calls. The caller holds the mutex.
func (f *File) drop(err error) {
	if f.disk != nil {
		f.disk.Close()
	}
	f.buf, f.disk, f.kept, f.err = nil, nil, 0, err
}
