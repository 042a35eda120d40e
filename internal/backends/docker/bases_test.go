package docker

import (
	"strings"
	"testing"
)

func TestBasesOfTheClassicBuilder(t *testing.T) {
	const id = "abcdef123456"
	args := map[string]string{"ID": id, "VERSION": "3"}
	for name, file := range map[string]string{
		"first digits":                   "FROM " + id,
		"two digits":                     "FROM ab",
		"whole id":                       "FROM sha256:" + strings.Repeat("0a", 32),
		"sha256 and digits":              "FROM sha256:" + id,
		"its own name":                   "FROM " + id + " AS " + id,
		"name of a later stage":          "FROM " + id + "\nFROM debian AS " + id,
		"default of an argument":         "ARG B=" + id + "\nFROM $B",
		"argument of the build":          "ARG ID\nFROM ${ID}",
		"parts":                          "ARG A=sha256\nFROM ${A}:" + id,
		"argument in an argument":        "ARG A=abc\nARG B=${A}def\nFROM $B",
		"default in the name":            "FROM ${NONE:-" + id + "}",
		"default with a variable":        "ARG B=" + id + "\nFROM ${NONE:-${B}}",
		"quotes":                         `FROM "` + id + `"`,
		"copy from three digits":         "FROM debian\nCOPY --from=a3f /x /x",
		"copy from an id":                "FROM debian\nCOPY --from=" + id + " /x /x",
		"trigger of an earlier stage":    "FROM debian AS one\nONBUILD COPY --from=" + id + " /x /x\nFROM one",
		"escape character of the parser": "# escape=`\nARG B=" + id + "\nFROM $B",
	} {
		if err := checkBases([]byte(file), args); err == nil || !strings.Contains(err.Error(), "may be an id") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, file := range map[string]string{
		"names":                       "FROM debian:12\nFROM python:3.11 AS x\nCOPY --from=busybox:1 /x /y",
		"registry with a port":        "FROM localhost:5000/abc:1",
		"digest":                      "FROM abc@sha256:" + strings.Repeat("0a", 32),
		"stages":                      "FROM debian AS beef\nFROM beef AS ab\nCOPY --from=BEEF /x /x\nCOPY --from=0 /y /y\nCOPY --from=12 /z /z",
		"version in a variable":       "ARG VERSION=12\nFROM debian:$VERSION",
		"other arguments with digits": "ARG BASE=python:3.11\nARG UID=1000\nFROM ${BASE}\nENV OPTS=\"a=12\"\nARG GID=1000",
		"platform":                    "FROM --platform=linux/amd64 debian",
		"scratch":                     "FROM scratch",
	} {
		if err := checkBases([]byte(file), args); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNamesThatTheEngineTakesForNames(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	for ref, want := range map[string]string{
		"debian": "docker.io/library/debian:latest", "debian:12": "docker.io/library/debian:12", "cafe": "docker.io/library/cafe:latest", "sha256:ab": "docker.io/library/sha256:ab",
		"localhost:5000/a/b": "localhost:5000/a/b:latest", "ghcr.io/a/b:1": "ghcr.io/a/b:1", hex: "sha256:" + hex, "sha256:" + hex: "sha256:" + hex,
		"a@sha256:" + hex: "docker.io/library/a@sha256:" + hex,
	} {
		if got := inEngine(ref); got != want {
			t.Errorf("%s: got %s, want %s", ref, got, want)
		}
	}
}
