// Package deploy has files for running turngate on hosts: units of systemd,
// images, the configuration of nats-server, and alerts and a dashboard for Prometheus and
// Grafana. Its tests check that each works.
package deploy
