package masks

import (
	"bytes"
	"io"
	"net/http"
	"strings"
)

// Transport masks the credential of a request in each answer to it that is no success, in its
// body and in its headers, so that no error has the credential.
type Transport struct{ Base http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.Base.RoundTrip(req)
	if err != nil || res.StatusCode < 300 {
		return res, err
	}
	keys := OfHeader(req.Header)
	for _, values := range res.Header {
		for i := range values {
			values[i] = keys.Text(values[i])
		}
	}
	res.Body = &refusal{body: res.Body, keys: keys}
	return res, nil
}

// OfHeader returns the credentials in the header of a request.
func OfHeader(h http.Header) *Keys {
	k := &Keys{}
	for name, values := range h {
		switch name {
		case "Authorization", "Proxy-Authorization", "X-Api-Key", "X-Access-Token":
		default:
			continue
		}
		for _, v := range values {
			if _, key, ok := strings.Cut(v, " "); ok { // behind a scheme such as Bearer
				v = key
			}
			k.Add(v)
		}
	}
	return k
}

// maxRefusal is the size in bytes of the largest body of a refusal that is read.
const maxRefusal = 8 << 20

// refusal is the body of an answer that is no success.
type refusal struct {
	body io.ReadCloser
	keys *Keys
	text io.Reader // nil: the body was not read yet
	err  error
}

func (r *refusal) Read(p []byte) (int, error) {
	if r.text == nil {
		text, err := io.ReadAll(io.LimitReader(r.body, maxRefusal))
		text, _ = r.keys.Bytes(text)
		r.text, r.err = bytes.NewReader(text), err
	}
	n, err := r.text.Read(p)
	if err != nil && r.err != nil { // the body broke off
		err = r.err
	}
	return n, err
}

func (r *refusal) Close() error { return r.body.Close() }
