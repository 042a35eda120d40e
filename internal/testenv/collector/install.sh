#!/bin/sh
# Builds the collector of OpenTelemetry into the cache folder of this user, for a test of the
# export of traces and metrics. It takes minutes, 1 GB of modules, and the network.
set -eu
version=${1:-0.165.0}
to=${XDG_CACHE_HOME:-$HOME/.cache}/turngate/otelcol
if [ -x "$to/otelcol" ]; then
	exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/builder.yaml" <<END
dist:
  name: otelcol
  output_path: $dir/build
receivers:
  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v$version
exporters:
  - gomod: go.opentelemetry.io/collector/exporter/otlphttpexporter v$version
END
go run "go.opentelemetry.io/collector/cmd/builder@v$version" --config "$dir/builder.yaml"
mkdir -p "$to"
mv "$dir/build/otelcol" "$to/otelcol"
