package main

import (
	"strings"
	"testing"
)

// TestMeasuresOfASmallModule prints the measures of the module in testdata. Its type run
// has a method by embedding; run.go uses step.go twice, and step.go goes back once.
func TestMeasuresOfASmallModule(t *testing.T) {
	m, err := load("testdata/house")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	m.print(&b)
	const want = `methods  exported  type, with the methods of embedded types
      5         1  internal/rollout.run
      1         1  internal/rollout.base
      1         1  schema.Result

exported names  public package
             3  schema
             3  all

places  file that sets fields of schema.Result
     1  internal/rollout/run.go
     1  internal/rollout/step.go
     1  schema/result.go

arrows  back up  between files, inside the packages below
     0        0  internal/worker
     3        1  internal/rollout
`
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
}

// TestALoadErrorNamesTheProgram: a folder without a module gives the words of go list.
func TestALoadErrorNamesTheProgram(t *testing.T) {
	if _, err := load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "go list") {
		t.Error(err)
	}
}
