package enroll

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"

	"github.com/turngate/turngate/schema"
)

// codeLength is the number of characters of a code without its dashes, of 5 bits each.
const codeLength = 12

// alphabet is that of Crockford's base 32, without letters that look like others.
func alphabet() *base32.Encoding {
	return base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ").WithPadding(base32.NoPadding)
}

// Code returns the code of a public key, such as K7QM-2F9D-T3XA: the first 60 bits of its
// SHA-256. The approval of a code so approves its key alone.
func Code(key string) string {
	sum := sha256.Sum256([]byte(key))
	return dashed(alphabet().EncodeToString(sum[:])[:codeLength])
}

// ParseCode reads a code as people type it: in either case, with or without the dashes, and
// with O for 0 and I or L for 1.
func ParseCode(s string) (string, error) {
	text := strings.NewReplacer("-", "", " ", "", "O", "0", "I", "1", "L", "1").Replace(strings.ToUpper(s))
	data, err := alphabet().DecodeString(text) // it skips the ends of lines
	if err != nil || len(text) != codeLength || len(data) != codeLength*5/8 {
		return "", fmt.Errorf("code: %q is not valid: want one such as K7QM-2F9D-T3XA", schema.Clip(s, 40))
	}
	return dashed(text), nil
}

func dashed(text string) string { return text[:4] + "-" + text[4:8] + "-" + text[8:] }
