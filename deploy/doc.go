// Package deploy has files for running turngate on hosts: units of systemd,
// images, and the configuration of nats-server. Its tests check that each works.
package deploy
