package main

import (
	"fmt"
	"os"
	"strings"
)

// serviceKey returns the key of an account at a service: the value of the variable, or the
// content of the file that the variable with the suffix _FILE names. Without both it is
// empty.
func serviceKey(service, variable string) (string, error) {
	if key := os.Getenv(variable); key != "" {
		return key, nil
	}
	path := os.Getenv(variable + "_FILE")
	if path == "" {
		return "", nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the key of %s: %w", service, err)
	}
	return strings.TrimSpace(string(data)), nil
}
