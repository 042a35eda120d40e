// Package session has the messages and the service of the commands in a sandbox of Prime
// Intellect, as far as turngate uses them. protoc makes the other files:
//
//	protoc --go_out=. --go_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative session.proto
package session
