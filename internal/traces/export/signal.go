package export

import (
	"fmt"
	"net/url"
	"os"
	"strings"
)

// signal is a kind of data that is exported, as the names of variables have it.
type signal string

const (
	spans   signal = "TRACES"
	metrics signal = "METRICS"
)

// variable returns the value of the variable for this signal alone, or else of the one for
// all signals, with its name.
func (s signal) variable(suffix string) (name, value string) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_" + string(s) + "_" + suffix, "OTEL_EXPORTER_OTLP_" + suffix} {
		if value := strings.TrimSpace(os.Getenv(name)); value != "" {
			return name, value
		}
	}
	return "", ""
}

// The protocols of OTLP.
const (
	overGRPC = "grpc"
	overHTTP = "http/protobuf"
)

// protocol returns the protocol with which the signal is exported; empty: it is not. It
// checks the variables that the SDK would replace by their defaults in silence.
func (s signal) protocol() (string, error) {
	endpointName, endpoint := s.variable("ENDPOINT")
	exporterName := "OTEL_" + string(s) + "_EXPORTER"
	exporter := strings.TrimSpace(os.Getenv(exporterName))
	switch {
	case strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true"), exporter == "none", exporter == "" && endpoint == "":
		return "", nil
	case s == metrics && (exporter == "prometheus" || exporter == "console"): // of other processes of the host
		return "", nil
	case exporter != "" && exporter != "otlp":
		return "", fmt.Errorf("%s: %q is not valid: want otlp or none", exporterName, exporter)
	}
	if endpoint != "" {
		if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return "", fmt.Errorf("%s: %q is not valid: want a URL such as http://127.0.0.1:4318", endpointName, endpoint)
		}
	}
	switch name, protocol := s.variable("PROTOCOL"); protocol {
	case overGRPC:
		return overGRPC, nil
	case "", overHTTP:
		return overHTTP, nil
	default:
		return "", fmt.Errorf("%s: %q is not valid: want grpc or http/protobuf", name, protocol)
	}
}
