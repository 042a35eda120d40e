// Package envd has the messages and services of envd, the daemon in each sandbox of
// E2B, as far as turngate uses them. protoc makes the other files:
//
//	protoc --go_out=. --go_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative process.proto filesystem.proto
package envd
