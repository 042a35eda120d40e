//go:build !(linux && amd64)

package clock

func step(int64) error { return ErrUnsupported }
