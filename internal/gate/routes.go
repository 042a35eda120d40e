package gate

import (
	"net/http"
	"strings"
)

// routes finds the handler of a request. It has exact paths, and paths that end
// in one variable part, as "POST /v1/models/{call}". Dialects need no more, and
// every session has its own routes.
type routes struct {
	exact map[route]http.HandlerFunc
	under []under
}

type route struct{ method, path string }

type under struct {
	route           // up to the variable part
	variable string // name of the variable part, for http.Request.PathValue
	serve    http.HandlerFunc
}

// handle adds a pattern in the form of http.ServeMux.
func (s *routes) handle(pattern string, serve http.HandlerFunc) {
	method, path, _ := strings.Cut(pattern, " ")
	if fixed, variable, ok := strings.Cut(path, "{"); ok {
		s.under = append(s.under, under{route{method, fixed}, strings.TrimSuffix(variable, "}"), serve})
		return
	}
	if s.exact == nil {
		s.exact = map[route]http.HandlerFunc{}
	}
	s.exact[route{method, path}] = serve
}

// find returns the handler of a request, or nil.
func (s *routes) find(r *http.Request) http.HandlerFunc {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if serve := s.exact[route{method, r.URL.Path}]; serve != nil {
		return serve
	}
	for _, u := range s.under {
		if rest, ok := strings.CutPrefix(r.URL.Path, u.path); ok && u.method == method && rest != "" {
			r.SetPathValue(u.variable, rest)
			return u.serve
		}
	}
	return nil
}
