package record

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/masks"
)

// file masks the keys in a file and keeps its length. An archive stays readable.
func (s *secrets) file(content *io.SectionReader) broker.File {
	keys, clean := s.All(), false
	return broker.File{Size: content.Size(), Open: func() io.Reader {
		var r io.Reader = io.NewSectionReader(content, 0, content.Size())
		if clean || len(keys) == 0 {
			return r
		}
		var found bool
		for _, key := range keys {
			r = newMasker(r, key, &found)
		}
		return &mender{masked: r, was: content, ended: func() { clean = !found }}
	}}
}

// masker reads a stream and masks a key in it. It keeps the stream's length.
type masker struct {
	from  io.Reader
	key   *masks.Search
	found *bool // set when the stream has the key
	err   error // of from

	buf   []byte
	ready []byte       // masked, and not read yet
	text  []byte       // that follows, not masked
	parts []masks.Part // that begin before the text and end in it
}

// maskRoom is the number of bytes that a masker reads at once.
const maskRoom = 64 << 10

func newMasker(from io.Reader, key string, found *bool) *masker {
	return &masker{from: from, key: masks.NewSearch(key), found: found, buf: make([]byte, maskRoom+len(key))}
}

func (m *masker) Read(p []byte) (int, error) {
	for len(m.ready) == 0 {
		if m.err != nil {
			return 0, m.err
		}
		m.fill()
	}
	n := copy(p, m.ready)
	m.ready = m.ready[n:]
	return n, nil
}

// fill reads on, and masks the text as far as it is known.
func (m *masker) fill() {
	have := copy(m.buf, m.text)
	n, err := m.from.Read(m.buf[have:])
	m.err = err
	m.text = m.buf[:have+n]
	whole := err != nil
	parts := append(m.parts, m.key.Parts(m.text, whole)...)
	slices.SortStableFunc(parts, func(a, b masks.Part) int { return cmp.Compare(a.Block, b.Block) }) // as in the whole text
	end := m.key.Settled()
	if whole {
		end = len(m.text)
	}
	m.ready, m.text, m.parts = m.text[:end], m.text[end:], m.parts[:0]
	m.key.Forget(end)
	for _, p := range parts {
		*m.found = true
		p.Hide(m.ready)
		if p.To > end {
			m.parts = append(m.parts, masks.Part{Block: p.Block, From: p.From - end, To: p.To - end})
		}
	}
}

// tarBlock is the size of the blocks of a tar archive.
const tarBlock = 512

// mender reads a masked file. If the file was a tar archive, it corrects the checksums of
// the headers that have changed. Each header has its checksum, as text, and the size of its
// file.
type mender struct {
	masked io.Reader
	was    *io.SectionReader
	ended  func() // called at the end of the file

	at     int64  // place of the next header in the file
	header []byte // to be read
	body   int64  // bytes before the next header
	rest   bool   // there are no more headers
}

func (m *mender) Read(p []byte) (int, error) {
	if len(m.header) == 0 && m.body == 0 && !m.rest {
		if err := m.next(); err != nil {
			return 0, err
		}
	}
	if len(m.header) > 0 {
		n := copy(p, m.header)
		m.header = m.header[n:]
		return n, nil
	}
	if !m.rest {
		p = p[:min(int64(len(p)), m.body)]
	}
	n, err := m.masked.Read(p)
	m.body -= int64(n)
	if errors.Is(err, io.EOF) {
		m.ended()
	}
	return n, err
}

// next reads and corrects the next header, if there is one.
func (m *mender) next() error {
	was, size := make([]byte, tarBlock), m.was.Size()
	if m.at+tarBlock > size {
		m.rest = true
		return nil
	}
	if _, err := m.was.ReadAt(was, m.at); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if m.rest = !bytes.HasPrefix(was[257:], []byte("ustar")); m.rest {
		return nil
	}
	m.header = make([]byte, tarBlock)
	if _, err := io.ReadFull(m.masked, m.header); err != nil {
		m.header = nil
		return err
	}
	if !bytes.Equal(m.header, was) {
		copy(m.header[148:], "        ")
		sum := 0
		for _, b := range m.header {
			sum += int(b)
		}
		copy(m.header[148:], fmt.Sprintf("%06o\x00 ", sum))
	}
	n, ok := tarSize(m.header[124:136])
	if m.rest = !ok || n > size; !m.rest {
		m.body = (n + tarBlock - 1) / tarBlock * tarBlock
		m.at += tarBlock + m.body
	}
	return nil
}

// tarSize reads the size of a file: octal digits, or a number of base 256 if the first
// bit is set.
func tarSize(field []byte) (size int64, ok bool) {
	if field[0]&0x80 == 0 {
		size, err := strconv.ParseInt(strings.Trim(string(field), " \x00"), 8, 64)
		return size, err == nil && size >= 0
	}
	for _, b := range field[len(field)-7:] {
		size = size<<8 | int64(b)
	}
	return size, true
}
