package docker

import (
	"bytes"
	"io"
	"testing"
)

// FuzzTheOutputOfAContainer reads any bytes as the engine's frames: output is the content
// of whole and broken frames of standard output, and nothing else.
func FuzzTheOutputOfAContainer(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x02hi\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01!"))
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x01e"))
	f.Add([]byte("\x01\x00\x00\x00\xff\xff\xff\xffcut"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var want []byte
		for rest := data; len(rest) >= frameHead && rest[0] == frameStdout; {
			n := int(rest[4])<<24 | int(rest[5])<<16 | int(rest[6])<<8 | int(rest[7])
			n = min(n, len(rest)-frameHead)
			want = append(want, rest[frameHead:frameHead+n]...)
			rest = rest[frameHead+n:]
		}
		got, _ := io.ReadAll(&attached{from: bytes.NewReader(data)})
		if !bytes.Equal(got, want) {
			t.Errorf("%q gives %q, want %q", data, got, want)
		}
	})
}
