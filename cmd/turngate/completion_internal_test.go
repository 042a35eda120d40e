package main

import (
	"strings"
	"testing"
)

// A shell is offered no name that it would read as more than a word.
func TestNamesThatAShellIsOffered(t *testing.T) {
	for _, v := range []string{"alpha-0001", "runs/a_b.c", "größe", "s3://bucket/a+b@1.0,2%"} {
		if !completable(v) {
			t.Errorf("%q is not offered", v)
		}
	}
	for _, v := range []string{"", "a b", "$(id)1", "`id`", "a;b", "a|b", "a&b", "a>b", "a'b", `a"b`, `a\b`, "a\nb", "a\tb", "~x", "!x", "#x", "a*", "{a,b}", "--nats=x", "a\u202eb", "a\xffb", strings.Repeat("a", 201)} {
		if completable(v) {
			t.Errorf("%q is offered", v)
		}
	}
}
