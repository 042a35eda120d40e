// Package permissions tries attacks with the real credentials of each role on real
// servers: one in this process, and a nats-server with the file that `turngate
// nats config` prints. docs/security.md claims nothing beyond its tables.
package permissions
