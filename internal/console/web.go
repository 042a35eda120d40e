package console

import (
	"embed"
	"net/http"
)

// assets are the built pages; web/build.mjs makes them.
//
//go:embed web/dist
var assets embed.FS //nolint:gochecknoglobals // go:embed needs a variable

// file serves a file of the built pages.
func file(name, kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		data, err := assets.ReadFile("web/dist/" + name)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(data)
	}
}
