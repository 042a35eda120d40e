package tasks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Find returns the folders of tasks at some paths. A path is the folder of a task
// or a folder of such folders; one that looks like neither counts as a task, and Load gives the
// reason. The error joins the errors of all paths.
func Find(paths []string) ([]string, error) {
	var out []string
	var wrong []error
	for _, p := range paths {
		dirs, err := at(p)
		out, wrong = append(out, dirs...), append(wrong, err)
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	return out, nil
}

// at returns the folders of tasks at one path.
func at(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a task directory", path)
	}
	list, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var inside []string
	for _, d := range list {
		if dir := filepath.Join(path, d.Name()); IsTask(dir) {
			inside = append(inside, dir)
		}
	}
	if IsTask(path) || len(inside) == 0 {
		return []string{path}, nil
	}
	return inside, nil
}
