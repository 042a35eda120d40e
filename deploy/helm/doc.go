// Package helm has a chart for Helm that runs turngate in a Kubernetes cluster. Its tests
// render the chart with Helm's own packages, so that no program is needed. They are a
// module of their own, since these packages bring half of Kubernetes' client along.
package helm
