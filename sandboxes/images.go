package sandboxes

import (
	"strings"

	"github.com/turngate/turngate/schema"
)

// PullCode returns the code of a fault for a registry's reason for refusing an image.
// It is empty for another reason.
func PullCode(text string) string {
	text = strings.ToLower(text)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has("toomanyrequests", "too many requests", "429 too many", "rate limit"):
		return schema.CodeImageRate
	case has("no matching manifest for", "no match for platform", "does not match the specified platform", "exec format error"):
		return schema.CodeImageKind
	case has("no basic auth credentials", "unauthorized", "authentication required", "incorrect username or password", "401 unauthorized"):
		return schema.CodeImageAuth
	case has("manifest unknown", "name unknown", "manifest for ", "repository does not exist", "pull access denied", "repository name not known"),
		has(": not found") && !has("cache key", "checksum"):
		return schema.CodeNoImage
	case has("denied", "403 forbidden") && has("requested access", "registry", "failed to resolve source metadata"):
		return schema.CodeImageAuth
	}
	return ""
}
