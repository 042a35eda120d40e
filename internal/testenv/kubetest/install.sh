#!/bin/sh
# Builds kube-apiserver into the cache folder of this user, for tests of the kubernetes
# sandbox. It takes minutes, 1 GB of modules, and the network.
set -eu
version=${1:-1.37.2}
to=${XDG_CACHE_HOME:-$HOME/.cache}/turngate/kubernetes
if [ -x "$to/kube-apiserver" ]; then
	exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
minor=0.${version#1.}
{
	echo "module apiserver"
	echo "go 1.26.0"
	echo "require k8s.io/kubernetes v$version"
	echo "replace ("
	for name in api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider cluster-bootstrap code-generator component-base \
		component-helpers controller-manager cri-api cri-client cri-streaming csi-translation-lib dynamic-resource-allocation endpointslice externaljwt kms \
		kube-aggregator kube-controller-manager kube-proxy kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission streaming; do
		echo "k8s.io/$name => k8s.io/$name v$minor"
	done
	echo ")"
} >go.mod
printf '//go:build tools\n\npackage apiserver\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver"\n' >tools.go
mkdir -p "$to"
go build -mod=mod -ldflags "-s -w" -o "$to/kube-apiserver.new" k8s.io/kubernetes/cmd/kube-apiserver
mv "$to/kube-apiserver.new" "$to/kube-apiserver"
