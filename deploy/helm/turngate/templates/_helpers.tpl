{{/* The name of all objects. A worker's name, NAME-worker-N, has 40 characters at most. */}}
{{- define "turngate.name" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 26 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 26 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 26 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of the pods of a component: (list ROOT COMPONENT). */}}
{{- define "turngate.selector" -}}
app.kubernetes.io/name: {{ default (index . 0).Chart.Name (index . 0).Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 | quote }}
{{- end -}}

{{/* Metadata of an object: (list ROOT COMPONENT NAME). */}}
{{- define "turngate.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 2 | quote }}
namespace: {{ $root.Release.Namespace | quote }}
labels:
  {{- include "turngate.labels" . | nindent 2 }}
{{- end -}}

{{- define "turngate.labels" -}}
{{- $root := index . 0 -}}
{{ include "turngate.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{/* Metadata of pods: (list ROOT COMPONENT VALUES). */}}
{{- define "turngate.podMetadata" -}}
{{- $values := index . 2 -}}
labels:
  {{- include "turngate.selector" . | nindent 2 }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Fields of each pod: (list ROOT VALUES). */}}
{{- define "turngate.pod" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{/* A Service named turngate would set variables such as TURNGATE_PORT, which are flags. */ -}}
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- with get $values $key }}
{{ $key }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Fields of each container: (list ROOT VALUES OPEN). OPEN: its system calls and its /proc are those that the sandbox local needs. */}}
{{- define "turngate.container" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- $image := $root.Values.image -}}
{{- if $image.digest }}
image: {{ printf "%s@%s" $image.repository $image.digest | quote }}
{{- else }}
image: {{ printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) | quote }}
{{- end }}
imagePullPolicy: {{ $image.pullPolicy }}
command: [turngate]
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  {{- if index . 2 }}
  procMount: Unmasked
  seccompProfile: {type: Unconfined}
  appArmorProfile: {type: Unconfined}
  {{- else }}
  seccompProfile: {type: RuntimeDefault}
  {{- end }}
{{- with $values.resources }}
resources: {{ toJson . }}
{{- end }}
{{- end -}}

{{/* Probes at a port: (list PORT SCHEME). */}}
{{- define "turngate.probes" -}}
livenessProbe:
  httpGet: {path: /livez, port: {{ index . 0 }}, scheme: {{ index . 1 }}}
  periodSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ index . 0 }}, scheme: {{ index . 1 }}}
  periodSeconds: 5
{{- end -}}

{{/*
The Service through which the metrics of a component's pods are read: (list ROOT COMPONENT NAME).
Pods that are not ready count, too: an alert is about them.
*/}}
{{- define "turngate.metricsService" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "turngate.metadata" . | nindent 2 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "turngate.selector" . | nindent 4 }}
  ports: [{name: metrics, port: 9464, targetPort: metrics}]
{{- end -}}

{{/* The volume with the operator's credential. */}}
{{- define "turngate.operatorVolume" -}}
- name: operator
  secret:
    secretName: {{ .Values.operator.secret | quote }}
    defaultMode: 0440
    items: [{key: {{ .Values.operator.key | quote }}, path: ops.nk}]
{{- end -}}

{{/* A map of flags as arguments. */}}
{{- define "turngate.flags" -}}
{{- range $name, $value := . }}
{{- range $one := (kindIs "slice" $value | ternary $value (list $value)) }}
- {{ printf "--%s=%s" $name (kindIs "string" $one | ternary $one (toJson $one)) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "turngate.workerAccount" -}}
{{- with .Values.worker.serviceAccount -}}
{{- default (.create | ternary (printf "%s-worker" (include "turngate.name" $)) "default") .name -}}
{{- end -}}
{{- end -}}

{{/* The requests that need a slot, as docs/metrics.md has them. */}}
{{- define "turngate.load" -}}
sum(max by (trainer, lane) (turngate_queue_depth + turngate_queue_taken)) + sum(max by (trainer, lane) (turngate_queue_parked{reason="needs"}))
{{- end -}}
