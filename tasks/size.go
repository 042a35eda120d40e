package tasks

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxSizeBytes is the largest size that a task or a flag can give.
const maxSizeBytes = 1 << 50

// ParseSize reads a size such as 512M, 4G or 1.5G and returns bytes. K, M, G and
// T are powers of 1024; a number without a letter means bytes.
func ParseSize(text string) (int64, error) {
	upper := strings.ToUpper(strings.TrimSpace(text))
	number := strings.TrimRight(upper, "KMGTIB")
	unit := strings.TrimSuffix(strings.TrimSuffix(upper[len(number):], "B"), "I")
	n, err := strconv.ParseFloat(number, 64)
	factor, ok := map[string]float64{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[unit]
	if err != nil || !ok || math.IsNaN(n) || n < 0 || n*factor > maxSizeBytes {
		return 0, fmt.Errorf("%q is not valid: want a size such as 512M or 4G", text)
	}
	return int64(n * factor), nil
}
