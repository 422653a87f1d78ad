{{- define "maitred.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels that select the pods of a part: (list . "gateway") */}}
{{- define "maitred.selector" -}}
app.kubernetes.io/name: maitred
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "maitred.labels" -}}
{{ include "maitred.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{- define "maitred.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}{{ else if .Values.serviceAccount.create }}{{ include "maitred.name" . }}{{ else }}default{{ end }}
{{- end }}

{{- define "maitred.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The file maitred.yaml. Hosts and ports are the chart's, for the Services and probes name them too. */}}
{{- define "maitred.config" -}}
{{- $gateway := dict "host" "0.0.0.0" "port" (int .Values.gateway.port) }}
{{- $admin := dict "admin_host" "0.0.0.0" "admin_port" (int .Values.adminPort) }}
{{- $defaults := dict "gateway" (dict "admin_auth" "none") }}
{{- toYaml (mergeOverwrite $defaults (deepCopy .Values.config) (dict "gateway" (merge $gateway $admin))) }}
{{- end }}

{{/* Seconds that SIGKILL waits: preStop, what is waited for balancers, the drain, and 15 to end. */}}
{{- define "maitred.graceSecs" -}}
{{- $gateway := .Values.config.gateway | default dict }}
{{- $settle := default 10 $gateway.settle_secs }}
{{- add (int .Values.preStopSecs) (int $settle) (int (default 30 $gateway.drain_secs)) 15 }}
{{- end }}

{{/* What the pods of all parts have in common, before their containers: (list . "gateway") */}}
{{- define "maitred.podTop" -}}
{{- $ := index . 0 -}}
serviceAccountName: {{ include "maitred.serviceAccount" $ }}
automountServiceAccountToken: {{ $.Values.rbac.create }}
terminationGracePeriodSeconds: {{ include "maitred.graceSecs" $ }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with $.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if $.Values.topologySpreadConstraints }}
{{- toYaml $.Values.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "maitred.selector" . | nindent 8 }}
{{- end }}
volumes:
  - name: config
    configMap: {name: {{ include "maitred.name" $ }}}
  # The root of the container is read-only.
  - name: tmp
    emptyDir: {}
  - name: state
    emptyDir: {}
{{- if and $.Values.scheduler.enabled (ne (index . 1) "picker") }}
  - name: link-secret
    secret:
      secretName: {{ $.Values.scheduler.linkSecret }}
      defaultMode: 0440
{{- end }}
{{- end }}

{{/* What their containers have in common: (list . "gateway") */}}
{{- define "maitred.containerTop" -}}
{{- $ := index . 0 -}}
image: {{ include "maitred.image" $ }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- if gt (int $.Values.preStopSecs) 0 }}
lifecycle:
  # Meanwhile the pod leaves the endpoints of its Service; it serves as before.
  preStop:
    sleep: {seconds: {{ int $.Values.preStopSecs }}}
{{- end }}
env:
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  - {name: XDG_STATE_HOME, value: /var/lib/maitred}
{{- with $.Values.extraEnv }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with $.Values.existingSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
volumeMounts:
  - {name: config, mountPath: /etc/maitred, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  - {name: state, mountPath: /var/lib/maitred}
{{- if and $.Values.scheduler.enabled (ne (index . 1) "picker") }}
  - {name: link-secret, mountPath: /etc/maitred-link, readOnly: true}
{{- end }}
{{- end }}

{{/* The probes by HTTP: (list PORT) */}}
{{- define "maitred.probes" -}}
startupProbe:
  httpGet: {path: /health, port: {{ . }}}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /health, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /ready, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{- define "maitred.podMeta" -}}
{{- $ := index . 0 -}}
labels:
  {{- include "maitred.labels" . | nindent 2 }}
  {{- with $.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  # Sections that a reload cannot change need new pods, and so does a reload that nobody asks for.
  checksum/config: {{ include "maitred.config" $ | sha256sum }}
  {{- with $.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* What Helm's schema cannot say. */}}
{{- define "maitred.check" -}}
{{- $several := or (gt (int .Values.gateway.replicas) 1) .Values.gateway.autoscaling.enabled }}
{{- if and .Values.gateway.enabled $several (not .Values.scheduler.enabled) }}
{{- fail "gateway.replicas: several gateways would each fill all slots of the engines: set scheduler.enabled, which shares them" }}
{{- end }}
{{- if and .Values.scheduler.enabled (not .Values.scheduler.linkSecret) }}
{{- fail "scheduler.linkSecret: name a Secret with the key `secret`, of 16 characters at least" }}
{{- end }}
{{- if and .Values.scheduler.enabled (gt (int .Values.scheduler.replicas) 1) (not .Values.scheduler.election) }}
{{- fail "scheduler.election: several schedulers need one (redis://HOST:PORT), or both would lead" }}
{{- end }}
{{- if and .Values.picker.enabled (gt (int .Values.picker.replicas) 1) (not .Values.picker.election) }}
{{- fail "picker.election: several pickers need one (redis://HOST:PORT), or both would lead" }}
{{- end }}
{{- if and .Values.gateway.enabled (eq .Values.gateway.dataPlane "envoy") .Values.scheduler.enabled }}
{{- fail "gateway.dataPlane: a gateway behind Envoy schedules for itself; for many of them use picker.enabled and your own Envoy" }}
{{- end }}
{{- if and .Values.picker.enabled .Values.picker.inferencePool.enabled (not .Values.picker.inferencePool.selector) }}
{{- fail "picker.inferencePool.selector: name the labels of the engines' pods" }}
{{- end }}
{{- if and .Values.engineAutoscaling.enabled (not .Values.engineAutoscaling.target.name) }}
{{- fail "engineAutoscaling.target.name: name the Deployment of the engines" }}
{{- end }}
{{- if not (or .Values.gateway.enabled .Values.scheduler.enabled .Values.picker.enabled) }}
{{- fail "nothing is enabled: gateway, scheduler or picker" }}
{{- end }}
{{- end }}
