// Package deploy has files for running turngate on hosts: a whole system
// for docker compose, units of systemd, a job for Slurm, images, the configuration of
// nats-server, and alerts and a dashboard for Prometheus and Grafana. Its tests check that
// each works. The chart for Kubernetes is a module of its own, in the folder helm.
package deploy
