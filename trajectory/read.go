// Package trajectory reads the transcript of a rollout's model calls. It links
// the calls to a tree, makes training rows of them, and writes them in the formats
// of other tools.
package trajectory

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Bounds of a transcript. Its content comes from an agent.
const (
	// maxLine is the length of the longest line, in bytes. The gate's largest
	// request body and the token ids of an answer are shorter.
	maxLine = 64 << 20
	// maxDecoded is the largest part of a transcript that is read, in bytes.
	maxDecoded = 4 << 30
	// maxWindow is the largest zstd window in bytes. The recorder uses 1 MB.
	maxWindow = 8 << 20
)

// TranscriptError reports a transcript that cannot be read.
type TranscriptError struct {
	Line   int // 1, 2, ...; 0: the file as a whole
	Reason string
}

func (e *TranscriptError) Error() string {
	if e.Line == 0 {
		return "transcript: " + e.Reason
	}
	return fmt.Sprintf("transcript: line %d: %s", e.Line, e.Reason)
}

// Each calls f for every line of a transcript (JSON lines, compressed with
// zstd). It holds one line in memory. The error is a *TranscriptError, or comes from f.
func Each(r io.Reader, f func(*schema.TranscriptLine) error) error {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return &TranscriptError{0, err.Error()}
	}
	defer z.Close()
	limited := &io.LimitedReader{R: z, N: maxDecoded}
	lines := bufio.NewReaderSize(limited, 64<<10)
	var line []byte
	options := readOptions()
	for n := 1; ; n++ {
		line, err = readLine(lines, line[:0])
		switch {
		case errors.Is(err, io.EOF) && limited.N == 0:
			return &TranscriptError{n, fmt.Sprintf("there are more than %d bytes", int64(maxDecoded))}
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return &TranscriptError{n, err.Error()}
		}
		var l schema.TranscriptLine
		if err := json.Unmarshal(line, &l, options); err != nil {
			return &TranscriptError{n, "not a line of a transcript: " + schema.Clip(rawjson.Plain(err).Error(), 200)}
		}
		if err := f(&l); err != nil {
			return err
		}
	}
}

// readLine appends the next line to room. With io.EOF it returns no line.
func readLine(r *bufio.Reader, room []byte) ([]byte, error) {
	for {
		part, err := r.ReadSlice('\n')
		room = append(room, part...)
		switch {
		case len(room) > maxLine:
			return room, fmt.Errorf("longer than %d bytes", maxLine)
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(room) > 0:
			return room, nil
		default:
			return room, err
		}
	}
}
