package front

import (
	_ "embed"
	"net/http"
)

// description is the description of all operations.
//
//go:embed openapi.json
var description []byte //nolint:gochecknoglobals // a file

func describe(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(description) // fails if the client went away
}
